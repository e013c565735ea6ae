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

export function money(value: number): string {
  return `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
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

export function time(at: string | number): string {
  const date = new Date(at);
  return `${clock.format(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function dateTime(at: string | number): string {
  return `${day.format(new Date(at))}, ${clock.format(new Date(at))}`;
}

/** The first eight characters of an id. */
export function shortId(id: string): string {
  return /^[0-9a-f]{8}-/.test(id) ? id.slice(0, 8) : id;
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

/** A clause as a sentence: a capital at its beginning, a full stop at its end. */
export function sentence(words: string): string {
  const text = words.trim();
  return text === "" ? "" : `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}`;
}

/** Show control and bidi characters of foreign text, which could make it look like other text. */
export function visible(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (char) => {
    return `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
