/** The broker: two connections, because a broker in need blocks those that publish, and nothing may block acks. */

import amqp from "amqplib";

const CONFIRM_PATIENCE_MS = 30_000;

export class Broker {
  #publishing;
  #consuming;
  #connections;
  #user;
  #returned = new Set();

  /** Connects; `onLost` is told once of a connection or channel that ended by itself. */
  static async connect(url, user, onLost) {
    const connections = await Promise.all([amqp.connect(url), amqp.connect(url)]);
    const channels = [await connections[0].createConfirmChannel(), await connections[1].createChannel()];
    for (const one of [...connections, ...channels]) {
      one.on("error", onLost);
      one.on("close", () => onLost(new Error("the broker closed the connection")));
    }
    return new Broker(user, connections, ...channels);
  }

  constructor(user, connections, publishing, consuming) {
    this.#user = user;
    this.#connections = connections;
    this.#publishing = publishing;
    this.#consuming = consuming;
    publishing.on("return", (message) => this.#returned.add(message.properties.messageId));
  }

  /** Returns when the broker has the message. An exception means that it is unknown whether it has. */
  async publish(exchange, key, body, properties) {
    await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`no confirm from ${exchange} in time`)), CONFIRM_PATIENCE_MS);
      const fixed = { contentType: "application/json", persistent: true, mandatory: true, userId: this.#user };
      this.#publishing.publish(exchange, key, body, { ...properties, ...fixed }, (error) => {
        clearTimeout(late);
        if (error) reject(new Error(`${exchange} did not confirm`, { cause: error }));
        else resolve();
      });
    });
    // A returned message is returned before it is confirmed.
    if (this.#returned.delete(properties.messageId)) {
      throw new Error(`${exchange} has no queue for key ${key}: run \`apc topology apply\``);
    }
  }

  /** Hands the deliveries of a queue to `take`. */
  async consume(queue, prefetch, take) {
    await this.#consuming.prefetch(prefetch);
    await this.#consuming.consume(queue, (message) => {
      if (message === null) this.#consuming.emit("error", new Error(`the broker cancelled the consumer of ${queue}`));
      else take(message);
    });
  }

  /** The delivery is done with. */
  ack(message) {
    this.#consuming.ack(message);
  }

  /** The delivery is no packet: to the dead letters with it. */
  refuse(message) {
    this.#consuming.nack(message, false, false);
  }

  /** Gives back what was not acknowledged. */
  async close() {
    await Promise.all(this.#connections.map((one) => one.close()));
  }
}
