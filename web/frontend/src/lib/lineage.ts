/** What a packet comes from, and what comes of it. */
import type { Mark } from "../state/timeline";

export const MOST_NEAR = 300;

/** How many packets lie on the longest known way from a root to each row. */
export function depthsOf(marks: readonly Mark[]): Int32Array {
  const depths = new Int32Array(marks.length);
  marks.forEach((mark, row) => {
    for (const above of [mark.cause, mark.parent]) if (above >= 0 && above < row) depths[row] = Math.max(depths[row]!, depths[above]! + 1);
  });
  return depths;
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
