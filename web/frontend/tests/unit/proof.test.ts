import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { checkProof, differenceOf, isOfEffect, type Proof, type ShownPacket } from "../../src/lib/proof";

const page = readFileSync(new URL("../../../../docs/reference/log-format.md", import.meta.url), "utf8");
const vectors = page.split("```vectors\n")[1]!.split("\n```")[0]!.split("\n");
const key = vectors[8]!;
const proof: Proof = {
  format: "apc-log-proof",
  version: 1,
  checkpoint: `${vectors.slice(9).join("\n")}\n`,
  key,
  entry: vectors[0]!,
  path: [vectors[3]!, vectors[5]!],
};

describe("the proof of an effect", () => {
  it("is of the one that the page shows", () => {
    const effect = { packet_id: "p", agent_id: "cashier", key: "transfer" };
    const fields = { session_id: "s", packet_id: "p", recipient: "cashier", metadata: { effect: { key: "transfer" } } };
    expect([isOfEffect(effect, "s", fields), isOfEffect(effect, "s", { ...fields, metadata: '{"effect":{"key":"transfer"}}' })]).toEqual([true, true]);
    const others = [{ packet_id: "q" }, { recipient: "clerk" }, { session_id: "t" }, { metadata: null }, { metadata: { effect: { key: "other" } } }];
    expect(others.map((one) => isOfEffect(effect, "s", { ...fields, ...one }))).toEqual([false, false, false, false, false]);
  });
});

describe("the proof of the documented vectors", () => {
  it("is proven with the reader's key, and shows the entry's fields", async () => {
    const result = await checkProof(proof, key);
    expect(result).toMatchObject({ state: "proven", size: 3, fields: { packet_type: "EVAL", refusal_code: "MALFORMED" } });
  });

  it("is only consistent without one", async () => {
    expect((await checkProof(proof, null)).state).toBe("unpinned");
  });

  it.each<[string, Partial<Proof>, string]>([
    ["a changed column", { entry: proof.entry.replace("EVAL", "IDEA") }, "it was changed"],
    ["a changed path", { path: [...proof.path].reverse() }, "it was changed"],
    ["a short path", { path: proof.path.slice(1) }, "too short"],
    ["a long path", { path: [...proof.path, vectors[3]!] }, "too long"],
    ["a hash in capitals", { path: proof.path.map((hash) => hash.toUpperCase()) }, "lower-case"],
    ["another size", { checkpoint: proof.checkpoint.replace("\n3\n", "\n4\n") }, "signature of the checkpoint is invalid"],
    ["no signature", { checkpoint: `${proof.checkpoint.split("\n\n")[0]}\n\n` }, "signature of the checkpoint is invalid"],
    ["another shard", { entry: proof.entry.replace('["packet",1,0', '["packet",1,1') }, "another shard"],
    ["another body", { body: btoa("{}") }, "not the one in the entry"],
    ["another format", { version: 2 }, "not a proof of version 1"],
    ["nonsense", { entry: "{" }, "not JSON"],
    ["no path", { path: undefined as unknown as string[] }, "cannot be read"],
  ])("is false with %s", async (_, change, reason) => {
    const result = await checkProof({ ...proof, ...change }, null);
    expect(result.state).toBe("false");
    expect(result.reason).toContain(reason);
    expect(result.fields).toBeUndefined();
  });

  it("is false with a pinned key that differs", async () => {
    const pair = await crypto.subtle.generateKey({ name: "Ed25519" }, true, ["sign", "verify"]);
    const raw = new Uint8Array(await crypto.subtle.exportKey("raw", (pair as CryptoKeyPair).publicKey));
    const bytes = Uint8Array.of(1, ...raw);
    const id = new Uint8Array(await crypto.subtle.digest("SHA-256", Uint8Array.of(...new TextEncoder().encode("apc-log/0\n"), ...bytes)));
    const other = `apc-log/0+${Buffer.from(id.slice(0, 4)).toString("hex")}+${Buffer.from(bytes).toString("base64")}`;
    expect(await checkProof(proof, other)).toMatchObject({ state: "false", reason: expect.stringContaining("not signed with your key") });
    expect(await checkProof(proof, key.replace("0127c61b", "0127c61c"))).toMatchObject({ state: "false" });
  });
});

describe("what the page shows beside a proven entry", () => {
  const shown: ShownPacket = { packet_id: "p", packet_type: "TRANSFER", sender: "a", verdict: "refused", refusal_code: "THROTTLE_SCORE", session_id: "s", packet_hash: "h" };
  const entry = { packet_id: "p", packet_type: "TRANSFER", sender_agent_id: "a", verdict: "refused", refusal_code: "THROTTLE_SCORE", session_id: "s", packet_hash: "h" };

  it("agrees, also when a held packet was judged later by another entry", () => {
    expect(differenceOf(shown, entry)).toBeNull();
    expect(differenceOf(shown, { ...entry, verdict: "held", refusal_code: null })).toBeNull();
  });

  it("names the column that differs", () => {
    expect(differenceOf(shown, { ...entry, verdict: "accepted", refusal_code: null })).toBe("verdict");
    expect(differenceOf({ ...shown, sender: "b" }, entry)).toBe("sender_agent_id");
    expect(differenceOf({ ...shown, verdict: "accepted", refusal_code: null }, entry)).toBe("verdict");
  });
});
