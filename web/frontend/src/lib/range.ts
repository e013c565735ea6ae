/** A range of time as the address has it: `since=1h` up to now, or two times. Every function is pure. */

export interface TimeRange {
  /** 1h, 1d, 7d, or a time in UTC; undefined is the beginning. */
  since?: string;
  /** A time in UTC; undefined is now. */
  until?: string;
}

export const LATEST = [
  { since: "1h", name: "Last hour", ms: 3_600_000 },
  { since: "1d", name: "Last day", ms: 86_400_000 },
  { since: "7d", name: "Last week", ms: 604_800_000 },
] as const;

const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?Z$/;

const isTime = (text: string) => TIME.test(text) && !Number.isNaN(Date.parse(text));

/** What of an address is a range; anything else is left out. */
export function readRange(search: Record<string, unknown>): TimeRange {
  const { since, until } = search;
  return {
    since: typeof since === "string" && (LATEST.some((one) => one.since === since) || isTime(since)) ? since : undefined,
    until: typeof until === "string" && isTime(until) ? until : undefined,
  };
}

const MINUTE = 60_000;

/** The range as two times for the API. Relative ones move by whole minutes, so that the same question is asked once a minute. */
export function boundsOf(range: TimeRange, now: number): { since?: string; until?: string } {
  const latest = LATEST.find((one) => one.since === range.since);
  const since = latest ? new Date(Math.floor(now / MINUTE) * MINUTE - latest.ms).toISOString() : range.since;
  return { since, until: latest ? undefined : range.until };
}

/** Milliseconds from its beginning to its end; null without a beginning. */
export function lengthOf(range: TimeRange, now: number): number | null {
  const { since, until } = boundsOf(range, now);
  return since ? Math.max(0, (until ? Date.parse(until) : now) - Date.parse(since)) : null;
}

/** A time of a field of type datetime-local, in the zone of the browser, as UTC; undefined when there is none. */
export function fromField(text: string): string | undefined {
  const time = new Date(text).getTime();
  return text === "" || Number.isNaN(time) ? undefined : new Date(time).toISOString().replace(".000Z", "Z");
}

/** The reverse: a time in UTC for such a field. */
export function toField(text: string | undefined): string {
  if (!text || !isTime(text)) return "";
  const date = new Date(text);
  return new Date(date.getTime() - date.getTimezoneOffset() * MINUTE).toISOString().slice(0, 16);
}
