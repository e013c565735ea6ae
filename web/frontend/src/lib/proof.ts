/** Checks a proof of one log entry in the browser, as docs/reference/log-format.md describes it. */

export const COLUMNS: Record<string, string[]> = {
  packet:
    `epoch batch_no recorded_at packet_id packet_type channel run_phase session_id run_id task_id root_packet_id
     parent_packet_id cause_packet_id sender_agent_id sender_role sender_swarm_id recipients generation round step
     confidence created_at expires_at judged_at verdict refusal_code refusal contract_hash facts stored_hash
     packet_hash user_id signature`.split(/\s+/),
  hop: `epoch batch_no recorded_at session_id packet_id recipient attempt from_state to_state events occurred_at actor metadata`.split(" "),
};

export interface Proof {
  format: string;
  version: number;
  checkpoint: string;
  key: string;
  entry: string;
  path: string[];
  body?: string | null;
}

export type ProofState = "proven" | "unpinned" | "unsigned" | "false";

export interface ProofResult {
  state: ProofState;
  /** One sentence in words. */
  reason: string;
  /** The columns of the verified entry; present unless the proof is false. */
  fields?: Record<string, unknown>;
  /** The verified bytes of the body. */
  body?: Uint8Array;
  size?: number;
  origin?: string;
  key?: string;
}

class Unproven extends Error {}

const utf8 = new TextEncoder();

function fromBase64(text: string, what: string): Uint8Array<ArrayBuffer> {
  let bytes: string;
  try {
    bytes = atob(text);
  } catch {
    throw new Unproven(`${what} is not base64`);
  }
  if (btoa(bytes) !== text) throw new Unproven(`${what} is not canonical base64`);
  return Uint8Array.from(bytes, (char) => char.charCodeAt(0));
}

function fromHex(text: string): Uint8Array<ArrayBuffer> {
  if (!/^[0-9a-f]{64}$/.test(text)) throw new Unproven("a hash of the path is not 64 lower-case hex digits");
  return Uint8Array.from(text.match(/../g)!, (pair) => parseInt(pair, 16));
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function join(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

async function sha256(...parts: Uint8Array[]): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", join(...parts)));
}

function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, index) => byte === b[index]);
}

export interface VerifierKey {
  name: string;
  id: Uint8Array;
  key: Uint8Array<ArrayBuffer>;
}

/** Parse `name+<8 hex>+base64(0x01 || key)` and check the key id. */
export async function parseKey(text: string): Promise<VerifierKey> {
  const match = /^([^+\s]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)$/.exec(text.trim());
  if (!match) throw new Unproven("the key is not written as name+id+base64");
  const [, name, id, encoded] = match as unknown as [string, string, string, string];
  const bytes = fromBase64(encoded, "the key");
  if (bytes.length !== 33 || bytes[0] !== 1) throw new Unproven("the key is not an Ed25519 key");
  const digest = (await sha256(utf8.encode(`${name}\n`), bytes)).slice(0, 4);
  if (toHex(digest) !== id) throw new Unproven("the id of the key does not match the key");
  return { name, id: digest, key: bytes.slice(1) };
}

interface Checkpoint {
  origin: string;
  size: number;
  root: Uint8Array;
  text: string;
  signatures: { name: string; bytes: Uint8Array }[];
}

function parseCheckpoint(note: string): Checkpoint {
  const cut = note.indexOf("\n\n");
  if (cut < 0) throw new Unproven("the checkpoint is not a signed note");
  const text = note.slice(0, cut + 1);
  const lines = text.split("\n");
  if (lines.length !== 4 || !/^[1-9]\d{0,15}$/.test(lines[1]!)) throw new Unproven("the checkpoint cannot be read");
  const root = fromBase64(lines[2]!, "the root of the checkpoint");
  const signatures = note
    .slice(cut + 2)
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => {
      const match = /^— (\S+) (\S+)$/.exec(line);
      if (!match) throw new Unproven("a signature of the checkpoint cannot be read");
      return { name: match[1]!, bytes: fromBase64(match[2]!, "a signature") };
    });
  return { origin: lines[0]!, size: Number(lines[1]), root, text, signatures };
}

/** The root that leaf `index` of a tree of `size` leaves gives with this path (RFC 6962, 2.1.1). */
export async function rootOf(leaf: Uint8Array, index: number, size: number, path: Uint8Array[]): Promise<Uint8Array> {
  if (index >= size) throw new Unproven("the entry is behind the checkpoint");
  let node = index;
  let last = size - 1;
  let hash = leaf;
  for (const sibling of path) {
    if (last === 0) throw new Unproven("the path is too long");
    if (node % 2 === 1 || node === last) {
      hash = await sha256(Uint8Array.of(1), sibling, hash);
      while (node % 2 === 0 && node !== 0) {
        node = Math.floor(node / 2);
        last = Math.floor(last / 2);
      }
    } else {
      hash = await sha256(Uint8Array.of(1), hash, sibling);
    }
    node = Math.floor(node / 2);
    last = Math.floor(last / 2);
  }
  if (last !== 0) throw new Unproven("the path is too short");
  return hash;
}

/** True, false, or null where this browser has no Ed25519. */
async function signed(checkpoint: Checkpoint, key: VerifierKey): Promise<boolean | null> {
  const own = checkpoint.signatures.filter((one) => one.name === key.name && same(one.bytes.slice(0, 4), key.id));
  if (own.length === 0) return false;
  let imported: CryptoKey;
  try {
    imported = await crypto.subtle.importKey("raw", key.key, { name: "Ed25519" }, false, ["verify"]);
  } catch {
    return null;
  }
  for (const one of own) {
    const signature = Uint8Array.from(one.bytes.slice(4));
    if (!(await crypto.subtle.verify({ name: "Ed25519" }, imported, signature, utf8.encode(checkpoint.text)))) return false;
  }
  return true;
}

