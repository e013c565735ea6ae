/** The packets of a session as a table that shares its selection with the timeline. */
import { useQuery } from "@tanstack/react-query";
import type { LinkProps } from "@tanstack/react-router";
import { useMemo } from "react";
import { line } from "../../api/queries";
import { Foreign, Time, TypeName, Verdict, ZoneTitle, useIsViewer } from "../../parts/bits";
import { ContentLine } from "../../parts/content";
import { Empty, Loading } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { count, plural } from "../../lib/format";
import { useIsPrinted } from "../../lib/paper";
import { rowAt, type Mark, type Timeline } from "../../state/timeline";
import { MOST_PACKETS } from "./data";

/** What a packet says, in a line; those of a page are asked for together. */
export function Says({ sessionId, seq }: { sessionId: string; seq: number }) {
  const isViewer = useIsViewer();
  const answer = useQuery({ ...line(sessionId, seq), enabled: !isViewer });
  const isOnPaper = useIsPrinted();
  if (!isViewer && answer.data === undefined) return isOnPaper ? <span className="quiet">not loaded</span> : null;
  return <ContentLine line={answer.data?.line ?? ""} body={answer.data?.body ?? "readable"} />;
}

const says = (sessionId: string): Column<Mark> => ({ name: "says", title: "Content", value: (row) => row.seq, cell: (row) => <Says sessionId={sessionId} seq={row.seq} />, width: "minmax(160px, 5fr)", isMain: true });

const COLUMNS: Column<Mark>[] = [
  { name: "seq", title: "Entry", value: (row) => row.seq, width: "64px", isNumber: true, hiddenBelow: 1100 },
  { name: "time", title: <ZoneTitle />, value: (row) => new Date(row.time).toISOString(), cell: (row) => <Time at={row.time} isBare />, width: "116px", isExtra: true },
  { name: "type", title: "Type", value: (row) => row.type, cell: (row) => <TypeName type={row.type} isHollow={row.verdict !== "accepted"} />, width: "minmax(98px, 112px)" },
  { name: "sender", title: "Sender", value: (row) => row.lane, cell: (row) => <Foreign>{row.lane}</Foreign>, width: "minmax(84px, 1fr)" },
  { name: "verdict", title: "Verdict", value: (row) => row.verdict, cell: (row) => <Verdict verdict={row.verdict} code={row.code || null} isQuiet />, width: "minmax(92px, 1.7fr)" },
  { name: "refusal_code", title: "Code", value: (row) => row.code || null, cell: (row) => <span className="mono quiet">{row.code}</span>, width: "minmax(0, 1fr)", isExtra: true },
];

const GENERATION: Column<Mark> = { name: "generation", title: "Generation", value: (row) => row.generation, width: "88px", isNumber: true, isExtra: true };

interface PacketTableProps {
  sessionId: string;
  /** Whether the session's contract counts generations. */
  hasGenerations: boolean;
  timeline: Timeline;
  isLoaded: boolean;
  /** The session goes on, and is shown as it is now. */
  isLive: boolean;
  at: number;
  selected: number | null;
  kept: ReadonlySet<number> | null;
  onSelect: (row: number) => void;
  link: (mark: Mark) => LinkProps;
}

export function PacketTable({ sessionId, hasGenerations, timeline, isLoaded, isLive, at, selected, kept, onSelect, link }: PacketTableProps) {
  const { marks } = timeline;
  // A million marks are not copied: without filters the rows are the marks themselves.
  const rows = useMemo(() => {
    const past = at >= marks.length - 1 ? marks : marks.slice(0, at + 1);
    return kept === null ? past : past.filter((_, row) => kept.has(row));
  }, [marks, at, kept]);
  const columns = useMemo(() => {
    const shown = COLUMNS.filter((one) => one.name !== "refusal_code");
    return [...shown.slice(0, 4), says(sessionId), ...shown.slice(4), ...(hasGenerations ? [GENERATION] : [])];
  }, [sessionId, hasGenerations]);
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
        <ExportMenu name={`packets-${sessionId}`} rows={rows} columns={[...COLUMNS, GENERATION]} />
      </div>
      <Table label="Packets" rows={rows} columns={columns} rowKey={(row) => row.seq} selected={selected} onSelect={(mark) => onSelect(rowOf(mark))} link={link} height={440} isLive={isLive} />
    </>
  );
}
