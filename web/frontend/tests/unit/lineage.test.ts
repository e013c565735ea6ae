import { describe, expect, it } from "vitest";
import { depthsOf, gridOf, MOST_EDGES, nearOf, overviewOf } from "../../src/lib/lineage";
import type { Mark } from "../../src/state/timeline";

function mark(row: number, cause: number, parent = cause, verdict = "accepted"): Mark {
  return { seq: row * 3 + 1, time: row, lane: `agent-${row % 3}`, type: "IDEA", verdict, code: "", generation: 0, cause, parent };
}

/** A tree in which each packet causes two others. */
const tree = (size: number) => Array.from({ length: size }, (_, row) => mark(row, row === 0 ? -1 : (row - 1) >> 1, undefined, row % 10 === 9 ? "refused" : "accepted"));
const LANES = ["agent-0", "agent-1", "agent-2"];

describe("lineage", () => {
  it("counts depth from the root, and takes the longer way", () => {
    expect([...depthsOf([mark(0, -1), mark(1, 0), mark(2, 1), mark(3, 0, 2)])]).toEqual([0, 1, 2, 3]);
  });

  it("shows every packet of a small run once, inside its lane", () => {
    const { dots, edges, isBinned } = overviewOf(tree(100), LANES, "depth");
    expect(isBinned).toBe(false);
    expect(dots.map((dot) => dot.row)).toEqual([...Array(100).keys()]);
    expect(edges).toHaveLength(99);
    for (const dot of dots) expect(Math.floor(dot.y)).toBe(dot.row % 3);
    expect(new Set(dots.map((dot) => `${dot.x} ${dot.y}`)).size).toBe(100);
  });

  it.each(["depth", "order"] as const)("bins a large run by %s and loses no packet", (axis) => {
    const marks = tree(50_000);
    const { dots, isBinned } = overviewOf(marks, LANES, axis, 1_000);
    expect(isBinned).toBe(true);
    expect(dots.length).toBeLessThanOrEqual(1_000);
    expect(dots.reduce((sum, dot) => sum + dot.count, 0)).toBe(50_000);
    expect(dots.reduce((sum, dot) => sum + dot.refused, 0)).toBe(marks.filter((one) => one.verdict === "refused").length);
  });

  it("draws the lines of most packets when there are too many", () => {
    const marks = [...tree(4_000), ...Array.from({ length: 4_000 }, (_, row) => mark(4_000 + row, row))];
    const { edges, isCut } = overviewOf(marks, LANES, "order");
    expect(isCut).toBe(true);
    expect(edges).toHaveLength(MOST_EDGES);
    expect(overviewOf(tree(100), LANES, "order").isCut).toBe(false);
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
