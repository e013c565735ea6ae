import { describe, expect, it } from "vitest";
import { inOrder, outcome, placeWords, progress, type Verification } from "../../src/lib/verification";

const job = (given: Partial<Verification>): Verification => ({ state: "none", by: null, started_at: null, ended_at: null, entries: 0, total: 0, is_whole: null, findings: [], unlisted: 0, words: null, why_not: null, ...given });
const finding = (shard: number | null, seq: number, message = "differs from its leaf", place = `entry ${seq}`) => ({ shard, seq, message, place });

describe("a verification in words", () => {
  it("tells nothing before and while it runs", () => expect([outcome(job({})), outcome(job({ state: "running" }))]).toEqual([null, null]));

  it("tells of a whole log how much was compared", () => {
    expect(outcome(job({ state: "done", is_whole: true, entries: 1 }))).toEqual({ tone: "good", words: "The log is whole: 1 entry fits tree, checkpoints and sessions." });
    expect(outcome(job({ state: "done", is_whole: true, entries: 12_000 }))?.words).toContain("12,000 entries fit");
  });

  it("names the first place that does not fit, and counts all", () => {
    const findings = [finding(1, 3), finding(null, 0, "a view differs", "agent_state"), finding(0, 1_200)];
    expect(outcome(job({ state: "done", is_whole: false, findings, unlisted: 2 }))).toEqual({
      tone: "bad",
      words: "The log is not whole: 5 findings. The first: Shard 0, entry 1,200. Differs from its leaf.",
    });
    expect(inOrder(findings).map((one) => one.shard)).toEqual([0, 1, null]);
  });

  it("names the row where that is not the entry", () => {
    expect(placeWords(finding(0, 7, "", "log_tiles 1/0"))).toBe("Shard 0, log_tiles 1/0 (from entry 7)");
    expect(placeWords(finding(null, 0, "", "shards"))).toBe("Shards");
  });

  it("never takes a failure for a finding", () => {
    expect(outcome(job({ state: "failed", words: "the database failed: gone" }))).toEqual({ tone: "bad", words: "The verification failed, and says nothing of the log: the database failed: gone." });
    expect(outcome(job({ state: "cancelled", entries: 3, total: 10 }))?.words).toBe("Cancelled after 3 of 10 entries: nothing is known of the rest.");
  });

  it("tells how far it is", () => {
    expect(progress(job({ state: "running" }))).toEqual({ share: 0, words: "Begins" });
    expect(progress(job({ state: "running", entries: 5, total: 20 }))).toEqual({ share: 0.25, words: "5 of 20 entries recomputed" });
    expect(progress(job({ state: "running", entries: 20, total: 20 })).words).toBe("Compares sessions and derived tables");
  });
});
