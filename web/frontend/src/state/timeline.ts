/** The one reducer of a session's packets: stored columns and live entries give the same marks. */
import type { Schemas } from "../api/client";

export interface Mark {
  seq: number;
  /** Milliseconds since 1970. */
  time: number;
  lane: string;
  type: string;
  verdict: string;
  code: string;
  generation: number;
  /** Row of the packet whose handling it came from; -1 is none. */
  cause: number;
  /** Row of the packet that it answers; -1 is none. */
  parent: number;
}

export interface Timeline {
  shard: number;
  marks: readonly Mark[];
  lanes: readonly string[];
  /** Rows by packet_id, of the packets that came live. */
  rows: ReadonlyMap<string, number>;
  /** A live entry named a packet whose row is not known: load the columns again when it is quiet. */
  isPartial: boolean;
  /** Live entries since the columns: they are kept when older columns arrive after them. */
  live: readonly Schemas["FoldEntry"][];
  /** Pages are still missing: live entries wait for them. */
  isFilling: boolean;
}

export const EMPTY: Timeline = { shard: 0, marks: [], lanes: [], rows: new Map(), isPartial: false, live: [], isFilling: false };

export type TimelineEvent =
  /** All pages, in place of what is known. */
  | { kind: "columns"; pages: readonly Schemas["TimelineColumns"][] }
  /** The next page of a timeline that is read for the first time. */
  | { kind: "page"; columns: Schemas["TimelineColumns"]; isFirst: boolean; isLast: boolean }
  | { kind: "entries"; entries: readonly Schemas["FoldEntry"][] };

function fromColumns(columns: Schemas["TimelineColumns"], first: number): Mark[] {
  const start = Date.parse(columns.start);
  const back = (row: number, steps: number | undefined) => (steps ? first + row - steps : -1);
  return columns.seq.map((seq, row) => ({
    seq,
    time: start + columns.time[row]!,
    lane: columns.lanes[columns.lane[row]!]!,
    type: columns.types[columns.type[row]!]!,
    verdict: columns.verdicts[columns.verdict[row]!]!,
    code: columns.codes[columns.code[row]!] ?? "",
    generation: columns.generation[row]!,
    cause: back(row, columns.cause[row]),
    parent: back(row, columns.parent[row]),
  }));
}

function lanesOf(known: readonly string[], marks: readonly Mark[]): readonly string[] {
  const lanes = new Set(known);
  const before = lanes.size;
  for (const mark of marks) lanes.add(mark.lane);
  return lanes.size === before ? known : [...lanes];
}

function addEntries(timeline: Timeline, entries: readonly Schemas["FoldEntry"][]): Timeline {
  const marks = [...timeline.marks];
  const rows = new Map(timeline.rows);
  let isPartial = timeline.isPartial;
  let last = marks.at(-1)?.seq ?? 0;
  const rowOf = (id: string | null | undefined): number => {
    if (!id) return -1;
    const row = rows.get(id);
    if (row === undefined) isPartial = true;
    return row ?? -1;
  };
  for (const entry of entries) {
    if (entry.kind === "packet" && entry.seq > last) {
      last = entry.seq;
      rows.set(entry.packet_id, marks.length);
      marks.push({
        seq: entry.seq,
        time: Date.parse(entry.at),
        lane: entry.sender ?? "",
        type: entry.packet_type ?? "",
        verdict: entry.verdict ?? "",
        code: entry.refusal_code ?? "",
        generation: entry.generation ?? 0,
        cause: rowOf(entry.cause_packet_id),
        parent: rowOf(entry.parent_packet_id),
      });
    } else if (entry.kind === "hop" && entry.verdict) {
      const row = rowOf(entry.packet_id);
      if (row >= 0) marks[row] = { ...marks[row]!, verdict: entry.verdict, code: entry.refusal_code ?? "" };
    }
  }
  const live = [...timeline.live, ...entries];
  return { ...timeline, marks, rows, isPartial, live, lanes: lanesOf(timeline.lanes, marks.slice(timeline.marks.length)) };
}

function addColumns(timeline: Timeline, columns: Schemas["TimelineColumns"]): Timeline {
  const marks = [...timeline.marks, ...fromColumns(columns, timeline.marks.length)];
  return { ...timeline, shard: columns.shard, marks, lanes: lanesOf(timeline.lanes, marks.slice(timeline.marks.length)) };
}

/** Add the live entries that came while columns were read. */
function withLive(stored: Timeline, live: Timeline["live"]): Timeline {
  const last = stored.marks.at(-1)?.seq ?? 0;
  const newer = live.filter((entry) => entry.seq > last);
  const filled = { ...stored, live: [], isFilling: false };
  return newer.length > 0 ? addEntries(filled, newer) : filled;
}

/** Return the timeline after an event. Entries that it already holds change nothing. */
export function reduceTimeline(timeline: Timeline, event: TimelineEvent): Timeline {
  if (event.kind === "columns") return withLive(event.pages.reduce(addColumns, EMPTY), timeline.live);
  if (event.kind === "page") {
    const stored = addColumns(event.isFirst ? { ...EMPTY, live: timeline.live } : timeline, event.columns);
    return event.isLast ? withLive(stored, timeline.live) : { ...stored, isFilling: true };
  }
  if (event.entries.length === 0) return timeline;
  return timeline.isFilling ? { ...timeline, live: [...timeline.live, ...event.entries] } : addEntries(timeline, event.entries);
}

/** The row of the last mark at or before `seq`; -1 before the first. */
export function rowAt(marks: readonly Mark[], seq: number): number {
  let low = 0;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle]!.seq <= seq) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
