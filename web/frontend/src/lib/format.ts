/** Numbers, times and names as the page shows them. Every function is pure. */

const whole = new Intl.NumberFormat("en");

export function count(value: number): string {
  return whole.format(value);
}

/** 12,345 as 12.3k: for narrow places; the full number belongs into the title. */
export function compact(value: number): string {
  if (Math.abs(value) < 10_000) return whole.format(Math.round(value * 100) / 100);
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A score or fraction with at most three decimals. */
export function score(value: number | null | undefined): string {
  return value == null ? "–" : value.toFixed(3);
}

/** A cost in the unit of what agents report and of budgets: the bus knows no currency. */
export function costText(value: number): string {
  return new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: value < 1 ? 4 : 2 }).format(value);
}

/** Milliseconds as the largest two units: 950 ms, 12.3 s, 4 min 5 s, 3 h 2 min, 2 d 4 h. */
export function duration(ms: number): string {
  const sign = ms < 0 ? "−" : "";
  const value = Math.abs(ms);
  if (value < 1000) return `${sign}${Math.round(value)} ms`;
  if (value < 60_000) return `${sign}${(value / 1000).toFixed(value < 10_000 ? 1 : 0)} s`;
  const parts: [number, string][] = [
    [86_400_000, "d"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1000, "s"],
  ];
  const first = parts.findIndex(([size]) => value >= size);
  const [size, unit] = parts[first]!;
  const head = `${sign}${Math.floor(value / size)} ${unit}`;
  const next = parts[first + 1];
  const rest = next ? Math.floor((value % size) / next[0]) : 0;
  return rest > 0 ? `${head} ${rest} ${next![1]}` : head;
}

/** How long ago something was. What a clock that is ahead wrote is not in the future: it was just now. */
export function ago(at: string | number, now: number): string {
  const past = now - new Date(at).getTime();
  if (past < 5000) return "now";
  return `${duration(past).split(" ").slice(0, 2).join(" ")} ago`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** The zone that a time is shown in: UTC, UTC+1, UTC−3:30. It follows summer time. */
export function zone(at: string | number): string {
  const minutes = -new Date(at).getTimezoneOffset();
  if (!minutes) return "UTC"; // an unusable time has no zone either
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

/** Hours to milliseconds, without the zone: for columns whose head names it. */
export function time(at: string | number): string {
  const date = new Date(at);
  return `${clock.format(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function dateTime(at: string | number): string {
  return `${day.format(new Date(at))}, ${clock.format(new Date(at))} ${zone(at)}`;
}

/** The same in UTC, to the millisecond: 2026-01-01 00:04:05.120 UTC. */
export function utc(at: string | number): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : `${date.toISOString().slice(0, -1).replace("T", " ")} UTC`;
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** The last eight characters of a UUID: those made at the same time share their beginning. Names stay whole. */
export function shortId(id: string): string {
  return UUID.test(id) ? `…${id.slice(-8)}` : id;
}

export function bytes(value: number): string {
  if (value < 1024) return `${value} B`;
  if (value < 1024 * 1024) return `${(value / 1024).toFixed(1)} KiB`;
  return `${(value / 1024 / 1024).toFixed(1)} MiB`;
}

/** WORDS_OF_THE_PROTOCOL in plain case: "Words of the protocol". */
export function plain(name: string): string {
  const words = name.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** A text with each SHA-256 short at its end, as ids are. */
export function shortHashes(text: string): string {
  return text.replaceAll(/\b[0-9a-f]{56}([0-9a-f]{8})\b/g, "…$1");
}

/** At most so many characters, with an ellipsis for the rest. */
export function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  const characters = [...text];
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join("").trimEnd()}…`;
}

/** A clause as a sentence: a capital at its beginning, a full stop at its end. */
export function sentence(words: string): string {
  const text = words.trim();
  return text === "" ? "" : `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}`;
}

/** Joiners where writing needs them: within an emoji, and between letters of scripts that join. Elsewhere they hide. */
const JOINER = /(?<=[\p{Extended_Pictographic}\u{1f3fb}-\u{1f3ff}\ufe0f])\u200d(?=\p{Extended_Pictographic})|(?<=[\p{L}\p{M}])[\u200c\u200d](?=[\p{sc=Arab}\p{sc=Beng}\p{sc=Deva}\p{sc=Gujr}\p{sc=Guru}\p{sc=Knda}\p{sc=Mlym}\p{sc=Mong}\p{sc=Orya}\p{sc=Sinh}\p{sc=Syrc}\p{sc=Taml}\p{sc=Telu}])/gu;

/** Show control and bidi characters of foreign text, which could make it look like other text. */
export function visible(text: string): string {
  const joiners = new Set(/[\u200c\u200d]/.test(text) ? Array.from(text.matchAll(JOINER), (found) => found.index) : []);
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (char, at: number) => {
    return joiners.has(at) ? char : `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
