/** The lineage of a session as a graph to draw: in O(packets), at most so many marks, the rest binned. */
import type { Mark } from "../state/timeline";

export const MOST_MARKS = 20_000;
/** Lines between them: more would be one grey area, and take a second to draw without a graphics card. */
export const MOST_EDGES = 3_000;
export const MOST_NEAR = 300;

/** How many packets lie on the longest known way from a root to each row. */
export function depthsOf(marks: readonly Mark[]): Int32Array {
  const depths = new Int32Array(marks.length);
  marks.forEach((mark, row) => {
    for (const above of [mark.cause, mark.parent]) if (above >= 0 && above < row) depths[row] = Math.max(depths[row]!, depths[above]! + 1);
  });
  return depths;
}

export interface Dot {
  /** The first row that it stands for. */
  row: number;
  /** How many packets it stands for. */
  count: number;
  refused: number;
  /** Depth or order, 0 to 1. */
  x: number;
  /** Lane, 0 to the number of lanes. */
  y: number;
}

export interface Overview {
  dots: Dot[];
  /** Pairs of places in `dots`. */
  edges: [number, number][];
  isBinned: boolean;
  /** The lines of most packets are drawn, the others not. */
  isCut: boolean;
  deepest: number;
}

/** Every packet as a dot, or, beyond `most`, bins of the same lane and place. */
export function overviewOf(marks: readonly Mark[], lanes: readonly string[], axis: "depth" | "order", most = MOST_MARKS): Overview {
  const depths = depthsOf(marks);
  const deepest = depths.reduce((one, other) => Math.max(one, other), 0);
  const last = Math.max(1, axis === "depth" ? deepest : marks.length - 1);
  const place = (row: number) => (axis === "depth" ? depths[row]! : row);
  const isBinned = marks.length > most;
  const columns = isBinned ? Math.max(1, Math.floor(most / (2 * Math.max(1, lanes.length)))) : last + 1;
  const laneOf = new Map(lanes.map((lane, index) => [lane, index]));
  const dots: Dot[] = [];
  const dotOf = new Int32Array(marks.length);
  const bins = new Map<number, number>();
  const crowd = new Map<number, number>();
  marks.forEach((mark, row) => {
    const lane = laneOf.get(mark.lane) ?? 0;
    const column = isBinned ? Math.min(columns - 1, Math.floor((place(row) / last) * columns)) : place(row);
    const cell = lane * (columns + 1) + column;
    const isRefused = mark.verdict === "refused";
    const bin = cell * 2 + (isRefused ? 1 : 0);
    const known = isBinned ? bins.get(bin) : undefined;
    if (known !== undefined) {
      dots[known]!.count += 1;
      dots[known]!.refused += isRefused ? 1 : 0;
      dotOf[row] = known;
      return;
    }
    const before = crowd.get(cell) ?? 0;
    crowd.set(cell, before + 1);
    // Dots of the same place fan out inside their lane: 0, 1/2, 1/4, 3/4, 1/8 …
    let [fraction, offset] = [0.5, 0];
    for (let rest = before; rest > 0; rest >>= 1, fraction /= 2) if (rest & 1) offset += fraction;
    bins.set(bin, dots.length);
    dotOf[row] = dots.length;
    dots.push({ row, count: 1, refused: isRefused ? 1 : 0, x: column / Math.max(1, isBinned ? columns - 1 : last), y: lane + 0.1 + offset * 0.8 });
  });
  const edges: [number, number][] = [];
  const weight = new Map<number, number>();
  marks.forEach((mark, row) => {
    const above = mark.cause >= 0 ? mark.cause : mark.parent;
    if (above < 0) return;
    const [from, to] = [dotOf[above]!, dotOf[row]!];
    const name = from * dots.length + to;
    if (from === to) return;
    const before = weight.get(name) ?? 0;
    weight.set(name, before + 1);
    if (before === 0) edges.push([from, to]);
  });
  const weightOf = ([from, to]: [number, number]) => weight.get(from * dots.length + to)!;
  if (edges.length > MOST_EDGES) edges.sort((one, other) => weightOf(other) - weightOf(one));
  return { dots, edges: edges.slice(0, MOST_EDGES), isBinned, isCut: edges.length > MOST_EDGES, deepest };
}

export interface Near {
  rows: number[];
  edges: { from: number; to: number; kind: "cause" | "answer" }[];
  /** There is more around it than is shown. */
  isCut: boolean;
}

/** What a packet comes from and what comes of it, the nearest first. */
export function nearOf(marks: readonly Mark[], row: number, most = MOST_NEAR): Near {
  const below = new Map<number, number[]>();
  const link = (above: number, under: number) => {
    if (above < 0) return;
    const known = below.get(above);
    if (known) known.push(under);
    else below.set(above, [under]);
  };
  marks.forEach((mark, under) => {
    link(mark.cause, under);
    if (mark.parent !== mark.cause) link(mark.parent, under);
  });
  const found = new Set([row]);
  let isCut = false;
  const add = (one: number, queue: number[]) => {
    if (one < 0 || found.has(one)) return;
    if (found.size >= most) isCut = true;
    else {
      found.add(one);
      queue.push(one);
    }
  };
  const [up, down] = [[row], [row]];
  for (let [a, b] = [0, 0]; a < up.length || b < down.length; ) {
    if (a < up.length) {
      const mark = marks[up[a++]!]!;
      add(mark.cause, up);
      add(mark.parent, up);
    }
    if (b < down.length) for (const under of below.get(down[b++]!) ?? []) add(under, down);
  }
  const rows = [...found].sort((one, other) => one - other);
  const edges = rows.flatMap((to): Near["edges"] => {
    const { cause, parent } = marks[to]!;
    const list: Near["edges"] = [];
    if (found.has(cause)) list.push({ from: cause, to, kind: "cause" });
    if (parent !== cause && found.has(parent)) list.push({ from: parent, to, kind: "answer" });
    return list;
  });
  return { rows, edges, isCut };
}

/** A plain place for each packet: columns by depth. For graphs that the layout does not manage in time. */
export function gridOf(marks: readonly Mark[], near: Near, width: number, height: number): Map<number, { x: number; y: number }> {
  const depths = depthsOf(marks);
  const filled = new Map<number, number>();
  const first = Math.min(...near.rows.map((row) => depths[row]!));
  return new Map(
    near.rows.map((row) => {
      const column = depths[row]! - first;
      const line = filled.get(column) ?? 0;
      filled.set(column, line + 1);
      return [row, { x: column * width, y: line * height }];
    }),
  );
}
