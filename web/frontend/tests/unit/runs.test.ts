import { describe, expect, it } from "vitest";
import { lengthOfRun, nameOf } from "../../src/lib/runs";

describe("a run", () => {
  it("is called by its team and title, by its contract where it has neither", () => {
    expect(nameOf({ team: "desk", title: "A-4711", contract: "task" })).toEqual({ team: "desk", title: "A-4711" });
    expect(nameOf({ team: null, title: "A-4711", contract: "task" })).toEqual({ team: null, title: "A-4711" });
    expect(nameOf({ team: null, title: null, contract: "apc-1.0" })).toEqual({ team: "apc-1.0", title: null });
    expect(nameOf({ team: null, title: null, contract: null })).toEqual({ team: null, title: null });
  });

  it("has a length once it has ended", () => {
    const opened_at = "2026-11-27T05:53:50.500Z";
    expect(lengthOfRun({ opened_at, ended_at: "2026-11-27T05:53:51.750Z" })).toBe(1_250);
    expect(lengthOfRun({ opened_at, ended_at: "2026-11-27T05:53:50.400Z" })).toBe(0);
    expect(lengthOfRun({ opened_at, ended_at: null })).toBeNull();
  });
});
