/** Draws the overview of a lineage on two canvases: lines below, marks above. */
import { xIn, type Cells, type Lines, type Plan, type Window } from "../../lib/overview";

/** Up to so many marks are round and of different sizes; more are squares, which take a tenth of the time. */
export const ROUND = 2_000;

export interface Colours {
  types: string[];
  bad: string;
  line: string;
  accent: string;
  surface: string;
}

/** Give a canvas the size of the window, empty, and return its context. */
function cleared(canvas: HTMLCanvasElement, { width, height }: Window): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const context = canvas.getContext("2d")!;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function drawLines(canvas: HTMLCanvasElement, window: Window, lines: Lines, colour: string): void {
  const context = cleared(canvas, window);
  context.strokeStyle = colour;
  context.lineWidth = 0.7;
  const { ends } = lines;
  for (let line = 0; line < ends.length; ) {
    context.beginPath();
    for (const end = Math.min(ends.length, line + 400); line < end; line += 4) {
      context.moveTo(ends[line]!, ends[line + 1]!);
      context.lineTo(ends[line + 2]!, ends[line + 3]!);
    }
    context.stroke();
  }
}

export function drawMarks(canvas: HTMLCanvasElement, window: Window, plan: Plan, cells: Cells, colours: Colours, selected: number): void {
  const context = cleared(canvas, window);
  // One colour after the other: to change it costs more than to draw a mark.
  const byType = colours.types.map((): number[] => []);
  for (const cell of cells.filled) byType[plan.type[cells.first[cell]!]!]!.push(cell);
  const draw = cells.filled.length <= ROUND ? drawRound : drawSquares;
  byType.forEach((filled, type) => {
    context.fillStyle = colours.types[type]!;
    draw(context, window, plan, cells, filled, false);
  });
  context.fillStyle = colours.bad;
  draw(context, window, plan, cells, [...cells.filled].filter((cell) => cells.refused[cell]! > 0), true);
  if (selected >= 0) drawSelected(context, window, plan, colours, selected);
}

/** Where a mark lies: a packet alone at its place, several in the middle of their cell. */
function middleOf(window: Window, plan: Plan, cells: Cells, cell: number): [number, number] {
  const first = cells.first[cell]!;
  if (cells.counts[cell] === 1) return [xIn(window, plan.x[first]!), (plan.y[first]! * window.height) / Math.max(1, plan.lanes)];
  return [((cell % cells.columns) + 0.5) * cells.side, (Math.floor(cell / cells.columns) + 0.5) * cells.side];
}

type Draw = (context: CanvasRenderingContext2D, window: Window, plan: Plan, cells: Cells, filled: readonly number[], isRefused: boolean) => void;

const drawRound: Draw = (context, window, plan, cells, filled, isRefused) => {
  const least = cells.filled.length > ROUND / 4 ? 2.4 : 4;
  for (const cell of filled) {
    const [x, y] = middleOf(window, plan, cells, cell);
    const share = isRefused ? Math.sqrt(cells.refused[cell]! / cells.counts[cell]!) : 1;
    context.beginPath();
    context.arc(x, y, Math.min(9, least + Math.log2(cells.counts[cell]!)) * share, 0, Math.PI * 2);
    context.fill();
  }
};

/** Squares that nearly fill their cells; of a mixed one the foot is red, as in the timeline. */
const drawSquares: Draw = (context, _window, _plan, cells, filled, isRefused) => {
  const largest = cells.side - 0.6;
  for (const cell of filled) {
    const count = cells.counts[cell]!;
    const size = Math.min(largest, largest * 0.6 + Math.log2(count) * 0.7);
    const x = ((cell % cells.columns) + 0.5) * cells.side - size / 2;
    const y = (Math.floor(cell / cells.columns) + 0.5) * cells.side - size / 2;
    const red = isRefused ? Math.max(1.2, (size * cells.refused[cell]!) / count) : size;
    context.fillRect(x, y + size - red, size, red);
  }
};

function drawSelected(context: CanvasRenderingContext2D, window: Window, plan: Plan, colours: Colours, row: number): void {
  const [x, y] = [xIn(window, plan.x[row]!), (plan.y[row]! * window.height) / Math.max(1, plan.lanes)];
  for (const [radius, colour, width] of [[8, colours.surface, 5], [8, colours.accent, 2.4]] as const) {
    context.beginPath();
    context.arc(x, y, radius, 0, Math.PI * 2);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }
}
