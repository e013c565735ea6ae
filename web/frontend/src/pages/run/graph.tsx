/** The lineage of the session: the whole as dots, and the neighbourhood of the packet that is selected. */
import { lazy, Suspense } from "react";
import { Empty, Loading } from "../../parts/states";
import { GraphOverview } from "../../parts/graph/overview";
import type { Timeline } from "../../state/timeline";
import { useMemo } from "react";
import { useRunSearch } from "./page";

const Neighbourhood = lazy(() => import("../../parts/graph/neighbourhood").then((module) => ({ default: module.Neighbourhood })));

interface LineageProps {
  timeline: Timeline;
  isLoaded: boolean;
  at: number;
  selected: number;
  onSelect: (row: number) => void;
  onOpen: (row: number) => void;
}

export function Lineage({ timeline, isLoaded, at, selected, onSelect, onOpen }: LineageProps) {
  const [search, change] = useRunSearch();
  const marks = useMemo(() => (at >= timeline.marks.length - 1 ? timeline.marks : timeline.marks.slice(0, at + 1)), [timeline.marks, at]);
  if (!isLoaded) return <Loading what="the lineage" />;
  if (marks.length === 0) return <Empty title="No packets yet">The graph begins with the first packet.</Empty>;
  const axis = search.by ?? "depth";
  return (
    <>
      <div className="filters" style={{ justifyContent: "space-between" }}>
        <span className="soft">A dot is a packet; red is refused. Ctrl and scroll zoom, drag moves, a click shows what is around it.</span>
        <span className="switch" role="group" aria-label="Left to right">
          <button aria-pressed={axis === "depth"} onClick={() => change({ by: undefined })}>
            By cause
          </button>
          <button aria-pressed={axis === "order"} onClick={() => change({ by: "order" })}>
            By order
          </button>
        </span>
      </div>
      <GraphOverview marks={marks} lanes={timeline.lanes} axis={axis} selected={selected} onSelect={onSelect} />
      {selected >= 0 && selected < marks.length && (
        <Suspense fallback={<Loading what="the neighbourhood" />}>
          <Neighbourhood marks={marks} row={selected} onSelect={onSelect} onOpen={onOpen} />
        </Suspense>
      )}
    </>
  );
}
