import { describe, expect, it } from "vitest";
import type { Schemas } from "../../src/api/client";
import { readEvents } from "../../src/live/stream";
import { EMPTY, reduceTimeline, rowAt, type Timeline } from "../../src/state/timeline";

type Entry = Schemas["FoldEntry"];
const START = Date.parse("2026-11-20T10:00:00Z");

function packet(seq: number, sender: string, cause: string | null = null, verdict = "accepted"): Entry {
  return {
    kind: "packet", shard: 0, seq, session_id: "s", packet_id: `p${seq}`, at: new Date(START + seq * 10).toISOString(),
    packet_type: "IDEA", sender, verdict, generation: 1, cause_packet_id: cause, refusal_code: verdict === "refused" ? "MALFORMED" : null,
  } as Entry;
}

function columns(entries: Entry[]): Schemas["TimelineColumns"] {
  const lanes = [...new Set(entries.map((entry) => entry.sender!))];
  const verdicts = ["accepted", "refused", "held"];
  const codes = ["", "MALFORMED"];
  const row = new Map(entries.map((entry, index) => [entry.packet_id, index]));
  return {
    session_id: "s", shard: 0, start: new Date(START).toISOString(), lanes, types: ["IDEA"], verdicts, codes,
    seq: entries.map((entry) => entry.seq),
    time: entries.map((entry) => Date.parse(entry.at) - START),
    lane: entries.map((entry) => lanes.indexOf(entry.sender!)),
    type: entries.map(() => 0),
    verdict: entries.map((entry) => verdicts.indexOf(entry.verdict!)),
    code: entries.map((entry) => codes.indexOf(entry.refusal_code ?? "")),
    generation: entries.map(() => 1),
    cause: entries.map((entry, index) => (entry.cause_packet_id ? index - row.get(entry.cause_packet_id)! : 0)),
    parent: entries.map(() => 0),
    next: null,
  };
}

const all = [packet(1, "a"), packet(3, "b", "p1"), packet(6, "a", "p3", "refused"), packet(9, "c", "p6")];
const stored = (entries: Entry[]): Timeline => reduceTimeline(EMPTY, { kind: "columns", pages: [columns(entries)] });
const seen = ({ marks, lanes, shard }: Timeline) => ({ marks, lanes, shard });

describe("the timeline's reducer", () => {
  it("gives a live page and a reloaded page the same marks", () => {
    const live = reduceTimeline(EMPTY, { kind: "entries", entries: all });
    expect(live.isPartial).toBe(false);
    expect(seen(live)).toEqual(seen(stored(all)));
  });

  it("takes every entry once, in any split", () => {
    for (let cut = 0; cut <= all.length; cut += 1) {
      let timeline = reduceTimeline(EMPTY, { kind: "entries", entries: all.slice(0, cut) });
      timeline = reduceTimeline(timeline, { kind: "entries", entries: all.slice(Math.max(0, cut - 1)) });
      expect(seen(timeline)).toEqual(seen(stored(all)));
    }
  });

  it("asks for the columns when an entry names a packet that it does not know", () => {
    const timeline = reduceTimeline(stored(all.slice(0, 2)), { kind: "entries", entries: all.slice(2) });
    expect(timeline.isPartial).toBe(true);
    expect(timeline.marks.map((mark) => mark.seq)).toEqual([1, 3, 6, 9]);
    expect(seen(reduceTimeline(timeline, { kind: "columns", pages: [columns(all)] }))).toEqual(seen(stored(all)));
  });

  it("keeps live entries when older columns arrive after them", () => {
    const live = reduceTimeline(EMPTY, { kind: "entries", entries: all });
    const timeline = reduceTimeline(live, { kind: "columns", pages: [columns(all.slice(0, 2))] });
    expect(timeline.marks.map((mark) => mark.seq)).toEqual([1, 3, 6, 9]);
  });

  it("shows each page as it comes, and live entries after the last one", () => {
    const page = (entries: Entry[], isFirst: boolean, isLast: boolean) => ({ kind: "page", columns: columns(entries), isFirst, isLast }) as const;
    let timeline = reduceTimeline(EMPTY, { kind: "entries", entries: [packet(9, "c")] });
    timeline = reduceTimeline(timeline, page(all.slice(0, 2), true, false));
    timeline = reduceTimeline(timeline, { kind: "entries", entries: [packet(12, "d")] });
    expect([timeline.marks.map((mark) => mark.seq), timeline.isFilling]).toEqual([[1, 3], true]);
    const again = reduceTimeline(timeline, page(all.slice(0, 2), true, false)); // the request failed, and was sent again
    const whole = reduceTimeline(again, page([packet(6, "a")], false, true));
    expect([whole.marks.map((mark) => mark.seq), whole.isFilling]).toEqual([[1, 3, 6, 9, 12], false]);
  });

  it("joins pages, and changes the verdict of a held packet", () => {
    const pages = [columns(all.slice(0, 1)), columns([{ ...all[1]!, cause_packet_id: null }])];
    expect(reduceTimeline(EMPTY, { kind: "columns", pages }).marks.map((mark) => mark.lane)).toEqual(["a", "b"]);
    const held = reduceTimeline(EMPTY, { kind: "entries", entries: [packet(1, "a", null, "held")] });
    const ruled = reduceTimeline(held, { kind: "entries", entries: [{ ...packet(4, "x"), kind: "hop", packet_id: "p1", verdict: "accepted" } as Entry] });
    expect(ruled.marks[0]!.verdict).toBe("accepted");
  });

  it("finds the row of a position", () => {
    expect([0, 1, 2, 6, 8, 99].map((seq) => rowAt(stored(all).marks, seq))).toEqual([-1, 0, 0, 2, 2, 3]);
  });
});

it("reads server-sent events in any split", () => {
  const text = 'id: {"0":1}\r\nevent: entries\r\ndata: {"a":1,\r\ndata: "b":2}\r\n\r\n: ping\n\nevent: reset\ndata: {}\n\n';
  const whole = [
    { id: '{"0":1}', event: "entries", data: '{"a":1,\n"b":2}' },
    { id: null, event: "reset", data: "{}" },
  ];
  for (let cut = 0; cut <= text.length; cut += 1) {
    const first = readEvents(text.slice(0, cut));
    const second = readEvents(first.rest + text.slice(cut));
    expect([...first.events, ...second.events]).toEqual(whole);
  }
});
