/** The lineage of a whole session, drawn by WebGL: a lane an agent, left to right by causal depth or by order. */
import Graph from "graphology";
import { useEffect, useMemo, useRef } from "react";
import Sigma from "sigma";
import { count } from "../../lib/format";
import { overviewOf, type Overview } from "../../lib/lineage";
import { typeColour } from "../../lib/words";
import { useTheme } from "../../shell/theme";
import type { Mark } from "../../state/timeline";
import { useWidth } from "../width";

interface OverviewProps {
  marks: readonly Mark[];
  lanes: readonly string[];
  axis: "depth" | "order";
  selected: number;
  onSelect: (row: number) => void;
}

/** Pixels of a lane. */
const LANE = 34;
const LEAST = 240;

/** A colour of the page as sigma reads it. */
function solid(name: string): string {
  const given = /var\((--[\w-]+)\)/.exec(name)?.[1];
  return given ? getComputedStyle(document.documentElement).getPropertyValue(given).trim() : name;
}

/** Draw the lines on a plain canvas below the dots: without a graphics card WebGL takes a second for them. */
function drawLines(canvas: HTMLCanvasElement, sigma: Sigma, shown: Overview, colour: string): void {
  const { width, height } = sigma.getDimensions();
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const graph = sigma.getGraph();
  const places = new Map<number, { x: number; y: number }>();
  const placeOf = (dot: number) => {
    let place = places.get(dot);
    if (!place) places.set(dot, (place = sigma.graphToViewport(graph.getNodeAttributes(dot) as { x: number; y: number })));
    return place;
  };
  context.strokeStyle = colour;
  context.lineWidth = 0.7;
  context.beginPath();
  for (const [from, to] of shown.edges) {
    const [one, other] = [placeOf(from), placeOf(to)];
    context.moveTo(one.x, one.y);
    context.lineTo(other.x, other.y);
  }
  context.stroke();
}

export function GraphOverview({ marks, lanes, axis, selected, onSelect }: OverviewProps) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const theme = useTheme();
  const shown = useMemo(() => overviewOf(marks, lanes, axis), [marks, lanes, axis]);
  const select = useRef(onSelect);
  const sigma = useRef<Sigma | null>(null);
  const height = Math.max(LEAST, lanes.length * LANE);
  useEffect(() => {
    select.current = onSelect;
  });

  useEffect(() => {
    if (!box.current || width === 0) return;
    const graph = new Graph({ type: "directed", multi: false });
    const colours = new Map<string, string>();
    const colourOf = (type: string) => {
      if (!colours.has(type)) colours.set(type, solid(typeColour(type)));
      return colours.get(type)!;
    };
    const [line, bad] = [solid("var(--line-strong)"), solid("var(--bad)")];
    shown.dots.forEach((dot, index) => {
      const isRefused = dot.refused > 0;
      graph.addNode(index, {
        x: dot.x * width,
        y: -dot.y * (height / Math.max(1, lanes.length)),
        size: Math.min(9, (shown.dots.length > 2_000 ? 2 : 4) + Math.log2(dot.count)),
        color: isRefused ? bad : colourOf(marks[dot.row]!.type),
        row: dot.row,
      });
    });
    const lines = document.createElement("canvas");
    lines.className = "lines";
    const drawn = new Sigma(graph, box.current, {
      settings: { allowInvalidContainer: true, renderLabels: false, renderEdgeLabels: false, stagePadding: 16, minCameraRatio: 0.005, maxCameraRatio: 2, gestureTarget: "shared" },
    });
    drawn.on("clickNode", ({ node }) => select.current(graph.getNodeAttribute(node, "row") as number));
    box.current.prepend(lines);
    drawn.on("afterRender", () => drawLines(lines, drawn, shown, line));
    drawn.refresh();
    sigma.current = drawn;
    return () => {
      lines.remove();
      sigma.current = null;
      drawn.kill();
    };
  }, [shown, marks, lanes.length, width, height, theme]);

  useEffect(() => {
    const drawn = sigma.current;
    if (!drawn || selected < 0) return;
    const graph = drawn.getGraph();
    const place = shown.dots.findIndex((dot, index) => dot.row <= selected && (shown.dots[index + 1]?.row ?? Infinity) > selected);
    if (place < 0 || !graph.hasNode(place)) return;
    const { size, color } = graph.getNodeAttributes(place) as { size: number; color: string };
    graph.mergeNodeAttributes(place, { size: size + 5, color: solid("var(--accent)") });
    return () => {
      if (sigma.current === drawn && graph.hasNode(place)) graph.mergeNodeAttributes(place, { size, color });
    };
  }, [selected, shown, theme, width]);

  return (
    <div className="graph">
      <div className="lanes" aria-hidden="true" style={{ height }}>
        {lanes.map((lane) => (
          <span key={lane} title={lane}>
            {lane}
          </span>
        ))}
      </div>
      <div ref={box} className="dots" style={{ height }} role="img" aria-label={`Lineage of ${marks.length} packets of ${lanes.length} agents, ${shown.deepest + 1} levels deep. The table of packets has the same packets.`} />
      {(shown.isBinned || shown.isCut) && (
        <p className="quiet note">
          {shown.isBinned && `${count(marks.length)} packets are drawn as ${count(shown.dots.length)} marks: a larger mark stands for several. `}
          {shown.isCut && `Of the lines the ${count(shown.edges.length)} with most packets are drawn; click a dot to see all of its own.`}
        </p>
      )}
    </div>
  );
}
