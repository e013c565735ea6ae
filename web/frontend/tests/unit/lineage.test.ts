import { describe, expect, it } from "vitest";
import { depthsOf, gridOf, nearOf } from "../../src/lib/lineage";
import type { Mark } from "../../src/state/timeline";

function mark(row: number, cause: number, parent = cause): Mark {
  return { seq: row * 3 + 1, time: row, lane: `agent-${row % 3}`, type: "IDEA", verdict: "accepted", code: "", generation: 0, cause, parent };
}

/** A tree in which each packet causes two others. */
const tree = (size: number) => Array.from({ length: size }, (_, row) => mark(row, row === 0 ? -1 : (row - 1) >> 1));

describe("lineage", () => {
  it("counts depth from the root, and takes the longer way", () => {
    expect([...depthsOf([mark(0, -1), mark(1, 0), mark(2, 1), mark(3, 0, 2)])]).toEqual([0, 1, 2, 3]);
  });

  it("finds what is around a packet, up and down, the nearest first", () => {
    const near = nearOf(tree(1_000), 5, 9);
    expect(near.rows).toEqual(expect.arrayContaining([0, 2, 5, 11, 12]));
    expect(near.rows).toHaveLength(9);
    expect(near.isCut).toBe(true);
    expect(near.edges.every((edge) => near.rows.includes(edge.from) && near.rows.includes(edge.to))).toBe(true);
    expect(nearOf(tree(7), 1).rows).toEqual([0, 1, 3, 4]);
  });

  it("has a place for each packet without a layout", () => {
    const marks = tree(40);
    const near = nearOf(marks, 0);
    const places = gridOf(marks, near, 10, 10);
    expect(new Set([...places.values()].map(({ x, y }) => `${x} ${y}`)).size).toBe(40);
  });
});
