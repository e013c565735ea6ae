/** The timeline of a session: hover shows causes, a click selects, a drag zooms. */
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { duration, time } from "../../lib/format";
import { codeWord } from "../../lib/words";
import { useTheme } from "../../shell/theme";
import type { Mark } from "../../state/timeline";
import { useWidth } from "../width";
import { AXIS, LANE, barsOf, draw, placeOf, rowNear, type Scene, type View } from "./drawing";

interface TimelineProps {
  marks: readonly Mark[];
  lanes: readonly string[];
  axis: "order" | "time";
  /** The last row of the past that is shown. */
  at: number;
  selected: number;
  kept: ReadonlySet<number> | null;
  zoom: { from: number; to: number } | null;
  onSelect: (row: number) => void;
  onOpen: (row: number) => void;
  onZoom: (zoom: { from: number; to: number } | null) => void;
}

function ticksOf(marks: readonly Mark[], axis: "order" | "time", from: number, to: number): Scene["ticks"] {
  if (axis === "order") {
    const ticks: Scene["ticks"] = [];
    let generation = -1;
    for (let row = Math.max(0, Math.floor(from)); row < marks.length && row <= to; row += 1) {
      if (marks[row]!.generation > generation) {
        generation = marks[row]!.generation;
        ticks.push({ place: row, words: `gen ${generation}` });
      }
    }
    return generation > 0 ? ticks : []; // a session without generations has none to name
  }
  const start = marks[0]?.time ?? 0;
  const rough = (to - from) / 7;
  const step = [10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000, 21_600_000, 86_400_000].find((one) => one >= rough) ?? 604_800_000;
  const ticks: Scene["ticks"] = [];
  for (let place = start + Math.ceil((from - start) / step) * step; place <= to; place += step) ticks.push({ place, words: `+${duration(place - start)}` });
  return ticks;
}

export function Timeline({ marks, lanes, axis, at, selected, kept, zoom, onSelect, onOpen, onZoom }: TimelineProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const theme = useTheme();
  const [hovered, hover] = useState(-1);
  const [brush, changeBrush] = useState<{ from: number; to: number } | null>(null);

  const [view, still] = useMemo((): [View, Omit<Scene, "selected" | "hovered">] => {
    const place = axis === "order" ? (row: number) => row : (row: number) => marks[row]!.time;
    const all = { from: marks.length ? place(0) : 0, to: marks.length ? Math.max(place(marks.length - 1), place(0) + 1) : 1 };
    const { from, to } = zoom ?? all;
    const left = Math.min(150, Math.max(84, width * 0.16));
    const seen = { width, left, from, to, place };
    return [seen, { marks, lanes, at, kept, ticks: ticksOf(marks, axis, from, to), bars: barsOf(seen, { marks, lanes, at, kept }) }];
  }, [marks, lanes, axis, at, kept, zoom, width]);
  const scene = useMemo((): Scene => ({ ...still, selected, hovered }), [still, selected, hovered]);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (context && width > 0) draw(context, view, scene);
  }, [view, scene, width, theme]);

  const point = (event: PointerEvent): [number, number] => {
    const edge = canvas.current!.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  };

  function onMove(event: PointerEvent): void {
    const [x, y] = point(event);
    if (brush) changeBrush({ ...brush, to: x });
    else hover(rowNear(view, scene, x, y));
  }

  function onUp(event: PointerEvent): void {
    const [x, y] = point(event);
    if (brush && Math.abs(brush.to - brush.from) > 8) {
      const [one, other] = [placeOf(view, brush.from), placeOf(view, brush.to)];
      onZoom({ from: Math.min(one, other), to: Math.max(one, other) });
    } else {
      const row = rowNear(view, scene, x, y);
      if (row >= 0) onSelect(row);
    }
    changeBrush(null);
  }

  function onKey(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };
    const step = steps[event.key];
    if (step !== undefined) {
      event.preventDefault();
      onSelect(Math.max(0, Math.min(marks.length - 1, selected + step)));
    } else if (event.key === "Enter" && selected >= 0) {
      onOpen(selected);
    } else if (event.key === "0" || event.key === "Escape") {
      onZoom(null);
    } else if (event.key === "+" || event.key === "-") {
      const middle = selected >= 0 ? view.place(selected) : (view.from + view.to) / 2;
      const half = ((view.to - view.from) / 2) * (event.key === "+" ? 0.5 : 2);
      onZoom({ from: middle - half, to: middle + half });
    }
  }

  const shown = marks[hovered];
  const tipAt = shown ? Math.min(Math.max(8, (canvas.current ? view.left : 0) + ((view.place(hovered) - view.from) / (view.to - view.from || 1)) * (width - view.left) - 60), Math.max(8, width - 240)) : 0;
  const height = lanes.length * LANE + AXIS;
  return (
    <div
      className="timeline"
      ref={box}
      tabIndex={0}
      role="application"
      aria-label={`Timeline of ${marks.length} packets of ${lanes.length} agents. Arrow keys select, Enter opens, plus and minus zoom, 0 shows all.`}
      onKeyDown={onKey}
    >
      <canvas
        ref={canvas}
        style={{ height, font: "12px system-ui, sans-serif" }}
        onPointerMove={onMove}
        onPointerDown={(event) => {
          canvas.current!.setPointerCapture(event.pointerId);
          const [x] = point(event);
          changeBrush({ from: x, to: x });
        }}
        onPointerUp={onUp}
        onPointerLeave={() => hover(-1)}
        onDoubleClick={() => (hovered >= 0 ? onOpen(hovered) : onZoom(null))}
      />
      {brush && Math.abs(brush.to - brush.from) > 8 && (
        <div style={{ position: "absolute", top: 0, height: lanes.length * LANE, left: Math.min(brush.from, brush.to), width: Math.abs(brush.to - brush.from), background: "var(--accent)", opacity: 0.14, pointerEvents: "none" }} />
      )}
      {shown && !brush && (
        <div className="tip" style={{ left: tipAt, top: lanes.indexOf(shown.lane) * LANE + LANE + 2 }}>
          <div className="mono">{shown.type}</div>
          <div className="soft">
            {shown.lane} · {shown.verdict}
            {shown.code && `: ${codeWord(shown.code)}`}
          </div>
          <div className="quiet num">
            {time(shown.time)}
            {shown.generation > 0 && ` · generation ${shown.generation}`}
          </div>
        </div>
      )}
    </div>
  );
}
