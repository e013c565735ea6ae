/** Packets as docs/reference/protocol.md asks for them: ids (section 4), bytes (section 2), signatures (section 5). */

import { createHash, sign } from "node:crypto";
import { crc32 } from "node:zlib";
import canonicalize from "canonicalize";
import { v5, v7 } from "uuid";

/** The routing key of everything that belongs to a session. */
export function slotOf(sessionId) {
  return String(crc32(sessionId) % 256);
}

/** The moment from which on a packet must not start a handler, in milliseconds. */
export function expiryOf(packet) {
  return packet.expires_at ? Date.parse(packet.expires_at) : Date.parse(packet.created_at) + packet.routing.ttl_ms;
}

/** A packet without a cause: the root of a tree. */
export function buildRoot(actor, { session_id, run_id, task_id }, moment, draft) {
  const packetId = v7();
  return build(actor, { session_id, run_id, task_id, root_packet_id: packetId }, moment, packetId, draft);
}

/** Answer number `ordinal` to a packet; a handler that runs again makes the same id. */
export function buildAnswer(actor, cause, ordinal, moment, draft) {
  const { session_id, run_id, task_id, root_packet_id } = cause.trace;
  const trace = { session_id, run_id, task_id, root_packet_id, parent_packet_id: cause.packet_id };
  return build(actor, trace, moment, v5(`${actor.agent_id}/${ordinal}`, cause.packet_id), draft);
}

function build(actor, trace, moment, packetId, { type, payload, to, confidence = 1, ttlMs = 600_000, ...others }) {
  return {
    protocol_version: type === "MESSAGE" ? "apc/1.1" : "apc/1.0",
    packet_id: packetId,
    packet_type: type,
    channel: "INTER_AGENT",
    run_phase: moment.run_phase,
    created_at: new Date().toISOString(),
    sender: actor,
    recipients: [{ agent_id: to }],
    trace: { ...trace, generation: moment.generation, step: moment.step },
    routing: { delivery_mode: "DIRECT", priority: 4, ttl_ms: ttlMs, requires_ack: false },
    confidence,
    symbolic_keys: [],
    payload,
    ...others,
  };
}

/** The bytes that travel, once and for all: RFC 8785. */
export function seal(packet) {
  return Buffer.from(canonicalize(packet), "utf8");
}

/** The value of the header `apc-signature`. */
export function signatureOf(key, packet, body) {
  const lines = [
    "apc-packet-v1",
    packet.packet_id,
    packet.sender.agent_id,
    signedTime(Date.parse(packet.created_at)),
    signedTime(expiryOf(packet)),
    createHash("sha256").update(body).digest("hex"),
  ];
  return `${key.id}:${sign(null, Buffer.from(lines.join("\n")), key.privateKey).toString("base64")}`;
}

/** UTC with six digits of microseconds, or without a fraction; our own times have milliseconds. */
function signedTime(milliseconds) {
  const text = new Date(milliseconds).toISOString();
  return text.endsWith(".000Z") ? text.replace(".000Z", "Z") : text.replace("Z", "000Z");
}
