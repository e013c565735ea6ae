/** One table for every list: rows are links, the sort is in the address, rows are drawn only where they are seen, exported as CSV or JSON. */
import { Link, useNavigate, useSearch, type LinkProps } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { DropdownMenu } from "radix-ui";
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode, type RefObject } from "react";
import { download, toCsv, type Cell } from "../lib/export";
import { count } from "../lib/format";
import { useIsPrinted } from "../lib/paper";
import { staysAtEnd } from "../lib/scroll";
import { nextSort, readSort, sorted, type Sort } from "../lib/sort";

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
  /** Leave it out below so many pixels. */
  hiddenBelow?: number;
  /** What a row is known by: in a narrow window it has a line to itself, above the other columns. */
  isMain?: boolean;
}

interface TableProps<Row> {
  label: string;
  rows: readonly Row[];
  columns: Column<Row>[];
  rowKey: (row: Row) => string | number;
  /** Where a row leads: a real link around its first cell, which covers the row unless a click selects. The first cell has no other link. */
  link?: (row: Row) => LinkProps;
  selected?: string | number | null;
  onSelect?: (row: Row) => void;
  height?: number;
  /** Called when the end comes into view. */
  onEnd?: () => void;
  /**
   * Columns by which the server sorts, where the rows are a part of a longer list: the others are no buttons. The page
   * reads the sort by `useSort`. Without it the rows are all there are, and the table sorts them by any column.
   */
  serverSorts?: readonly string[];
  /** Whether rows come in at the end: then the table opens there, and stays there until its reader scrolls away. */
  isLive?: boolean;
}

const ROW = 34;
const HEAD = 33;
/** Of a row, and of the head, in two lines. */
const TWO_LINES = 56;
/** Below so many pixels the main column has a line to itself. */
const STACKED = 620;
/** Rows of a table on paper. */
const MOST_PRINTED = 500;
/** Pixels of all rows together: browsers draw nothing beyond 33,554,428. */
const TALLEST = 33_500_000;

