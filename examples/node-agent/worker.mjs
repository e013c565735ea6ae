/** Takes deliveries one after the other, the urgent ones first, in the order of docs/reference/protocol.md section 3. */

import { v7 } from "uuid";
import { Handled, Marks } from "./fence.mjs";
import { buildAnswer, buildRoot, expiryOf, seal, slotOf, signatureOf } from "./packets.mjs";
import { Sessions } from "./sessions.mjs";

const PREFETCH = 20;
const PRESENCE_INTERVAL_MS = 30_000;
const PRESENCE = { session_id: "_presence", run_id: "presence", task_id: "presence" };
const NEVER_ACKNOWLEDGED = new Set(["ACK", "NACK", "ERROR", "HEARTBEAT", "RETRACTION"]);

export class Worker {
  #settings;
  #broker;
  #schemas;
  #handlers;
  #log;
  #waiting = { urgent: [], normal: [] };
  #draining = Promise.resolve();
  #isStopping = false;
  #presence;
  #handled = new Handled();
  #marks = new Marks();
  #sessions = new Sessions();

  /** `handlers` maps a packet type to `async (packet, emit) => …`; `log` takes an object for each event. */
  constructor(settings, broker, schemas, handlers, log) {
    this.#settings = settings;
    this.#broker = broker;
    this.#schemas = schemas;
    this.#handlers = handlers;
    this.#log = log;
  }

  /** Says that the agent lives, and begins to take packets; `onFailure` is told when it cannot go on. */
  async start(onFailure) {
    await this.#sayPresence();
    for (const kind of ["urgent", "normal"]) {
      await this.#broker.consume(`apc.agent.${this.#settings.actor.agent_id}.${kind}`, PREFETCH, (message) => {
        this.#waiting[kind].push(message);
        this.#draining = this.#draining.then(() => this.#takeNext()).catch(onFailure);
      });
    }
    this.#presence = setInterval(() => this.#sayPresence().catch(onFailure), PRESENCE_INTERVAL_MS);
  }

  /** Ends what it has begun, and takes nothing more; what waits goes back to the broker when that closes. */
  async stop() {
    this.#isStopping = true;
    clearInterval(this.#presence);
    await this.#draining;
  }

  async #takeNext() {
    const message = this.#isStopping ? undefined : (this.#waiting.urgent.shift() ?? this.#waiting.normal.shift());
    if (message === undefined) return;
    const packet = this.#read(message);
    if (packet === undefined) return this.#broker.refuse(message);
    await this.#take(packet, message.properties.headers ?? {});
    this.#broker.ack(message);
  }

  #read(message) {
    try {
      const packet = JSON.parse(message.content.toString("utf8"));
      this.#schemas.checkPacket(packet);
      return packet;
    } catch (error) {
      this.#log({ event: "unreadable", message_id: message.properties.messageId, reason: error.message });
      return undefined;
    }
  }

  async #take(packet, headers) {
    const attempt = headers["apc-attempt"];
    if (this.#handled.has(packet.packet_id, attempt)) return;
    if (headers["apc-mark"] === undefined) {
      const { rule, remedy } = packet.metadata?.refusal ?? {};
      const { acked_packet_id, reason } = packet.payload;
      this.#log({ event: "refused", packet_id: acked_packet_id, reason, rule, remedy });
      return;
    }
    const told = {
      shard: headers["apc-shard"],
      epoch: headers["apc-epoch"],
      batch: headers["apc-batch"],
      mark: headers["apc-mark"].split(".").map(Number),
    };
    if (this.#marks.isFenced(told)) return;
    this.#sessions.learn(packet, headers);
    if (Date.now() >= expiryOf(packet)) await this.#report(packet, attempt, ["expired"]);
    else await this.#handle(packet, attempt, traceOf(headers));
    this.#handled.add(packet.packet_id, attempt);
  }

  async #handle(packet, attempt, trace) {
    await this.#report(packet, attempt, ["delivery_ack"]);
    const drafts = [];
    try {
      // A type without a handler is handled by doing nothing.
      await this.#handlers[packet.packet_type]?.(packet, (draft) => drafts.push(draft));
      if (wantsAcknowledgement(packet)) drafts.push(acknowledging(packet));
    } catch (error) {
      this.#log({ event: "handler_failed", packet_id: packet.packet_id, reason: error.message });
      return this.#report(packet, attempt, ["reject"], error.message);
    }
    for (const [ordinal, draft] of drafts.entries()) {
      const moment = this.#sessions.of(packet.trace.session_id);
      const addressed = { to: packet.sender.agent_id, ...draft };
      const answer = buildAnswer(this.#settings.actor, packet, ordinal, moment, addressed);
      await this.#send(answer, { "apc-cause": packet.packet_id, "apc-ordinal": ordinal, ...trace });
      this.#log({ event: "answered", packet_id: answer.packet_id, type: answer.packet_type, cause: packet.packet_id });
    }
    await this.#report(packet, attempt, ["consumer_apply", "outcome"]);
  }

  async #sayPresence() {
    const ttlMs = 2 * PRESENCE_INTERVAL_MS;
    const draft = { type: "HEARTBEAT", payload: { signal: "HEARTBEAT" }, to: "orchestrator", ttlMs };
    await this.#send(buildRoot(this.#settings.actor, PRESENCE, this.#sessions.of(PRESENCE.session_id), draft), {});
  }

  async #send(packet, headers) {
    this.#schemas.checkPacket(packet);
    const body = seal(packet);
    const { key } = this.#settings;
    await this.#broker.publish("apc.ingress", slotOf(packet.trace.session_id), body, {
      type: packet.packet_type,
      messageId: packet.packet_id,
      correlationId: packet.trace.root_packet_id,
      headers: key === undefined ? headers : { ...headers, "apc-signature": signatureOf(key, packet, body) },
    });
  }

  async #report(packet, attempt, kinds, error) {
    const { session_id } = packet.trace;
    const common = {
      packet_id: packet.packet_id,
      session_id,
      recipient: this.#settings.actor.agent_id,
      attempt,
      at: new Date().toISOString(),
      ...(error && { error }),
    };
    const receipts = kinds.map((kind) => ({ ...common, kind }));
    this.#schemas.checkReceipts(receipts);
    const body = Buffer.from(JSON.stringify(receipts));
    const properties = { type: "receipts", messageId: v7() };
    await this.#broker.publish("apc.receipts", slotOf(session_id), body, properties);
  }
}

function wantsAcknowledgement(packet) {
  return packet.routing.requires_ack && !NEVER_ACKNOWLEDGED.has(packet.packet_type);
}

function acknowledging(packet) {
  return { type: "ACK", payload: { acked_packet_id: packet.packet_id, ack_status: "ACCEPTED" } };
}

/** The W3C trace context of a delivery, which its answers hand on. */
function traceOf({ traceparent, tracestate }) {
  if (traceparent === undefined) return {};
  return tracestate === undefined ? { traceparent } : { traceparent, tracestate };
}
