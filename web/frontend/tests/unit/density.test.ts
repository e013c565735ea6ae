import { describe, expect, it } from "vitest";
import { binsOf, isDense } from "../../src/parts/timeline/density";
import type { Mark } from "../../src/state/timeline";

const mark = (type: string, verdict = "accepted"): Mark => ({ seq: 1, time: 0, lane: "a", type, verdict, code: "", generation: 0, cause: -1, parent: -1 });

describe("the density of a timeline", () => {
  it("begins where marks would lie on each other", () => {
    expect(isDense(329, 6, 1100)).toBe(false);
    expect(isDense(30_000, 17, 1100)).toBe(true);
  });

  it("counts every packet once, with its refusals, under the type of most", () => {
    const marks = [mark("IDEA"), mark("EVAL", "refused"), mark("EVAL"), mark("EVAL"), mark("CLAIM")];
    const bins = binsOf(marks, 0, marks.length, 2, 30, (row) => (row < 4 ? [0, 1] : [1, 29]), (row) => row !== 4);
    expect([...bins.counts].reduce((sum, one) => sum + one)).toBe(5);
    expect([bins.counts[0], bins.refused[0], bins.clear[0], bins.types[bins.type[0]!]]).toEqual([4, 1, 4, "EVAL"]);
    const last = bins.columns + 9;
    expect([bins.counts[last], bins.clear[last], bins.types[bins.type[last]!], bins.most]).toEqual([1, 0, "CLAIM", 4]);
  });

  it("leaves out what is not seen", () => {
    expect(binsOf([mark("IDEA")], 0, 1, 1, 30, () => null, () => true).most).toBe(0);
  });
});
