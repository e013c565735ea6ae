/** Draws marks on a canvas: a lane an agent, shape and colour by type, hollow when refused. */
import type { Mark } from "../../state/timeline";
import { typeColour, typeShape, type Shape } from "../../lib/words";
import { binsOf, drawBins, isDense, type Bins } from "./density";

export const LANE = 26;
export const AXIS = 24;
const SIZE = 4.2;

export interface View {
  width: number;
  /** Width of the column of names. */
  left: number;
  /** Positions of the first and the last visible place. */
  from: number;
  to: number;
  /** The place of a row: its number, or its time. */
  place: (row: number) => number;
}

export interface Scene {
  marks: readonly Mark[];
  lanes: readonly string[];
  /** Rows after this one are drawn faint. */
  at: number;
  selected: number;
  hovered: number;
  /** Rows that the filters leave; null is all. */
  kept: ReadonlySet<number> | null;
  ticks: { place: number; words: string }[];
  /** Bars for all of them, when they are too many for marks; see `barsOf`. */
  bars: Bins | null;
}

export function xOf(view: View, row: number): number {
  const span = Math.max(1e-9, view.to - view.from);
  return view.left + 10 + ((view.place(row) - view.from) / span) * (view.width - view.left - 24);
}

export function placeOf(view: View, x: number): number {
  return view.from + ((x - view.left - 10) / (view.width - view.left - 24)) * (view.to - view.from);
}

const paths = new Map<Shape, Path2D>();

function pathOf(shape: Shape): Path2D {
  const known = paths.get(shape);
  if (known) return known;
  const path = new Path2D();
  if (shape === "circle") path.arc(0, 0, SIZE, 0, Math.PI * 2);
  else if (shape === "square") path.rect(-SIZE + 0.5, -SIZE + 0.5, 2 * SIZE - 1, 2 * SIZE - 1);
  else if (shape === "bar") path.rect(-1.6, -SIZE - 1, 3.2, 2 * SIZE + 2);
  else {
    const points = shape === "diamond" ? [[0, -SIZE - 1], [SIZE + 1, 0], [0, SIZE + 1], [-SIZE - 1, 0]] : [[0, -SIZE], [SIZE + 0.6, SIZE - 0.4], [-SIZE - 0.6, SIZE - 0.4]];
    points.forEach(([x, y], index) => (index === 0 ? path.moveTo(x!, y!) : path.lineTo(x!, y!)));
    path.closePath();
  }
  paths.set(shape, path);
  return path;
}

/** The colours of the theme, read once a drawing. */
function palette(element: Element): (colour: string) => string {
  const style = getComputedStyle(element);
  const known = new Map<string, string>();
  return (colour) => {
    const name = colour.replace(/^var\((.*)\)$/, "$1");
    if (!known.has(name)) known.set(name, style.getPropertyValue(name).trim());
    return known.get(name)!;
  };
}

function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

function drawGrid(context: CanvasRenderingContext2D, view: View, scene: Scene, colour: (name: string) => string): void {
  const bottom = scene.lanes.length * LANE;
  context.font = getComputedStyle(context.canvas).font || "12px sans-serif";
  context.textBaseline = "middle";
  scene.lanes.forEach((lane, index) => {
    context.fillStyle = colour("--line");
    context.fillRect(view.left, index * LANE + LANE / 2 - 0.5, view.width - view.left, 1);
    context.fillStyle = colour("--text-2");
    context.fillText(fitted(context, lane, view.left - 22), 14, index * LANE + LANE / 2);
  });
  context.fillStyle = colour("--text-3");
  let free = view.left;
  for (const tick of scene.ticks) {
    const x = view.left + 10 + ((tick.place - view.from) / Math.max(1e-9, view.to - view.from)) * (view.width - view.left - 24);
    if (x < free || x > view.width - 8) continue;
    const width = context.measureText(tick.words).width;
    if (x + width / 2 > view.width - 4) continue;
    context.fillStyle = colour("--line-strong");
    context.fillRect(Math.round(x), bottom, 1, 5);
    context.fillStyle = colour("--text-3");
    context.fillText(tick.words, Math.max(view.left, x - width / 2), bottom + 14);
    free = x + width + 16;
  }
}

function drawLink(context: CanvasRenderingContext2D, view: View, scene: Scene, lanes: Map<string, number>, from: number, to: number): void {
  const y = (row: number) => (lanes.get(scene.marks[row]!.lane) ?? 0) * LANE + LANE / 2;
  const [x1, x2] = [xOf(view, from), xOf(view, to)];
  context.beginPath();
  context.moveTo(x1, y(from));
  context.bezierCurveTo((x1 + x2) / 2, y(from), (x1 + x2) / 2, y(to), x2, y(to));
  context.stroke();
}

/** The rows that led to `row`, nearest first. */
export function causesOf(marks: readonly Mark[], row: number, most = 60): number[] {
  const found: number[] = [];
  let mark = marks[row];
  while (mark && found.length < most) {
    const above = mark.cause >= 0 ? mark.cause : mark.parent;
    if (above < 0) break;
    found.push(above);
    mark = marks[above];
  }
  return found;
}

