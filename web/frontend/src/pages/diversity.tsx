/** How many different swarms and protocols each generation compared. */
import { useRef } from "react";
import type { Schemas } from "../api/client";
import { Table, type Column } from "../parts/table";
import { useWidth } from "../parts/width";

type Point = Schemas["GenerationDiversity"];

const HEIGHT = 150;
const EDGE = { left: 28, right: 92, top: 12, bottom: 24 };
const SERIES = [
  { name: "swarms", of: (point: Point) => point.mean_swarms, colour: "var(--series-1)", dash: undefined },
  { name: "protocols", of: (point: Point) => point.mean_protocols, colour: "var(--series-2)", dash: "5 4" },
];

const short = (value: number) => value.toFixed(Number.isInteger(value) ? 0 : 1);

const COLUMNS: Column<Point>[] = [
  { name: "generation", title: "Generation", value: (row) => row.generation, width: "minmax(72px, 1fr)", isNumber: true },
  { name: "mean_swarms", title: "Swarms", value: (row) => row.mean_swarms, cell: (row) => short(row.mean_swarms), width: "minmax(60px, 1fr)", isNumber: true },
  { name: "mean_protocols", title: "Protocols", value: (row) => row.mean_protocols, cell: (row) => short(row.mean_protocols), width: "minmax(68px, 1fr)", isNumber: true },
  { name: "candidates", title: "Candidates", value: (row) => row.candidates, width: "minmax(76px, 1fr)", isNumber: true },
  { name: "runs", title: "Runs", value: (row) => row.runs, width: "minmax(48px, 1fr)", isNumber: true, hiddenBelow: 1240 },
];

function Chart({ points }: { points: readonly Point[] }) {
  const box = useRef<HTMLDivElement>(null);
  const WIDTH = Math.max(240, useWidth(box));
  const [first, last] = [points[0]!.generation, points.at(-1)!.generation];
  const most = Math.max(1, ...points.flatMap((point) => SERIES.map((one) => one.of(point))));
  const x = (generation: number) => EDGE.left + (last === first ? 0.5 : (generation - first) / (last - first)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value: number) => HEIGHT - EDGE.bottom - (value / most) * (HEIGHT - EDGE.top - EDGE.bottom);
  const ends = SERIES.map((one) => y(one.of(points.at(-1)!)));
  if (Math.abs(ends[0]! - ends[1]!) < 14) ends[1] = ends[0]! + 14;
  return (
    <div ref={box}>
    <svg className="chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label="Different swarms and protocols among the candidates, by generation; the table has the figures">
      {[0, most].map((value) => (
        <g key={value}>
          <line x1={EDGE.left} x2={WIDTH - EDGE.right} y1={y(value)} y2={y(value)} stroke="var(--line)" />
          <text x={EDGE.left - 6} y={y(value) + 4} textAnchor="end">
            {short(value)}
          </text>
        </g>
      ))}
      {(first === last ? [first] : [first, last]).map((generation) => (
        <text key={generation} x={x(generation)} y={HEIGHT - 6} textAnchor="middle">
          gen {generation}
        </text>
      ))}
      {SERIES.map((one, index) => (
        <g key={one.name}>
          <polyline fill="none" stroke={one.colour} strokeWidth="2" strokeDasharray={one.dash} points={points.map((point) => `${x(point.generation)},${y(one.of(point))}`).join(" ")} />
          {points.map((point) => (
            <circle key={point.generation} cx={x(point.generation)} cy={y(one.of(point))} r="2.8" fill={one.colour}>
              <title>{`Generation ${point.generation}: ${short(one.of(point))} ${one.name}`}</title>
            </circle>
          ))}
          <text x={WIDTH - EDGE.right + 8} y={ends[index]! + 4} style={{ fill: one.colour, fontWeight: 600 }}>
            {one.name}
          </text>
        </g>
      ))}
    </svg>
    </div>
  );
}

export function Diversity({ points }: { points: readonly Point[] }) {
  if (points.length === 0) return <p className="soft" style={{ padding: 14 }}>No candidates yet.</p>;
  return (
    <div className="two" style={{ alignItems: "start" }}>
      <div style={{ padding: 14 }}>
        <Chart points={points} />
        <p className="soft">Different swarms and protocols among the candidates of a generation, on average over runs.</p>
      </div>
      <Table label="Diversity by generation" rows={points} columns={COLUMNS} rowKey={(row) => row.generation} height={210} />
    </div>
  );
}

export const DIVERSITY_COLUMNS = COLUMNS;
