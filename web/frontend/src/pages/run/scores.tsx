/** Scores by generation and swarm, with the transfers between them. */
import { useQuery } from "@tanstack/react-query";
import { Link, linkOptions } from "@tanstack/react-router";
import { useMemo, useRef } from "react";
import type { Schemas } from "../../api/client";
import { scores } from "../../api/queries";
import { Foreign, PacketLink, Verdict } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { useWidth } from "../../parts/width";
import { score } from "../../lib/format";

type Point = Schemas["GenerationScore"];
type Transfer = Schemas["GenerationTransfer"];

const HEIGHT = 260;
const EDGE = { left: 40, right: 110, top: 12, bottom: 26 };

/** The best score of each swarm so far, generation by generation. */
export function bestByGeneration(points: readonly Point[]): Map<string, { generation: number; value: number; seq: number }[]> {
  const lines = new Map<string, { generation: number; value: number; seq: number }[]>();
  for (const point of points) {
    if (point.outcome == null || point.verdict !== "accepted") continue;
    const line = lines.get(point.swarm) ?? [];
    const last = line.at(-1);
    if (last?.generation === point.generation) {
      if (point.outcome > last.value) line[line.length - 1] = { generation: point.generation, value: point.outcome, seq: point.seq };
    } else {
      line.push({ generation: point.generation, value: Math.max(point.outcome, last?.value ?? point.outcome), seq: point.seq });
    }
    lines.set(point.swarm, line);
  }
  return lines;
}