/** The keys of a text, a line each; empty lines and lines with # are passed over. */
export function pinnedKeys(text: string | null): string[] {
  return (text ?? "")
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "" && !line.startsWith("#"));
}

function columns(entry: string): { kind: string; shard: number; seq: number; fields: Record<string, unknown> } {
  let values: unknown;
  try {
    values = JSON.parse(entry);
  } catch {
    throw new Unproven("the entry is not JSON");
  }
  if (!Array.isArray(values) || values.length < 4) throw new Unproven("the entry is not a list");
  const [kind, version, shard, seq, ...rest] = values as [string, number, number, number, ...unknown[]];
  const names = COLUMNS[kind];
  if (!names || version !== 1) throw new Unproven(`this page cannot read entries of kind ${kind}, version ${version}`);
  if (names.length !== rest.length) throw new Unproven("the entry has another number of columns");
  return { kind, shard, seq, fields: Object.fromEntries(names.map((name, index) => [name, rest[index]])) };
}

async function check(proof: Proof, pinned: string | null): Promise<ProofResult> {
  if (proof.format !== "apc-log-proof" || proof.version !== 1) throw new Unproven("this is not a proof of version 1");
  const checkpoint = parseCheckpoint(proof.checkpoint);
  const entry = columns(proof.entry);
  if (!checkpoint.origin.endsWith(`/${entry.shard}`)) throw new Unproven("the entry is of another shard than the checkpoint");
  if (!Number.isSafeInteger(entry.seq) || entry.seq < 1) throw new Unproven("the entry has no valid number");
  const leaf = await sha256(Uint8Array.of(0), utf8.encode(proof.entry));
  const root = await rootOf(leaf, entry.seq - 1, checkpoint.size, proof.path.map(fromHex));
  if (!same(root, checkpoint.root)) throw new Unproven("the entry does not lead to the signed root: it was changed");
  const body = proof.body == null ? undefined : fromBase64(proof.body, "the body");
  if (body && toHex(await sha256(body)) !== entry.fields.stored_hash) throw new Unproven("the body is not the one in the entry");

  const trusted = pinnedKeys(pinned);
  const keys = await Promise.all((trusted.length > 0 ? trusted : [proof.key]).map(parseKey));
  const key = keys.find((one) => one.name === checkpoint.origin);
  if (!key) {
    throw new Unproven(trusted.length > 0 ? `none of your keys is of ${checkpoint.origin}` : "the key is of another log");
  }
  const valid = await signed(checkpoint, key);
  if (valid === false) {
    throw new Unproven(trusted.length > 0 ? "the checkpoint is not signed with your key" : "the signature of the checkpoint is invalid");
  }
  const found = { fields: entry.fields, body, size: checkpoint.size, origin: checkpoint.origin, key: proof.key };
  if (valid === null) {
    return { state: "unsigned", reason: "The entry is in the tree, but this browser cannot check Ed25519 signatures.", ...found };
  }
  if (trusted.length === 0) {
    return { state: "unpinned", reason: "The key came from this server. Paste the key that you trust to prove it.", ...found };
  }
  return { state: "proven", reason: "The entry is in the log that your key signed.", ...found };
}

/** Check `proof`; `pinned` is the key that the reader trusts, as `apc log key` prints it. Never throws. */
export async function checkProof(proof: Proof, pinned: string | null): Promise<ProofResult> {
  try {
    return await check(proof, pinned);
  } catch (error) {
    if (error instanceof Unproven) return { state: "false", reason: `Not proven: ${error.message}.` };
    return { state: "false", reason: "Not proven: the proof cannot be read." };
  }
}

/** What the page shows of a packet, and the proof has to agree with. */
export interface ShownPacket {
  packet_id: string;
  packet_type: string;
  sender: string;
  verdict: string;
  refusal_code: string | null;
  session_id: string;
  packet_hash: string;
}

const KEY = "apc.key";

/** The public key that the reader trusts; null without one. It stays in this browser. */
export function pinnedKey(): string | null {
  return localStorage.getItem(KEY);
}

export function pinKey(key: string): void {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

export interface ShownEffect {
  packet_id: string;
  agent_id: string;
  key: string;
}

/** Whether a proven hop tells of the effect that the page shows. */
export function isOfEffect(effect: ShownEffect, session: string, fields: Record<string, unknown>): boolean {
  const { metadata } = fields;
  const told = (typeof metadata === "string" ? JSON.parse(metadata) : metadata) as { effect?: { key?: unknown } } | null;
  return fields.session_id === session && fields.packet_id === effect.packet_id && fields.recipient === effect.agent_id && told?.effect?.key === effect.key;
}

/** The column in which the page and the proven entry differ; null is none. A held packet is judged later, by another entry. */
export function differenceOf(packet: ShownPacket, fields: Record<string, unknown>): string | null {
  const wasHeld = fields.verdict === "held" && fields.refusal_code === null;
  const shown: [string, unknown][] = [
    ["packet_id", packet.packet_id],
    ["packet_type", packet.packet_type],
    ["sender_agent_id", packet.sender],
    ["verdict", wasHeld ? "held" : packet.verdict],
    ["refusal_code", wasHeld ? null : packet.refusal_code],
    ["session_id", packet.session_id],
    ["packet_hash", packet.packet_hash],
  ];
  return shown.find(([name, value]) => fields[name] !== value)?.[0] ?? null;
}
