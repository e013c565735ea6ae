import { describe, expect, it } from "vitest";
import { isStuck, loadOf, queueWords, quotaWords, stateOf, type Agent } from "../../src/lib/agents";

const agent = (given: Partial<Agent>): Agent => ({ agent_id: "a", kind: "agent", role: "r", swarm: "s", rights: [], handles: [], broker_user: null, is_revoked: false, keys: [], last_seen: null, is_alive: false, open_deliveries: 0, most_open: 1000, quota: null, waiting: null, consumers: null, ...given });

describe("an agent in words", () => {
  it("has one state", () => {
    expect([{ is_alive: true }, {}, { is_revoked: true, is_alive: true }, { kind: "person" as const }].map((one) => stateOf(agent(one)))).toEqual(["alive", "silent", "revoked", "person"]);
  });

  it("never takes unknown queues for empty ones", () => {
    expect(queueWords(agent({}))).toBe("unknown");
    expect(queueWords(agent({ waiting: 0, consumers: 0 }))).toBe("0 waiting; no process reads them");
    expect(queueWords(agent({ waiting: 1200, consumers: 2 }))).toBe("1,200 waiting; 2 processes read them");
    expect(queueWords(agent({ kind: "person" }))).toBe("has no queue");
    expect([{}, { waiting: 3, consumers: 0 }, { waiting: 0, consumers: 0 }, { waiting: 3, consumers: 1 }].map((one) => isStuck(agent(one)))).toEqual([false, true, false, false]);
  });

  it("tells its quota and how much of its room is used", () => {
    expect(quotaWords(agent({}))).toBe("no quota");
    expect(quotaWords(agent({ quota: { packets_per_second: 10_000, burst: 100 } }))).toBe("10,000 a second, 100 at once");
    expect(quotaWords(agent({ quota: { packets_per_second: 0.1, burst: 1 } }))).toBe("one every 10 s, 1 at once");
    expect([0, 801, 1000, 2000].map((open) => loadOf(agent({ open_deliveries: open })).tone)).toEqual(["", "warn", "bad", "bad"]);
  });
});
