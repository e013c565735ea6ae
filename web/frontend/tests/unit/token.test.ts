import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { ask, authorization, dropToken, proofOf, setToken, startOf } from "../../src/api/token";

const START = "0123456789abcdef".repeat(4);

function refusal(start = START): Response {
  return new Response("{}", { status: 401, headers: { "WWW-Authenticate": `Bearer start="${start}"` } });
}

beforeEach(() => {
  const kept = new Map<string, string>();
  vi.stubGlobal("localStorage", { getItem: (name: string) => kept.get(name) ?? null, setItem: (name: string, value: string) => kept.set(name, value), removeItem: (name: string) => kept.delete(name) });
  vi.stubGlobal("location", { port: "8083", protocol: "http:" });
});
afterEach(() => vi.unstubAllGlobals());

describe("the token of a link", () => {
  it("has the proof that the server expects", async () => {
    // proof_of("a-token", START, 8083) of apc_web.local_token; tests/security/web/test_local_token.py has the same.
    expect(await proofOf("a-token", START, "8083")).toBe("acd28cb6f440f086ed8ea49dc0953ab4b67d998772b5bf8ec2d32b87b1ea3b75");
  });

  it("is never sent: a refusal is answered with its proof, once", async () => {
    const sent: (string | null)[] = [];
    const answer = vi.fn(async (request: Request) => {
      sent.push(request.headers.get("Authorization"));
      return refusal();
    });
    vi.stubGlobal("fetch", answer);
    setToken("a-token");
    const response = await ask(new Request("http://127.0.0.1:8083/api/v1/about"));
    const proof = await proofOf("a-token", START, "8083");
    expect([response.status, sent]).toEqual([401, [null, `Bearer ${proof}`]]);
    await ask(new Request("http://127.0.0.1:8083/api/v1/about"));
    expect(sent.slice(2)).toEqual([`Bearer ${proof}`]); // wrong once, it is not repeated
  });

  it("is proven again to a server that has started again, by every request that was under way", async () => {
    const next = START.split("").reverse().join("");
    const proof = await proofOf("a-token", next, "8083");
    vi.stubGlobal("fetch", async (request: Request) => (request.headers.get("Authorization") === `Bearer ${proof}` ? new Response(await request.text()) : refusal(next)));
    setToken("a-token");
    const post = (body: string) => ask(new Request("http://127.0.0.1:8083/", { method: "POST", body })).then((response) => response.text());
    expect(await Promise.all([post("one"), post("two")])).toEqual(["one", "two"]);
    dropToken();
    expect(authorization()).toEqual({});
  });

  it("has nothing to prove where a server has accounts, or names no start", () => {
    expect([new Response("", { status: 401 }), refusal("x"), new Response("", { status: 403 })].map(startOf)).toEqual([null, null, null]);
  });
});
