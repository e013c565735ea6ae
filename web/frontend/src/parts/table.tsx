/** One table for every list: sorted by a click, rows drawn only where they are seen, exported as CSV or JSON. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { DropdownMenu } from "radix-ui";
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { download, toCsv, type Cell } from "../lib/export";

export interface Column<Row> {
  name: string;
  title: ReactNode;
  value: (row: Row) => Cell;
  /** Default: the value as text. */
  cell?: (row: Row) => ReactNode;
  /** A track of CSS grid, such as `90px` or `minmax(120px, 1fr)`. */
  width?: string;
  isNumber?: boolean;
  /** Leave it out below 860 px. */
  isExtra?: boolean;
}

interface TableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: Column<Row>[];
  rowKey: (row: Row) => string | number;
  selected?: string | number | null;
  onSelect?: (row: Row) => void;
  onOpen?: (row: Row) => void;
  height?: number;
  /** Called when the end comes into view. */
  onEnd?: () => void;
}

const ROW = 34;
const HEAD = 33;
/** Pixels of all rows together: browsers draw nothing beyond 33,554,428. */
const TALLEST = 33_500_000;

function sorted<Row>(rows: readonly Row[], column: Column<Row> | undefined, isDown: boolean): readonly Row[] {
  if (!column) return rows;
  const order = (a: Cell, b: Cell): number => {
    if (a == null || b == null) return a == null ? (b == null ? 0 : 1) : -1;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  return [...rows].sort((a, b) => order(column.value(a), column.value(b)) * (isDown ? -1 : 1));
}

export function ExportMenu<Row>({ name, rows, columns }: { name: string; rows: readonly Row[]; columns: Column<Row>[] }) {
  const csv = () => download(`${name}.csv`, "text/csv", toCsv(rows, columns));
  const json = () => {
    const items = rows.map((row) => Object.fromEntries(columns.map((column) => [column.name, column.value(row) ?? null])));
    download(`${name}.json`, "application/json", JSON.stringify(items, null, 2));
  };
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger className="button small plain" disabled={rows.length === 0}>
        Export
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="menu" align="end" sideOffset={4}>
          <DropdownMenu.Item onSelect={csv}>CSV</DropdownMenu.Item>
          <DropdownMenu.Item onSelect={json}>JSON</DropdownMenu.Item>
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

function useIsNarrow(): boolean {
  const [query] = useState(() => matchMedia("(max-width: 860px)"));
  const [isNarrow, change] = useState(query.matches);
  useEffect(() => {
    const update = () => change(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, [query]);
  return isNarrow;
}

export function Table<Row>({ label, rows, columns, rowKey, selected, onSelect, onOpen, height = 420, onEnd }: TableProps<Row>) {
  const [sort, changeSort] = useState<{ name: string; isDown: boolean } | null>(null);
  const isNarrow = useIsNarrow();
  const shown = columns.filter((column) => !(isNarrow && column.isExtra));
  const ordered = useMemo(() => sorted(rows, columns.find((one) => one.name === sort?.name), sort?.isDown ?? false), [rows, columns, sort]);
  const size = Math.min(ROW, Math.floor(TALLEST / Math.max(1, ordered.length)));
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: ordered.length, getScrollElement: () => scroller.current, estimateSize: () => size, overscan: 8, scrollPaddingStart: HEAD, scrollPaddingEnd: HEAD });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? -1;

  useEffect(() => {
    if (onEnd && last >= ordered.length - 1 && ordered.length > 0) onEnd();
  }, [last, ordered.length, onEnd]);

  const row = selected == null ? -1 : ordered.findIndex((one) => rowKey(one) === selected);
  useEffect(() => {
    if (row >= 0) virtual.scrollToIndex(row, { align: "auto" });
  }, [row, virtual]);

  function toggle(name: string): void {
    changeSort(sort?.name !== name ? { name, isDown: false } : sort.isDown ? null : { name, isDown: true });
  }

  function onKey(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step !== undefined && onSelect) {
      event.preventDefault();
      const next = ordered[Math.max(0, Math.min(ordered.length - 1, row + step))];
      if (next) onSelect(next);
    } else if (event.key === "Enter" && row >= 0 && onOpen) {
      onOpen(ordered[row]!);
    }
  }

  const grid = shown.map((column) => column.width ?? "minmax(0, 1fr)").join(" ");
  const active = row >= 0 ? `${label}-${rowKey(ordered[row]!)}`.replaceAll(" ", "-") : undefined;
  return (
    <div
      className="table"
      ref={scroller}
      style={{ height: Math.min(height, ordered.length * size - 1) + HEAD }}
      role="grid" aria-label={label} aria-rowcount={ordered.length + 1} aria-activedescendant={active} tabIndex={0} onKeyDown={onKey}>
      <div className="thead" role="row" aria-rowindex={1} style={{ gridTemplateColumns: grid }}>
        {shown.map((column) => (
          <div
            key={column.name}
            role="columnheader"
            className={column.isNumber ? "right" : undefined}
            aria-sort={sort?.name === column.name ? (sort.isDown ? "descending" : "ascending") : "none"}
          >
            <button onClick={() => toggle(column.name)}>
              {column.title}
              <span aria-hidden="true">{sort?.name === column.name ? (sort.isDown ? " ↓" : " ↑") : ""}</span>
            </button>
          </div>
        ))}
      </div>
      <div style={{ height: virtual.getTotalSize() - 1, position: "relative", overflow: "hidden" }} role="rowgroup">
          {items.map((item) => {
            const one = ordered[item.index]!;
            const key = rowKey(one);
            return (
              <div
                key={key}
                id={`${label}-${key}`.replaceAll(" ", "-")}
                role="row"
                aria-rowindex={item.index + 2}
                aria-selected={key === selected}
                className={onSelect || onOpen ? "tr clickable" : "tr"}
                style={{ gridTemplateColumns: grid, height: size, transform: `translateY(${item.start}px)` }}
                onClick={() => (onSelect ?? onOpen)?.(one)}
                onDoubleClick={() => onOpen?.(one)}
              >
                {shown.map((column) => (
                  <div key={column.name} role="gridcell" className={column.isNumber ? "right num" : undefined}>
                    {column.cell ? column.cell(one) : String(column.value(one) ?? "")}
                  </div>
                ))}
              </div>
            );
          })}
      </div>
    </div>
  );
}
