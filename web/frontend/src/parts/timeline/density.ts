/** Bars in place of marks where marks would lie on each other: taller where more packets are, red at the foot for the refused ones. */
import type { Mark } from "../../state/timeline";
import { typeColour } from "../../lib/words";

/** Width of a bar and its gap in pixels. */
const STEP = 3;
/** Pixels that a mark needs to be told from its neighbour. */
const ROOM = 4;

export interface Bins {
  columns: number;
  counts: Uint32Array;
  refused: Uint32Array;
  /** Packets that filters and the past leave. */
  clear: Uint32Array;
  /** The type of most packets of a bin, as a place in `types`. */
  type: Uint8Array;
  types: string[];
  most: number;
}

/** True when so many packets in so many lanes cannot be told apart as marks. */
export function isDense(packets: number, lanes: number, width: number): boolean {
  return packets > (Math.max(1, lanes) * Math.max(1, width)) / ROOM;
}

/** Count packets by lane and column. `place` gives the lane and the x of a row, or null where it is not seen. */
export function binsOf(marks: readonly Mark[], from: number, to: number, lanes: number, width: number, place: (row: number) => [number, number] | null, isClear: (row: number) => boolean): Bins {
  const columns = Math.ceil(Math.max(1, width) / STEP) + 1;
  const size = lanes * columns;
  const bins: Bins = { columns, counts: new Uint32Array(size), refused: new Uint32Array(size), clear: new Uint32Array(size), type: new Uint8Array(size), types: [], most: 0 };
  const votes = new Int32Array(size);
  const known = new Map<string, number>();
  for (let row = from; row < to; row += 1) {
    const at = place(row);
    if (at === null) continue;
    const bin = at[0] * columns + Math.max(0, Math.min(columns - 1, Math.floor(at[1] / STEP)));
    const mark = marks[row]!;
    if (!known.has(mark.type)) {
      known.set(mark.type, known.size);
      bins.types.push(mark.type);
    }
    const type = known.get(mark.type)!;
    if (votes[bin] === 0) bins.type[bin] = type;
    votes[bin]! += bins.type[bin] === type ? 1 : -1;
    bins.counts[bin]! += 1;
    if (mark.verdict === "refused") bins.refused[bin]! += 1;
    if (isClear(row)) bins.clear[bin]! += 1;
    bins.most = Math.max(bins.most, bins.counts[bin]!);
  }
  return bins;
}

/** Bars as they were drawn: while a hand moves over them only what lies above them changes. */
const pictures = new WeakMap<Bins, { look: string; picture: HTMLCanvasElement }>();

/** Draw the bars of `bins`, each lane `lane` pixels high, from x = `left`; in other colours they are painted again. */
export function drawBins(context: CanvasRenderingContext2D, bins: Bins, left: number, lane: number, isDimmed: boolean, colour: (name: string) => string): void {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [bins.columns * STEP, (bins.counts.length / bins.columns) * lane];
  const look = [ratio, lane, colour("--bad"), ...bins.types.map((type) => colour(typeColour(type)))].join(" ");
  let known = pictures.get(bins);
  if (known?.look !== look) {
    const picture = document.createElement("canvas");
    picture.width = Math.ceil(width * ratio);
    picture.height = Math.ceil(height * ratio);
    const within = picture.getContext("2d")!;
    within.scale(ratio, ratio);
    paintBins(within, bins, lane, colour);
    pictures.set(bins, (known = { look, picture }));
  }
  context.globalAlpha = isDimmed ? 0.45 : 1;
  context.drawImage(known.picture, left, 0, known.picture.width / ratio, known.picture.height / ratio);
  context.globalAlpha = 1;
}

function paintBins(context: CanvasRenderingContext2D, bins: Bins, lane: number, colour: (name: string) => string): void {
  const room = lane - 8;
  bins.counts.forEach((count, bin) => {
    if (count === 0) return;
    const height = Math.max(3, Math.round(room * Math.sqrt(count / bins.most)));
    const x = (bin % bins.columns) * STEP;
    const foot = Math.floor(bin / bins.columns) * lane + lane / 2 + height / 2;
    context.globalAlpha = bins.clear[bin] === 0 ? 0.16 : 1;
    context.fillStyle = colour(typeColour(bins.types[bins.type[bin]!]!));
    context.fillRect(x, foot - height, STEP - 1, height);
    if (bins.refused[bin]! > 0) {
      const red = Math.max(2, Math.round((height * bins.refused[bin]!) / count));
      context.fillStyle = colour("--bad");
      context.fillRect(x, foot - red, STEP - 1, red);
    }
  });
}
