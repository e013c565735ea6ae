/** The lineage of a whole session as a picture: a place for every packet, computed once, and the marks and lines of a view of it. */
import type { Mark } from "../state/timeline";
import { depthsOf } from "./lineage";

export const MOST_MARKS = 20_000;
/** Lines between them: more would be one grey area. */
export const MOST_LINES = 2_000;
/** Packets whose lines are looked at; of more, every so many: it has to be done while a hand rests. */
const LOOKED_AT = 20_000;
/** Width and height of the smallest mark with its gap, in pixels. */
const LEAST_CELL = 4;
/** Pixels left free at both sides, so that the first and the last mark are whole. */
const MARGIN = 10;
/** Packets of a place that still fan out in one column. */
const COLUMN = 8;
/** By order, fewer packets than this lie on one line of their lane. */
const SPARSE = 2_000;

export type Axis = "depth" | "order";

export interface Plan {
  /** Causal depth or order, 0 to 1. */
  x: Float64Array;
  /** Lane, 0 to the number of lanes. */
  y: Float32Array;
  /** Row of the packet that each comes from; -1 is none. */
  above: Int32Array;
  refused: Uint8Array;
  /** A place in `types`. */
  type: Uint16Array;
  types: string[];
  lanes: number;
  deepest: number;
}

/** Half, a quarter, three quarters, an eighth …: places inside 0 to 1 that stay apart however many there are. */
function spread(number: number): number {
  let [fraction, offset] = [0.5, 0];
  for (let rest = number + 1; rest > 0; rest >>= 1, fraction /= 2) if (rest & 1) offset += fraction;
  return offset;
}

/** Return the place of every packet in O(packets). Packets of one depth and lane fan out, in their order. */
export function planOf(marks: readonly Mark[], lanes: readonly string[], axis: Axis): Plan {
  const size = marks.length;
  const depths = depthsOf(marks);
  const deepest = depths.reduce((one, other) => Math.max(one, other), 0);
  const plan: Plan = { x: new Float64Array(size), y: new Float32Array(size), above: new Int32Array(size), refused: new Uint8Array(size), type: new Uint16Array(size), types: [], lanes: lanes.length, deepest };
  const laneOf = new Map(lanes.map((lane, index) => [lane, index]));
  const typeOf = new Map<string, number>();
  const columns = axis === "depth" ? deepest + 1 : 1;
  const groups = new Int32Array(size);
  const sizes = new Int32Array(columns * Math.max(1, lanes.length));
  marks.forEach((mark, row) => {
    groups[row] = (laneOf.get(mark.lane) ?? 0) * columns + (axis === "depth" ? depths[row]! : 0);
    sizes[groups[row]!]! += 1;
    plan.above[row] = mark.cause >= 0 ? mark.cause : mark.parent;
    plan.refused[row] = mark.verdict === "refused" ? 1 : 0;
    if (!typeOf.has(mark.type)) typeOf.set(mark.type, plan.types.push(mark.type) - 1);
    plan.type[row] = typeOf.get(mark.type)!;
  });
  const seen = new Int32Array(sizes.length);
  for (let row = 0; row < size; row += 1) {
    const group = groups[row]!;
    const place = seen[group]!++;
    const isFanned = axis === "depth" || size > SPARSE;
    plan.y[row] = Math.floor(group / columns) + (isFanned ? 0.1 + 0.8 * spread(place) : 0.5);
    const within = sizes[group]! > COLUMN ? (place / sizes[group]!) * 0.85 : 0;
    plan.x[row] = axis === "depth" ? depths[row]! + within : row;
  }
  const last = plan.x.reduce((one, other) => Math.max(one, other), 0) || 1;
  for (let row = 0; row < size; row += 1) plan.x[row]! /= last;
  return plan;
}

/** A window on a plan: `from` to `to` of its width, drawn on so many pixels. */
export interface Window {
  from: number;
  to: number;
  width: number;
  height: number;
}

export interface Cells {
  /** Width and height of a cell in pixels; a cell is drawn as one mark. */
  side: number;
  columns: number;
  rows: number;
  /** Packets by cell. */
  counts: Uint32Array;
  refused: Uint32Array;
  /** The first packet of a cell. */
  first: Int32Array;
  /** Cells that have packets. */
  filled: Int32Array;
  packets: number;
}

export function xIn(window: Window, x: number): number {
  return MARGIN + ((x - window.from) / (window.to - window.from)) * (window.width - 2 * MARGIN);
}

export function placeAt(window: Window, pixels: number): number {
  return window.from + ((pixels - MARGIN) / (window.width - 2 * MARGIN)) * (window.to - window.from);
}

/** How a drawing of one window has to be stretched and moved, in pixels, to lie on another one of the same width. */
export function moveOf(drawn: Window, seen: Window): { scale: number; shift: number } {
  const scale = (drawn.to - drawn.from) / (seen.to - seen.from);
  return { scale, shift: xIn(seen, drawn.from) - scale * MARGIN };
}

