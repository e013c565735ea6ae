/** Names like one that does not exist: pure. */

/** The number of characters to add, remove or replace, up to `most`. */
function distance(one: string, other: string, most: number): number {
  if (Math.abs(one.length - other.length) > most) return most + 1;
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (let at = 1; at <= one.length; at += 1) {
    const next = [at];
    for (let place = 1; place <= other.length; place += 1) {
      next.push(Math.min(row[place]! + 1, next[place - 1]! + 1, row[place - 1]! + (one[at - 1] === other[place - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[other.length]!;
}

const LONGEST = 100;

/** At most five of `names` that begin or end as `name` does, contain it, or differ from it by a few characters; the nearest first. */
export function alike(name: string, names: readonly string[]): string[] {
  const wanted = name.trim().toLowerCase().slice(0, LONGEST);
  if (wanted === "") return [];
  const most = Math.max(1, Math.floor(wanted.length / 4));
  const scored = names.flatMap((one): [number, string][] => {
    const other = one.toLowerCase().slice(0, LONGEST);
    if (other.includes(wanted) || (other.length > 2 && wanted.includes(other))) return [[0, one]];
    const away = distance(wanted, other, most);
    if (away <= most) return [[away, one]];
    const isEnd = wanted.length >= 8 && (other.endsWith(wanted.slice(-8)) || other.startsWith(wanted.slice(0, 8)));
    return isEnd ? [[most + 1, one]] : [];
  });
  return scored.sort(([a], [b]) => a - b).slice(0, 5).map(([, one]) => one);
}
