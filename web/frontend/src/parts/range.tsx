/** One time range for every list and chart, in the address. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { boundsOf, fromField, LATEST, lengthOf, readRange, toField, type TimeRange } from "../lib/range";
import { zone } from "../lib/format";
import { useNow } from "./bits";

export interface ShownRange {
  range: TimeRange;
  /** Two times for the API. */
  since?: string;
  until?: string;
  /** Milliseconds; null is everything. */
  length: number | null;
  /** "in the last hour", "between the two times", "at any time". */
  words: string;
}

/** The range of the address, else `otherwise`: 1h, 1d, 7d, or everything. */
export function useTimeRange(otherwise?: "1h" | "1d" | "7d"): ShownRange {
  const search = useSearch({ strict: false });
  const now = useNow(30_000);
  const given = readRange(search);
  const range = search.since === "all" ? {} : given.since || given.until ? given : { since: otherwise };
  const latest = LATEST.find((one) => one.since === range.since);
  const words = latest ? `in the ${latest.name.toLowerCase()}` : range.since || range.until ? "in this time" : "at any time";
  return { range, ...boundsOf(range, now), length: lengthOf(range, now), words };
}

const OWN = "own";
const ALL = "all";

export function TimeRangeChoice({ otherwise }: { otherwise?: "1h" | "1d" | "7d" }) {
  const { range, since } = useTimeRange(otherwise);
  const navigate = useNavigate();
  const isOwn = range.until !== undefined || (range.since !== undefined && !LATEST.some((one) => one.since === range.since));
  const [isOpen, open] = useState(isOwn);
  const change = (next: { since?: string; until?: string }) => void navigate({ to: ".", search: (old) => ({ ...old, since: undefined, until: undefined, ...next }), replace: true, resetScroll: false });
  function choose(name: string): void {
    open(name === OWN);
    if (name === OWN) change({ since: since ?? new Date(Date.now() - 86_400_000).toISOString() });
    else change({ since: name === (otherwise ?? ALL) ? undefined : name });
  }
  return (
    <span className="row range">
      <select className="field" aria-label="Time range" value={isOwn || isOpen ? OWN : (range.since ?? ALL)} onChange={(event) => choose(event.target.value)}>
        {LATEST.map((one) => (
          <option key={one.since} value={one.since}>{one.name}</option>
        ))}
        <option value={ALL}>Any time</option>
        <option value={OWN}>Own range…</option>
      </select>
      {(isOwn || isOpen) && (
        <>
          <input className="field" type="datetime-local" aria-label={`From, ${zone(Date.now())}`} value={toField(range.since)} onChange={(event) => change({ since: fromField(event.target.value), until: range.until })} />
          <span className="quiet">to</span>
          <input className="field" type="datetime-local" aria-label={`Until, ${zone(Date.now())}`} value={toField(range.until)} onChange={(event) => change({ since: range.since, until: fromField(event.target.value) })} />
          <span className="quiet">{zone(Date.now())}</span>
        </>
      )}
    </span>
  );
}
