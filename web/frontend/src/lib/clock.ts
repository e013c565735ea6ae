/** The time of the server: a browser whose clock is wrong would tell that packets come from the future. */

/** Below this many milliseconds nobody sees a difference, and the header has whole seconds. */
const LEAST = 3_000;
let ahead = 0;

/** Learn from the `Date` of an answer that was asked for and arrived at these times of the browser. */
export function hearClock(date: string | null, asked: number, arrived: number): void {
  const told = Date.parse(date ?? "");
  if (!Number.isFinite(told)) return;
  const difference = told + 500 - (asked + arrived) / 2;
  ahead = Math.abs(difference) > LEAST + (arrived - asked) / 2 ? difference : 0;
}

export function serverNow(): number {
  return Date.now() + ahead;
}
