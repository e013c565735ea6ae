import { describe, expect, it } from "vitest";
import { boundsOf, fromField, lengthOf, readRange, toField } from "../../src/lib/range";
import { staysAtEnd } from "../../src/lib/scroll";
import { nextSort, readSort, sorted } from "../../src/lib/sort";

describe("the order of a list", () => {
  it("is a column of the address, with a minus downwards", () => {
    expect([readSort("cost"), readSort("-cost"), readSort(undefined), readSort("")]).toEqual([{ name: "cost", isDown: false }, { name: "cost", isDown: true }, null, null]);
    expect([nextSort(null, "cost"), nextSort(readSort("cost"), "cost"), nextSort(readSort("-cost"), "cost"), nextSort(readSort("-cost"), "name")]).toEqual(["cost", "-cost", undefined, "name"]);
  });

  it("has what is unknown last in both directions", () => {
    const rows = [{ cost: 2 }, { cost: null }, { cost: 10 }];
    const column = { value: (row: { cost: number | null }) => row.cost };
    expect(sorted(rows, column, false).map((row) => row.cost)).toEqual([2, 10, null]);
    expect(sorted(rows, column, true).map((row) => row.cost)).toEqual([10, 2, null]);
    expect(sorted(rows, undefined, true)).toBe(rows);
  });
});

describe("a range of time", () => {
  const now = Date.parse("2026-01-02T12:00:30Z");

  it("is relative to now by whole minutes, or two times", () => {
    expect(boundsOf(readRange({ since: "1h", until: "2026-01-02T00:00:00Z" }), now)).toEqual({ since: "2026-01-02T11:00:00.000Z", until: undefined });
    expect(boundsOf(readRange({ since: "2026-01-01T00:00:00Z", until: "2026-01-02T00:00:00Z" }), now)).toEqual({ since: "2026-01-01T00:00:00Z", until: "2026-01-02T00:00:00Z" });
    expect([lengthOf({ since: "1d" }, now), lengthOf({}, now)]).toEqual([86_430_000, null]);
  });

  it.each(["yesterday", "1h; drop", "2026-13-45T00:00:00Z", 7, null, "<b>"])("leaves %s of an address out", (since) => expect(readRange({ since, until: since })).toEqual({ since: undefined, until: undefined }));

  it("comes from a field in the zone of the browser, and goes back into it", () => {
    const text = "2026-01-02T12:34";
    expect(toField(fromField(text))).toBe(text);
    expect([fromField(""), fromField("no time"), toField("1h"), toField(undefined)]).toEqual([undefined, undefined, "", ""]);
  });
});

describe("the end of a list that grows", () => {
  const box = (scrollTop: number, scrollHeight: number) => ({ scrollTop, scrollHeight, clientHeight: 400 });

  it("is left by a move up alone: rows that came before the event of our own scroll are none", () => {
    expect(staysAtEnd(true, 0, box(600, 1400))).toBe(true);
    expect(staysAtEnd(true, 600, box(500, 1400))).toBe(false);
    expect(staysAtEnd(true, 600, box(590, 1000))).toBe(true);
  });

  it("is joined again near it, not by a move down", () => {
    expect(staysAtEnd(false, 0, box(300, 1400))).toBe(false);
    expect(staysAtEnd(false, 0, box(940, 1400))).toBe(true);
  });
});