function ChartOfScores({ points, transfers }: { points: Point[]; transfers: Transfer[] }) {
  const box = useRef<HTMLDivElement>(null);
  const WIDTH = Math.max(300, useWidth(box) - 28);
  const lines = useMemo(() => [...bestByGeneration(points)], [points]);
  const all = lines.flatMap(([, line]) => line);
  const top = Math.max(...all.map((one) => one.value));
  const low = Math.min(...all.map((one) => one.value));
  const pad = (top - low || 0.1) * 0.1;
  const last = Math.max(1, ...all.map((one) => one.generation), ...transfers.map((one) => one.generation));
  const x = (generation: number) => EDGE.left + (generation / last) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value: number) => HEIGHT - EDGE.bottom - ((value - low + pad) / (top - low + 2 * pad)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const at = (swarm: string | null, generation: number) => {
    const line = lines.find(([name]) => name === swarm)?.[1];
    const point = line?.filter((one) => one.generation <= generation).at(-1);
    return point ? y(point.value) : null;
  };
  const ends = lines.map(([name, line], index) => ({ name, index, y: y(line.at(-1)!.value) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => {
    if (place > 0) end.y = Math.max(end.y, ends[place - 1]!.y + 14);
  });
  const steps = Array.from({ length: 4 }, (_, index) => low + ((top - low) * index) / 3);
  const stride = Math.max(1, Math.ceil(last / Math.min(12, (WIDTH - EDGE.left - EDGE.right) / 36)));
  return (
    <div ref={box} style={{ overflowX: "auto", padding: 14 }} tabIndex={0} role="region" aria-label="Best score of each swarm by generation">
      <svg className="chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} style={{ width: WIDTH }} role="img" aria-label={ends.map((end) => `${end.name} ${score(lines[end.index]![1].at(-1)!.value)}`).join(", ")}>
        {steps.map((value) => (
          <g key={value}>
            <line x1={EDGE.left} x2={WIDTH - EDGE.right} y1={y(value)} y2={y(value)} stroke="var(--line)" />
            <text x={EDGE.left - 6} y={y(value) + 4} textAnchor="end">
              {value.toFixed(2)}
            </text>
          </g>
        ))}
        {Array.from({ length: last + 1 }, (_, generation) => generation)
          .filter((generation) => generation % stride === 0)
          .map((generation) => (
            <text key={generation} x={x(generation)} y={HEIGHT - 6} textAnchor="middle">
              {generation === 0 ? "gen 0" : generation}
            </text>
          ))}
        <defs>
          {["good", "bad"].map((tone) => (
            <marker key={tone} id={`arrow-${tone}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0 8 4 0 8Z" fill={tone === "good" ? "var(--text-2)" : "var(--bad)"} />
            </marker>
          ))}
        </defs>
        {transfers.map((transfer, index) => {
          const [from, to] = [at(transfer.from_swarm, transfer.generation), at(transfer.to_swarm, transfer.generation)];
          if (from === null || to === null) return null;
          const isRefused = transfer.verdict !== "accepted";
          const place = x(transfer.generation);
          const bend = (transfer.generation === last ? -1 : 1) * (14 + 12 * transfers.slice(0, index).filter((one) => one.generation === transfer.generation).length);
          return (
            <path
              key={transfer.seq}
              d={`M${place} ${from} C${place + bend} ${from} ${place + bend} ${to} ${place + Math.sign(bend) * 3} ${to}`}
              fill="none"
              stroke={isRefused ? "var(--bad)" : "var(--text-2)"}
              strokeDasharray={isRefused ? "3 3" : undefined}
              strokeWidth="1.4"
              markerEnd={`url(#arrow-${isRefused ? "bad" : "good"})`}
            >
              <title>{`${transfer.from_swarm} to ${transfer.to_swarm}: ${transfer.verdict} ${transfer.refusal_code ?? ""}`}</title>
            </path>
          );
        })}
        {lines.map(([name, line], index) => (
          <g key={name}>
            <polyline fill="none" stroke={`var(--series-${(index % 8) + 1})`} strokeWidth="2" strokeLinejoin="round" points={line.map((one) => `${x(one.generation)},${y(one.value)}`).join(" ")} />
            {line.map((one) => (
              <circle key={one.seq} cx={x(one.generation)} cy={y(one.value)} r="2.6" fill={`var(--series-${(index % 8) + 1})`}>
                <title>{`${name}, generation ${one.generation}: ${score(one.value)}`}</title>
              </circle>
            ))}
          </g>
        ))}
        {ends.map((end) => (
          <text key={end.name} x={WIDTH - EDGE.right + 8} y={end.y + 4} style={{ fill: `var(--series-${(end.index % 8) + 1})`, fontWeight: 600 }}>
            {end.name.slice(0, 12)} {score(lines[end.index]![1].at(-1)!.value)}
          </text>
        ))}
      </svg>
    </div>
  );
}

const SCORES: Column<Point>[] = (["seq", "at", "packet_id", "agent", "swarm", "round", "generation", "verdict", "outcome", "drift_risk"] as const).map((name) => ({ name, title: name, value: (row) => row[name] }));

const TRANSFERS = (session: string): Column<Transfer>[] => [
  { name: "generation", title: "Gen.", value: (row) => row.generation, width: "48px", isNumber: true },
  { name: "from", title: "From", value: (row) => row.from_swarm, cell: (row) => <Foreign>{row.from_swarm ?? "–"}</Foreign>, width: "minmax(56px, 1fr)" },
  { name: "to", title: "To", value: (row) => row.to_swarm, cell: (row) => <Foreign>{row.to_swarm ?? "–"}</Foreign>, width: "minmax(56px, 1fr)" },
  { name: "protocol", title: "Protocol", value: (row) => row.protocol_id, cell: (row) => <Foreign>{row.protocol_id}</Foreign>, isExtra: true },
  { name: "verdict", title: "Verdict", value: (row) => row.refusal_code ?? row.verdict, cell: (row) => <Verdict verdict={row.verdict} code={row.refusal_code} isQuiet />, width: "minmax(64px, 1.6fr)" },
  { name: "packet", title: "Packet", value: (row) => row.packet_id, cell: (row) => <PacketLink id={row.packet_id} session={session} />, width: "84px", isExtra: true },
];

export function Scores({ runId, sessionId, until }: { runId: string; sessionId: string; until: number | undefined }) {
  const answer = useQuery(scores(sessionId));
  return (
    <Loaded answer={answer} what="scores">
      {(all) => {
        const points = all.scores.filter((one) => until === undefined || one.seq <= until);
        const transfers = all.transfers.filter((one) => until === undefined || one.seq <= until);
        const columns = TRANSFERS(sessionId);
        if (points.every((one) => one.outcome == null)) {
          return <Empty title="No scores yet">Scores appear when agents send EVAL packets. Where bodies are sealed, they stay unknown.</Empty>;
        }
        return (
          <>
            <div className="row" style={{ padding: "10px 14px 0", justifyContent: "space-between" }}>
              <h3>Best score of each swarm so far, by generation</h3>
              <ExportMenu name={`scores-${sessionId}`} rows={points} columns={SCORES} />
            </div>
            <ChartOfScores points={points} transfers={transfers} />
            <div className="filters" style={{ borderTop: "1px solid var(--line)", justifyContent: "space-between" }}>
              <span className="soft">
                Arrows are transfers between swarms; dashed red ones were refused. <Link to="/arbitrations" search={{ run: runId }}>Arbitrations of this run</Link>
              </span>
              <ExportMenu name={`transfers-${sessionId}`} rows={transfers} columns={columns} />
            </div>
            {transfers.length === 0 ? <Empty title="No transfers yet">Swarms may transfer from generation 11 on.</Empty> : <Table label="Transfers" rows={transfers} columns={columns} rowKey={(row) => row.seq} link={(row) => linkOptions({ to: "/packets/$packetId", params: { packetId: row.packet_id }, search: { session: sessionId } })} height={280} />}
            {all.is_cut && <p className="quiet" style={{ padding: 14 }}>Only the first 5,000 are shown.</p>}
          </>
        );
      }}
    </Loaded>
  );
}
