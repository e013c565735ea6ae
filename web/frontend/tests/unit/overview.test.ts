import { describe, expect, it } from "vitest";
import { cellsOf, linesOf, MOST_LINES, MOST_MARKS, moveOf, packetNear, placeAt, planOf, xIn, type Window } from "../../src/lib/overview";
import { zoomed } from "../../src/parts/graph/window";
import type { Mark } from "../../src/state/timeline";

function mark(row: number, cause: number, verdict = "accepted"): Mark {
  return { seq: row * 3 + 1, time: row, lane: `agent-${row % 3}`, type: row % 2 ? "IDEA" : "EVAL", verdict, code: "", generation: 0, cause, parent: cause };
}

/** A tree in which each packet causes two others. */
const tree = (size: number) => Array.from({ length: size }, (_, row) => mark(row, row === 0 ? -1 : (row - 1) >> 1, row % 10 === 9 ? "refused" : "accepted"));
const LANES = ["agent-0", "agent-1", "agent-2"];
const WHOLE: Window = { from: 0, to: 1, width: 1_100, height: 540 };
const sum = (numbers: Iterable<number>) => [...numbers].reduce((one, other) => one + other, 0);

describe("the overview of a lineage", () => {
  it.each(["depth", "order"] as const)("places every packet by %s inside its lane, no two at one place", (axis) => {
    const plan = planOf(tree(100), LANES, axis);
    plan.y.forEach((y, row) => expect(Math.floor(y)).toBe(row % 3));
    expect(Math.min(...plan.x)).toBe(0);
    expect(Math.max(...plan.x)).toBeLessThanOrEqual(1);
    expect(new Set(Array.from(plan.x, (x, row) => `${x} ${plan.y[row]}`)).size).toBe(100);
  });

  it("draws a cause left of what it causes, however many packets share a depth", () => {
    const plan = planOf(tree(5_000), LANES, "depth");
    plan.above.forEach((above, row) => above >= 0 && expect(plan.x[above]).toBeLessThan(plan.x[row]!));
  });

  it.each(["depth", "order"] as const)("draws a large run by %s as at most so many marks and loses no packet", (axis) => {
    const marks = tree(100_000);
    const cells = cellsOf(planOf(marks, LANES, axis), WHOLE);
    expect(cells.filled.length).toBeLessThanOrEqual(MOST_MARKS);
    expect(cells.packets).toBe(100_000);
    expect(sum(cells.counts)).toBe(100_000);
    expect(sum(cells.refused)).toBe(marks.filter((one) => one.verdict === "refused").length);
    expect(cellsOf(planOf(marks, LANES, axis), WHOLE, 1_000).filled.length).toBeLessThanOrEqual(1_000);
  });

  it("tells packets apart when it is zoomed", () => {
    const plan = planOf(tree(100_000), LANES, "depth");
    const cells = cellsOf(plan, { ...WHOLE, from: 0.9, to: 0.9 + 1 / 500 });
    expect(cells.packets).toBeGreaterThan(50);
    expect(cells.filled.length).toBeGreaterThan(cells.packets * 0.9);
  });

  it("draws a line for each cause of a small run, and a part of those of a large one", () => {
    const few = linesOf(planOf(tree(100), LANES, "order"), WHOLE, { side: 1, packets: 100 });
    expect(few.ends).toHaveLength(99 * 4);
    expect(few.isCut).toBe(false);
    const plan = planOf(tree(30_000), LANES, "order");
    const many = linesOf(plan, WHOLE, cellsOf(plan, WHOLE));
    expect(many.ends).toHaveLength(MOST_LINES * 4);
    expect(many.isCut).toBe(true);
    const widths = Array.from({ length: MOST_LINES }, (_, line) => many.ends[line * 4 + 2]!);
    expect(widths.filter((x) => x > WHOLE.width / 2).length, "lines all over the window").toBeGreaterThan(MOST_LINES / 3);
  });

  it("draws a line that leaves the window, and none that lies outside", () => {
    const plan = planOf([mark(0, -1), mark(1, 0), mark(2, 1), mark(3, 2)], LANES, "order");
    const { ends } = linesOf(plan, { ...WHOLE, from: 0.5, to: 1 }, { side: 1, packets: 2 });
    expect(ends).toHaveLength(2 * 4);
    expect(Math.min(...ends)).toBeLessThan(0);
  });

  it("finds the packet under a point, and none where nothing is drawn", () => {
    const plan = planOf(tree(100), LANES, "order");
    const cells = cellsOf(plan, WHOLE);
    expect(packetNear(cells, xIn(WHOLE, plan.x[50]!), (plan.y[50]! * 540) / 3)).toBe(50);
    expect(packetNear(cells, 500, 5)).toBe(-1);
  });

  it("keeps a place under the hand when it zooms, and stays inside the whole", () => {
    const { from, to } = zoomed({ from: 0.2, to: 0.6 }, 0.5, 0.3);
    expect(to - from).toBeCloseTo(0.2);
    expect((0.3 - from) / (to - from)).toBeCloseTo(0.25);
    expect(zoomed({ from: 0.2, to: 0.6 }, 9, 0.3)).toEqual({ from: 0, to: 1 });
    expect(placeAt(WHOLE, xIn(WHOLE, 0.37))).toBeCloseTo(0.37);
  });

  it("moves a drawing of one window onto another", () => {
    const [drawn, seen] = [{ ...WHOLE, from: 0.2, to: 0.4 }, { ...WHOLE, from: 0.25, to: 0.3 }];
    const { scale, shift } = moveOf(drawn, seen);
    for (const place of [0.1, 0.25, 0.9]) expect(xIn(drawn, place) * scale + shift).toBeCloseTo(xIn(seen, place));
  });
});
