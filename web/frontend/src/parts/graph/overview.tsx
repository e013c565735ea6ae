/** The lineage of a whole session: a lane an agent, left to right by causal depth or by order. Drag to move, Ctrl and scroll to zoom. */
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent, type RefObject } from "react";
import { count } from "../../lib/format";
import { cellsOf, linesOf, moveOf, packetNear, planOf, type Axis, type Cells, type Plan, type Window } from "../../lib/overview";
import { typeColour } from "../../lib/words";
import { useTheme } from "../../shell/theme";
import type { Mark } from "../../state/timeline";
import { useWidth } from "../width";
import { drawLines, drawMarks, ROUND, type Colours } from "./overview-drawing";
import { useWindow } from "./window";

interface OverviewProps {
  marks: readonly Mark[];
  lanes: readonly string[];
  axis: Axis;
  selected: number;
  onSelect: (row: number) => void;
}

/** Pixels of a lane. */
const LANE = 34;
const LEAST = 240;
/** Lines are computed again when the hand has rested for so many milliseconds; until then they move with the marks. */
const REST = 140;

function coloursOf(types: readonly string[]): Colours {
  const style = getComputedStyle(document.documentElement);
  const solid = (name: string) => style.getPropertyValue(/--[\w-]+/.exec(name)![0]).trim();
  return { types: types.map((type) => solid(typeColour(type))), bad: solid("--bad"), line: solid("--line-strong"), accent: solid("--accent"), surface: solid("--surface") };
}

/** Draw marks at once and lines after a rest; return what is drawn. */
function useDrawing(marks: RefObject<HTMLCanvasElement | null>, lines: RefObject<HTMLCanvasElement | null>, plan: Plan, window: Window, selected: number): { cells: Cells | null; isCut: boolean } {
  const theme = useTheme();
  const colours = useMemo(() => ({ theme, ...coloursOf(plan.types) }), [plan, theme]);
  const cells = useMemo(() => (window.width > 0 ? cellsOf(plan, window) : null), [plan, window]);
  const [isCut, cut] = useState(false);
  const drawn = useRef<Window | null>(null);

  useEffect(() => {
    if (cells) drawMarks(marks.current!, window, plan, cells, colours, selected);
  }, [marks, plan, window, cells, colours, selected]);

  useEffect(() => {
    if (!cells) return;
    const canvas = lines.current!;
    let frame = 0;
    const draw = () => {
      const found = linesOf(plan, window, cells.filled.length <= ROUND ? { ...cells, side: 1 } : cells);
      cut(found.isCut);
      frame = requestAnimationFrame(() => {
        drawLines(canvas, window, found, colours.line);
        canvas.style.transform = "";
        drawn.current = window;
      });
    };
    const old = drawn.current;
    if (old && old.width === window.width && old.height === window.height) {
      const { scale, shift } = moveOf(old, window);
      canvas.style.transform = `translateX(${shift}px) scaleX(${scale})`;
    }
    const timer = setTimeout(draw, old ? REST : 0);
    return () => {
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [lines, plan, window, cells, colours]);
  return { cells, isCut };
}

export function GraphOverview({ marks, lanes, axis, selected, onSelect }: OverviewProps) {
  const box = useRef<HTMLDivElement>(null);
  const below = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const plan = useMemo(() => planOf(marks, lanes, axis), [marks, lanes, axis]);
  const height = Math.max(LEAST, lanes.length * LANE);
  const { window, isZoomed, zoom, showAll, show, hands } = useWindow(box, width, height, axis);
  const { cells, isCut } = useDrawing(above, below, plan, window, selected < marks.length ? selected : -1);

  const { from, to } = window;
  useEffect(() => {
    const place = plan.x[selected];
    if (place !== undefined && (place < from || place > to)) show(place);
    // Only a new selection moves the window: a hand that drags it away is left alone.
  }, [selected, plan, show]);

  const packetAt = (event: PointerEvent): number => {
    const edge = box.current!.getBoundingClientRect();
    return cells ? packetNear(cells, event.clientX - edge.left, event.clientY - edge.top) : -1;
  };

  function onKey(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };
    const step = steps[event.key];
    if (step !== undefined) {
      event.preventDefault();
      onSelect(Math.max(0, Math.min(marks.length - 1, selected + step)));
    } else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 0.5 : 2, plan.x[selected] ?? (from + to) / 2);
    else if (event.key === "0" || event.key === "Escape") showAll();
  }

  const isBinned = cells !== null && cells.filled.length < cells.packets;
  return (
    <div className="graph">
      <div className="lanes" aria-hidden="true" style={{ height }}>
        {lanes.map((lane) => (
          <span key={lane} title={lane}>
            {lane}
          </span>
        ))}
      </div>
      <div
        ref={box}
        className="dots"
        style={{ height }}
        tabIndex={0}
        role="application"
        aria-label={`Lineage of ${marks.length} packets of ${lanes.length} agents, ${plan.deepest + 1} levels deep. Arrow keys select, plus and minus zoom, 0 shows all. The table of packets has the same packets.`}
        onKeyDown={onKey}
        onPointerDown={hands.down}
        onPointerMove={(event) => {
          if (!hands.move(event)) box.current!.style.cursor = packetAt(event) >= 0 ? "pointer" : "";
        }}
        onPointerUp={(event) => {
          const row = hands.up(event) ? -1 : packetAt(event);
          if (row >= 0) onSelect(row);
        }}
        onPointerCancel={hands.up}
      >
        <canvas ref={below} />
        <canvas ref={above} />
      </div>
      {(isBinned || isCut || isZoomed) && (
        <p className="quiet note">
          {isBinned && `${count(cells.packets)} packets are drawn as ${count(cells.filled.length)} marks: zoom in to tell them apart. `}
          {isCut && "Some of the lines are drawn; click a mark to see all of its lines. "}
          {isZoomed && (
            <button className="button small" onClick={showAll}>
              Show all
            </button>
          )}
        </p>
      )}
    </div>
  );
}
