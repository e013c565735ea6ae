/** The packets of a session as a table that shares its selection with the timeline. */
import { useMemo } from "react";
import { Foreign, TypeName, Verdict } from "../../parts/bits";
import { Empty, Loading } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { count, plural, time } from "../../lib/format";
import { rowAt, type Mark, type Timeline } from "../../state/timeline";
import { MOST_PACKETS } from "./data";

const COLUMNS: Column<Mark>[] = [
  { name: "seq", title: "Entry", value: (row) => row.seq, width: "64px", isNumber: true, isExtra: true },
  { name: "time", title: "Time", value: (row) => new Date(row.time).toISOString(), cell: (row) => <span className="num">{time(row.time)}</span>, width: "108px", isExtra: true },
  { name: "type", title: "Type", value: (row) => row.type, cell: (row) => <TypeName type={row.type} isHollow={row.verdict !== "accepted"} />, width: "minmax(98px, 150px)" },
  { name: "sender", title: "Sender", value: (row) => row.lane, cell: (row) => <Foreign>{row.lane}</Foreign>, width: "minmax(80px, 1fr)" },
  { name: "verdict", title: "Verdict", value: (row) => row.verdict, cell: (row) => <Verdict verdict={row.verdict} code={row.code || null} isQuiet />, width: "minmax(92px, 1.6fr)" },
  { name: "refusal_code", title: "Code", value: (row) => row.code || null, cell: (row) => <span className="mono quiet">{row.code}</span>, width: "minmax(0, 1fr)", isExtra: true },
  { name: "generation", title: "Generation", value: (row) => row.generation, width: "88px", isNumber: true, isExtra: true },
];

interface PacketTableProps {
  name: string;
  timeline: Timeline;
  isLoaded: boolean;
  at: number;
  selected: number | null;
  kept: ReadonlySet<number> | null;
  onSelect: (row: number) => void;
  onOpen: (row: number) => void;
}

export function PacketTable({ name, timeline, isLoaded, at, selected, kept, onSelect, onOpen }: PacketTableProps) {
  const { marks } = timeline;
  // A million marks are not copied: without filters the rows are the marks themselves.
  const rows = useMemo(() => {
    const past = at >= marks.length - 1 ? marks : marks.slice(0, at + 1);
    return kept === null ? past : past.filter((_, row) => kept.has(row));
  }, [marks, at, kept]);
  const rowOf = (mark: Mark) => rowAt(marks, mark.seq);
  if (!isLoaded && rows.length === 0) return <Loading what="packets" />;
  if (rows.length === 0) return <Empty title="No packets">{kept ? "No packet matches these filters." : "Packets appear here as agents send them."}</Empty>;
  return (
    <>
      <div className="filters" style={{ justifyContent: "space-between" }}>
        <span className="quiet num">
          {plural(rows.length, "packet")}
          {timeline.isFilling && ", more are loading"}
          {marks.length >= MOST_PACKETS && ` of the first ${count(MOST_PACKETS)}`} <span className="hint">· ↑ ↓ select, Enter opens</span>
        </span>
        <ExportMenu name={`packets-${name}`} rows={rows} columns={COLUMNS} />
      </div>
      <Table label="Packets" rows={rows} columns={COLUMNS} rowKey={(row) => row.seq} selected={selected} onSelect={(mark) => onSelect(rowOf(mark))} onOpen={(mark) => onOpen(rowOf(mark))} height={440} />
    </>
  );
}