/** The sort in the address: `sort=name` or `sort=-name`. */
export function useSort(): Sort | null {
  return readSort(useSearch({ strict: false }).sort);
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

function useWindowWidth(): number {
  const [width, change] = useState(innerWidth);
  useEffect(() => {
    const update = () => change(innerWidth);
    addEventListener("resize", update);
    return () => removeEventListener("resize", update);
  }, []);
  return width;
}

const NARROW = 860;

/** The row that the arrow keys have come to in a table without selection. */
function useCurrent(length: number): [number, (row: number) => void] {
  const [current, move] = useState(-1);
  return [Math.min(current, length - 1), move];
}

/** Stay at the end of a list that grows, unless its reader looks elsewhere; told where that is by the scroller. */
function useEnd(scroller: RefObject<HTMLDivElement | null>, length: number, isLive: boolean, toEnd: () => void): () => void {
  const isAtEnd = useRef(isLive);
  const top = useRef(0);
  useEffect(() => {
    if (isLive && isAtEnd.current && length > 0) toEnd();
    // `toEnd` is another function each time: the length alone says that there is something to go to.
  }, [isLive, length]);
  return () => {
    const box = scroller.current;
    if (!box) return;
    isAtEnd.current = staysAtEnd(isAtEnd.current, top.current, box);
    top.current = box.scrollTop;
  };
}

const STEPS: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

export function Table<Row>({ label, rows, columns, rowKey, link, selected, onSelect, height = 420, onEnd, serverSorts, isLive = false }: TableProps<Row>) {
  const sort = useSort();
  const navigate = useNavigate();
  const width = useWindowWidth();
  const shown = columns.filter((column) => width > (column.hiddenBelow ?? (column.isExtra ? NARROW : 0)));
  const ordered = useMemo(() => (serverSorts ? rows : sorted(rows, columns.find((one) => one.name === sort?.name), sort?.isDown ?? false)), [rows, columns, sort?.name, sort?.isDown, serverSorts]);
  const isStacked = width <= STACKED && shown.length > 1 && shown.some((column) => column.isMain);
  const head = isStacked ? TWO_LINES : HEAD;
  const size = Math.min(isStacked ? TWO_LINES : ROW, Math.floor(TALLEST / Math.max(1, ordered.length)));
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: ordered.length, getScrollElement: () => scroller.current, estimateSize: () => size, overscan: 8, scrollPaddingStart: head, scrollPaddingEnd: head });
  useEffect(() => virtual.measure(), [virtual, size]);
  const isPrinted = useIsPrinted();
  const seen = virtual.getVirtualItems();
  const last = seen.at(-1)?.index ?? -1;
  // Paper does not scroll.
  const items = isPrinted ? ordered.slice(0, MOST_PRINTED).map((_, index) => ({ index, start: index * size })) : seen;

  useEffect(() => {
    if (onEnd && last >= ordered.length - 1 && ordered.length > 0) onEnd();
  }, [last, ordered.length, onEnd]);

  // A reader who sorts, or came with a row in the address, has a place already.
  const follow = useEnd(scroller, ordered.length, isLive && sort === null && selected == null, () => virtual.scrollToIndex(ordered.length - 1, { align: "end" }));

  const [current, move] = useCurrent(ordered.length);
  const row = onSelect ? (selected == null ? -1 : ordered.findIndex((one) => rowKey(one) === selected)) : current;
  useEffect(() => {
    if (row >= 0) virtual.scrollToIndex(row, { align: "auto" });
  }, [row, virtual]);

  const idOf = (one: Row) => `${label}-${rowKey(one)}`.replaceAll(" ", "-");
  const active = row >= 0 ? idOf(ordered[row]!) : undefined;

  function onKey(event: KeyboardEvent): void {
    if (event.target !== scroller.current) return; // a button or link of a cell has its own keys
    const step = STEPS[event.key];
    if (step !== undefined && (onSelect || link)) {
      event.preventDefault();
      const next = Math.max(0, Math.min(ordered.length - 1, row + step));
      if (onSelect) onSelect(ordered[next]!);
      else move(next);
    } else if (event.key === "Enter" && active) {
      const opened = document.getElementById(active)?.querySelector<HTMLAnchorElement>("a.row-link");
      opened?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ctrlKey: event.ctrlKey, metaKey: event.metaKey }));
    }
  }

  const place = (column: Column<Row>) => `${isStacked && column.isMain ? "main" : ""} ${column.isNumber ? "right" : ""}`;
  const grid = shown.filter((column) => !(isStacked && column.isMain)).map((column) => column.width ?? "minmax(0, 1fr)").join(" ");
  return (
    <>
    <div
      className={isStacked ? "table stacked" : "table"}
      ref={scroller}
      style={{ height: Math.min(isStacked ? Math.max(height, 480) : height, ordered.length * size - 1) + head }}
      role="grid" aria-label={label} aria-rowcount={ordered.length + 1} aria-activedescendant={active} tabIndex={0} onKeyDown={onKey} onScroll={follow}>
      <div className="thead" role="row" aria-rowindex={1} style={{ gridTemplateColumns: grid }}>
        {shown.map((column) => (
          <Head
            key={column.name}
            column={column}
            place={place(column)}
            sort={sort?.name === column.name ? sort : null}
            toggle={!serverSorts || serverSorts.includes(column.name) ? () => void navigate({ to: ".", search: (old) => ({ ...old, sort: nextSort(sort, column.name) }), replace: true, resetScroll: false }) : undefined}
          />
        ))}
      </div>
      <div style={{ height: (isPrinted ? items.length * size : virtual.getTotalSize()) - 1, position: "relative", overflow: "hidden" }} role="rowgroup">
        {items.map((item) => {
          const one = ordered[item.index]!;
          const key = rowKey(one);
          return (
            <div
              key={key}
              id={idOf(one)}
              role="row"
              aria-rowindex={item.index + 2}
              aria-selected={onSelect ? key === selected : undefined}
              className={`tr ${onSelect || link ? "clickable" : ""} ${item.index === current ? "current" : ""}`}
              style={{ gridTemplateColumns: grid, height: size, transform: `translateY(${item.start}px)` }}
              onClick={() => onSelect?.(one)}
            >
              {shown.map((column, index) => (
                <div key={column.name} role="gridcell" className={`${place(column)} ${column.isNumber ? "num" : ""}`}>
                  {link && index === 0 ? (
                    <Link {...link(one)} className={onSelect ? "row-link" : "row-link whole"} tabIndex={-1} onClick={(event) => event.stopPropagation()}>
                      <Content column={column} row={one} />
                    </Link>
                  ) : (
                    <Content column={column} row={one} />
                  )}
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
    {isPrinted && ordered.length > MOST_PRINTED && <p className="note quiet">The first {count(MOST_PRINTED)} of {count(ordered.length)} rows; the page exports all that it has loaded.</p>}
    </>
  );
}

function Content<Row>({ column, row }: { column: Column<Row>; row: Row }) {
  return <>{column.cell ? column.cell(row) : String(column.value(row) ?? "")}</>;
}

function Head<Row>({ column, place, sort, toggle }: { column: Column<Row>; place: string; sort: Sort | null; toggle?: () => void }) {
  const order = sort ? (sort.isDown ? "descending" : "ascending") : "none";
  return (
    <div role="columnheader" className={place} aria-sort={toggle ? order : undefined}>
      {toggle ? (
        <button onClick={toggle}>
          {column.title}
          <span aria-hidden="true">{sort ? (sort.isDown ? " ↓" : " ↑") : ""}</span>
        </button>
      ) : (
        column.title
      )}
    </div>
  );
}
