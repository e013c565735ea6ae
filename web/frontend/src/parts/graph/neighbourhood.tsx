/** What a packet comes from and what comes of it: boxes and arrows, laid out by a worker. */
import { Background, Controls, MarkerType, ReactFlow, type Edge, type Node } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import ELK from "elkjs/lib/elk-api";
import layoutWorker from "elkjs/lib/elk-worker.min.js?url";
import { useEffect, useMemo, useState } from "react";
import { gridOf, nearOf } from "../../lib/lineage";
import { visible } from "../../lib/format";
import { codeWord } from "../../lib/words";
import { useTheme } from "../../shell/theme";
import type { Mark } from "../../state/timeline";
import { TypeMark } from "../bits";

interface NeighbourhoodProps {
  marks: readonly Mark[];
  row: number;
  onSelect: (row: number) => void;
  onOpen: (row: number) => void;
}

type Places = ReadonlyMap<number, { x: number; y: number }>;
const BOX = { width: 168, height: 46 };
const GAP = { width: 220, height: 62 };
/** Boxes that can be read at once: of more, the nearest ones are shown first. */
const READABLE = 24;
/** A layout that takes longer is given up. */
const DEADLINE = 5_000;

/** Lay the neighbourhood out in a worker; a plain grid when that takes too long. */
function usePlaces(marks: readonly Mark[], near: ReturnType<typeof nearOf>): Places | null {
  const [places, place] = useState<{ near: unknown; at: Places } | null>(null);
  useEffect(() => {
    const elk = new ELK({ workerUrl: layoutWorker });
    let isOver = false;
    const end = (at: Places) => {
      if (isOver) return;
      isOver = true;
      place({ near, at });
      elk.terminateWorker();
    };
    const timer = setTimeout(() => end(gridOf(marks, near, GAP.width, GAP.height)), DEADLINE);
    elk
      .layout({
        id: "near",
        layoutOptions: { "elk.algorithm": "layered", "elk.direction": "RIGHT", "elk.layered.spacing.nodeNodeBetweenLayers": "56", "elk.spacing.nodeNode": "16" },
        children: near.rows.map((row) => ({ id: String(row), ...BOX })),
        edges: near.edges.map((edge, index) => ({ id: String(index), sources: [String(edge.from)], targets: [String(edge.to)] })),
      })
      .then(
        (found) => end(new Map((found.children ?? []).map((one) => [Number(one.id), { x: one.x ?? 0, y: one.y ?? 0 }]))),
        () => end(gridOf(marks, near, GAP.width, GAP.height)),
      );
    return () => {
      clearTimeout(timer);
      if (!isOver) elk.terminateWorker();
      isOver = true;
    };
  }, [marks, near]);
  return places?.near === near ? places.at : null;
}

function Box({ mark, isCentre }: { mark: Mark; isCentre: boolean }) {
  return (
    <span className={`box${isCentre ? " here" : ""}${mark.verdict === "refused" ? " refused" : ""}`}>
      <span className="row">
        <TypeMark type={mark.type} isHollow={mark.verdict !== "accepted"} />
        <span className="mono">{mark.type}</span>
      </span>
      <span className="soft">{visible(mark.lane)}{mark.code && `: ${codeWord(mark.code)}`}</span>
    </span>
  );
}

export function Neighbourhood({ marks, row, onSelect, onOpen }: NeighbourhoodProps) {
  const theme = useTheme();
  const near = useMemo(() => nearOf(marks, row), [marks, row]);
  const places = usePlaces(marks, near);
  const begin = useMemo(() => (near.rows.length > READABLE ? nearOf(marks, row, READABLE).rows : near.rows).map((one) => ({ id: String(one) })), [marks, near, row]);
  const nodes = useMemo(
    (): Node[] =>
      near.rows.map((one) => ({
        id: String(one),
        position: places?.get(one) ?? { x: 0, y: 0 },
        data: { label: <Box mark={marks[one]!} isCentre={one === row} /> },
        width: BOX.width,
        height: BOX.height,
        sourcePosition: "right" as Node["sourcePosition"],
        targetPosition: "left" as Node["targetPosition"],
        ariaLabel: `${marks[one]!.type} of ${marks[one]!.lane}, ${marks[one]!.verdict}`,
      })),
    [near, places, marks, row],
  );
  const edges = useMemo(
    (): Edge[] =>
      near.edges.map((edge) => ({
        id: `${edge.from}-${edge.to}`,
        source: String(edge.from),
        target: String(edge.to),
        markerEnd: { type: MarkerType.ArrowClosed },
        style: edge.kind === "answer" ? { strokeDasharray: "4 3" } : undefined,
      })),
    [near],
  );
  if (!places) return <p className="soft" role="status" style={{ padding: 14 }}>Laying out {near.rows.length} packets…</p>;
  return (
    <div className="near">
      <ReactFlow
        key={row}
        nodes={nodes}
        edges={edges}
        colorMode={theme}
        fitView
        fitViewOptions={{ nodes: begin, maxZoom: 1, padding: 0.1 }}
        minZoom={0.05}
        nodesDraggable={false}
        nodesConnectable={false}
        onNodeClick={(_, node) => onSelect(Number(node.id))}
        onNodeDoubleClick={(_, node) => onOpen(Number(node.id))}
        proOptions={{ hideAttribution: true }}
      >
        <Background />
        <Controls showInteractive={false} />
      </ReactFlow>
      {near.isCut && <p className="quiet note">The nearest {near.rows.length} packets are shown.</p>}
    </div>
  );
}