/** Return what is seen in a window as at most `most` marks: marks that would lie on each other are one. */
export function cellsOf(plan: Plan, window: Window, most = MOST_MARKS): Cells {
  const { width, height } = window;
  let side = Math.max(LEAST_CELL, Math.sqrt((width * height) / most));
  let [columns, rows] = [Math.ceil(width / side), Math.ceil(height / side)];
  while (columns * rows > most && side < width) [side, columns, rows] = [side * 1.02, Math.ceil(width / (side * 1.02)), Math.ceil(height / (side * 1.02))];
  const size = columns * rows;
  const cells: Cells = { side, columns, rows, counts: new Uint32Array(size), refused: new Uint32Array(size), first: new Int32Array(size), filled: new Int32Array(0), packets: 0 };
  const filled: number[] = [];
  const lane = height / Math.max(1, plan.lanes);
  for (let row = 0; row < plan.x.length; row += 1) {
    const x = xIn(window, plan.x[row]!);
    if (x < 0 || x >= width) continue;
    const cell = Math.min(rows - 1, Math.floor((plan.y[row]! * lane) / side)) * columns + Math.floor(x / side);
    if (cells.counts[cell] === 0) {
      cells.first[cell] = row;
      filled.push(cell);
    }
    cells.counts[cell]! += 1;
    cells.refused[cell]! += plan.refused[row]!;
    cells.packets += 1;
  }
  return { ...cells, filled: Int32Array.from(filled) };
}

export interface Lines {
  /** Four numbers a line: x and y of its ends in pixels. */
  ends: Float32Array;
  /** There are more lines than these. */
  isCut: boolean;
}

/** Return lines between packets and what they come from, as far as an end is seen: each pair of cells once, those of most packets first. */
export function linesOf(plan: Plan, window: Window, { side, packets }: Pick<Cells, "side" | "packets">, most = MOST_LINES): Lines {
  const lane = window.height / Math.max(1, plan.lanes);
  const down = Math.ceil(window.height / side) + 1;
  const left = Math.floor(xIn(window, 0) / side);
  const across = Math.ceil(xIn(window, 1) / side) - left + 1;
  const cellOf = (row: number) => (Math.floor(xIn(window, plan.x[row]!) / side) - left) * down + Math.floor((plan.y[row]! * lane) / side);
  const isSeen = (row: number) => plan.x[row]! >= window.from && plan.x[row]! <= window.to;
  const cells = across * down;
  const names = new Float64Array(plan.x.length);
  const every = Math.max(1, Math.ceil(packets / LOOKED_AT));
  let [size, seen] = [0, 0];
  for (let row = 0; row < plan.x.length; row += 1) {
    const above = plan.above[row]!;
    if (above < 0 || !(isSeen(row) || isSeen(above)) || seen++ % every > 0) continue;
    const from = cellOf(above);
    const to = cellOf(row);
    if (from !== to) names[size++] = from * cells + to;
  }
  const weights = heaviest(names.subarray(0, size).sort(), most);
  const ends = new Float32Array(weights.names.length * 4);
  weights.names.forEach((name, line) => {
    [Math.floor(name / cells), name % cells].forEach((cell, end) => {
      ends[line * 4 + end * 2] = (Math.floor(cell / down) + left + 0.5) * side;
      ends[line * 4 + end * 2 + 1] = ((cell % down) + 0.5) * side;
    });
  });
  return { ends, isCut: weights.isCut || every > 1 };
}

/** Of sorted names that repeat, return the `most` that repeat most often, each once; of equal ones every so many. */
function heaviest(names: Float64Array, most: number): { names: number[]; isCut: boolean } {
  const byWeight = new Map<number, number[]>();
  for (let at = 0, begin = 0; at < names.length; begin = at) {
    while (at < names.length && names[at] === names[begin]) at += 1;
    const equal = byWeight.get(at - begin);
    if (equal) equal.push(names[begin]!);
    else byWeight.set(at - begin, [names[begin]!]);
  }
  const found: number[] = [];
  let isCut = false;
  for (const [, equal] of [...byWeight].sort(([one], [other]) => other - one)) {
    const room = Math.min(equal.length, most - found.length);
    for (let place = 0; place < room; place += 1) found.push(equal[Math.floor((place * equal.length) / room)]!);
    isCut ||= room < equal.length;
  }
  return { names: found, isCut };
}

/** The packet that is drawn nearest to a point, at most 12 px away; -1 is none. */
export function packetNear(cells: Cells, x: number, y: number): number {
  let [best, distance] = [-1, 12];
  const [column, line] = [Math.floor(x / cells.side), Math.floor(y / cells.side)];
  const reach = Math.ceil(distance / cells.side);
  for (let row = Math.max(0, line - reach); row <= Math.min(cells.rows - 1, line + reach); row += 1) {
    for (let at = Math.max(0, column - reach); at <= Math.min(cells.columns - 1, column + reach); at += 1) {
      const cell = row * cells.columns + at;
      const away = Math.hypot((at + 0.5) * cells.side - x, (row + 0.5) * cells.side - y);
      if (cells.counts[cell]! > 0 && away < distance) [best, distance] = [cells.first[cell]!, away];
    }
  }
  return best;
}
