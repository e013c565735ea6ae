import { describe, expect, it } from "vitest";
import { keyOf, nameOf, readIssueSearch, wordsOf, type IssueGroup } from "../../src/lib/issues";

describe("issues in the address", () => {
  it("keeps what is known, and leaves the rest out", () => {
    const issue = { kind: "failure", code: "HANDLER_ERROR", rule: "KeyError" };
    expect(readIssueSearch({ group: "agent", kind: "refusal", status: "open", agent: "red-1", issue })).toEqual({ group: "agent", kind: "refusal", status: "open", agent: "red-1", run: undefined, issue: { ...issue, field: undefined, agent_id: undefined } });
    expect(readIssueSearch({ group: "code; DROP", kind: "x", status: 1, issue: { kind: "<b>" } })).toEqual({ group: undefined, kind: undefined, status: undefined, agent: undefined, run: undefined, issue: undefined });
    for (const odd of [null, "x", 7, []]) expect(readIssueSearch({ issue: odd }).issue).toBeUndefined();
  });
  it("names a group by all of its columns", () => {
    const group = { kind: "refusal", code: "UNROUTABLE", rule: null, field: "", agent_id: null } as unknown as IssueGroup;
    expect(nameOf(keyOf(group))).toBe("refusal · UNROUTABLE · * ·  · *");
  });
});

describe("issues in words", () => {
  it("says the plain word, and the protocol's beside it", () => {
    expect(wordsOf({ kind: "refusal", code: "UNROUTABLE" })).toEqual({ plain: "No such recipient", protocol: "UNROUTABLE" });
    expect(wordsOf({ kind: "failure", code: "HANDLER_ERROR", rule: "KeyError" })).toEqual({ plain: "KeyError", protocol: "HANDLER_ERROR" });
    expect(wordsOf({ kind: "failure", code: "HANDLER_ERROR", rule: "" }).plain).toBe("Handler failed");
    expect(wordsOf({ kind: "refusal", agent_id: "<script>" }).plain).toBe("<script>");
  });
});
