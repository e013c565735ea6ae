/** The exported JSON Schemas: what is sent and what is received is checked against them. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const PACKET = "packet.schema.json";
const RECEIPTS = "receipts.schema.json";

export class Schemas {
  #ajv = new Ajv2020({ strict: true, strictTypes: false, strictRequired: false });
  #packet;
  #receipts;

  /** Reads the schemas in this folder. */
  constructor(folder) {
    addFormats(this.#ajv);
    this.#ajv.addKeyword("discriminator"); // only its mapping is used, below
    const [packet, receipts] = [PACKET, RECEIPTS].map((name) => JSON.parse(readFileSync(join(folder, name), "utf8")));
    this.#ajv.addSchema(packet);
    this.#packet = packet;
    this.#receipts = this.#ajv.compile(receipts);
  }

  /** Throws an Error that names the field when this is no packet of its type. */
  checkPacket(packet) {
    const reference = this.#packet.discriminator.mapping[packet?.packet_type];
    if (reference === undefined) throw new Error(`packet_type: ${packet?.packet_type} is none of the protocol`);
    this.#check(this.#ajv.getSchema(`${this.#packet.$id}${reference}`), packet);
  }

  /** Throws an Error that names the field when these are no receipts. */
  checkReceipts(receipts) {
    this.#check(this.#receipts, receipts);
  }

  #check(validate, document) {
    if (!validate(document)) throw new Error(this.#ajv.errorsText(validate.errors, { dataVar: "$" }));
  }
}
