/** The order of a list as the address has it: `name` upwards, `-name` downwards. Every function is pure. */
import type { Cell } from "./export";

export interface Sort {
  name: string;
  isDown: boolean;
}

export function readSort(text: string | undefined): Sort | null {
  if (!text) return null;
  return text.startsWith("-") ? { name: text.slice(1), isDown: true } : { name: text, isDown: false };
}

/** What a click on a column makes of the sort: upwards, downwards, and back to the list's own order. */
export function nextSort(sort: Sort | null, name: string): string | undefined {
  if (sort?.name !== name) return name;
  return sort.isDown ? undefined : `-${name}`;
}

/** Sort all rows; what is unknown stands last in both directions, and equal rows keep their order. */
export function sorted<Row>(rows: readonly Row[], column: { value: (row: Row) => Cell } | undefined, isDown: boolean): readonly Row[] {
  if (!column) return rows;
  const order = (a: Cell, b: Cell): number => {
    if (a == null || b == null) return a == null ? (b == null ? 0 : 1) : -1;
    const found = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return isDown ? -found : found;
  };
  return [...rows].sort((a, b) => order(column.value(a), column.value(b)));
}