function* rowsBetween(begin: number, end: number): Iterable<number> {
  for (let row = begin; row < end; row += 1) yield row;
}

/** The first row whose place is at least `place`; places ascend. */
function firstAt(view: View, rows: number, place: number): number {
  let low = 0;
  let high = rows;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.place(middle) < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The rows that are seen, and a few at both sides. */
function rowsIn(view: View, rows: number): { begin: number; end: number } {
  const more = (view.to - view.from) * 0.02;
  return { begin: firstAt(view, rows, view.from - more), end: firstAt(view, rows, view.to + more) };
}

/** Return the bars to draw where marks would lie on each other, else null: counted once a view, not once a drawing. */
export function barsOf(view: View, { marks, lanes, at, kept }: Pick<Scene, "marks" | "lanes" | "at" | "kept">): Bins | null {
  const { begin, end } = rowsIn(view, marks.length);
  const width = view.width - view.left;
  if (view.width <= 0 || !isDense(end - begin, lanes.length, width)) return null;
  const laneOf = new Map(lanes.map((lane, index) => [lane, index]));
  const place = (row: number): [number, number] | null => {
    const x = xOf(view, row) - view.left;
    return x < 0 ? null : [laneOf.get(marks[row]!.lane) ?? 0, x];
  };
  const isClear = (row: number) => row <= at && (kept === null || kept.has(row));
  return binsOf(marks, begin, end, lanes.length, width, place, isClear);
}

/** Draw everything. Where marks would lie on each other, bars stand for them. Marks on one pixel of one lane are drawn once, so that 100,000 of them stay fast. */
export function draw(context: CanvasRenderingContext2D, view: View, scene: Scene): void {
  const ratio = devicePixelRatio || 1;
  const height = scene.lanes.length * LANE + AXIS;
  const { canvas } = context;
  if (canvas.width !== Math.round(view.width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, height);
  const colour = palette(canvas);
  const lanes = new Map(scene.lanes.map((lane, index) => [lane, index]));
  drawGrid(context, view, scene, colour);

  const focus = scene.hovered >= 0 ? scene.hovered : scene.selected;
  const chain = focus >= 0 ? causesOf(scene.marks, focus) : [];
  context.strokeStyle = colour("--accent");
  context.lineWidth = 1.4;
  [focus, ...chain].slice(0, -1).forEach((row, index) => drawLink(context, view, scene, lanes, chain[index]!, row));

  const important = new Set([focus, ...chain]);
  const drawn = new Set<number>();
  const columns = Math.ceil(view.width) + 1;
  const { begin, end } = rowsIn(view, scene.marks.length);
  if (scene.bars) drawBins(context, scene.bars, view.left, LANE, focus >= 0, colour);
  for (const row of scene.bars ? important : rowsBetween(begin, end)) {
    const mark = scene.marks[row];
    if (!mark) continue;
    const x = xOf(view, row);
    if (x < view.left) continue;
    const lane = lanes.get(mark.lane) ?? 0;
    const isImportant = important.has(row);
    const key = (lane * columns + Math.round(x)) * 2 + (mark.verdict === "refused" ? 1 : 0);
    if (!isImportant && drawn.has(key)) continue;
    drawn.add(key);
    const isFaint = row > scene.at || (scene.kept !== null && !scene.kept.has(row));
    context.globalAlpha = isFaint ? 0.16 : focus >= 0 && !isImportant ? 0.55 : 1;
    const path = pathOf(typeShape(mark.type));
    const fill = colour(typeColour(mark.type));
    context.translate(x, lane * LANE + LANE / 2);
    if (mark.verdict === "accepted") {
      context.fillStyle = fill;
      context.fill(path);
    } else {
      context.fillStyle = colour("--surface");
      context.fill(path);
      context.strokeStyle = mark.verdict === "refused" ? colour("--bad") : fill;
      context.lineWidth = 1.5;
      context.stroke(path);
    }
    if (row === scene.selected) {
      context.beginPath();
      context.arc(0, 0, 8, 0, Math.PI * 2);
      context.strokeStyle = colour("--accent");
      context.lineWidth = 1.6;
      context.stroke();
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  context.globalAlpha = 1;
  if (scene.at < scene.marks.length - 1 && scene.at >= 0) {
    const x = Math.round(xOf(view, scene.at)) + 6;
    context.fillStyle = colour("--accent");
    if (x > view.left) context.fillRect(x, 0, 1.5, scene.lanes.length * LANE);
  }
}

/** The row nearest to a point, at most 14 px away; -1 is none. */
export function rowNear(view: View, scene: Scene, x: number, y: number): number {
  const lane = scene.lanes[Math.floor(y / LANE)];
  let best = -1;
  let distance = 14;
  const reach = ((view.to - view.from) / Math.max(1, view.width - view.left)) * 16;
  const end = firstAt(view, scene.marks.length, placeOf(view, x) + reach);
  for (let row = firstAt(view, scene.marks.length, placeOf(view, x) - reach); row < end; row += 1) {
    if (scene.marks[row]!.lane !== lane) continue;
    const away = Math.abs(xOf(view, row) - x);
    if (away <= distance) {
      best = row;
      distance = away;
    }
  }
  return best;
}
