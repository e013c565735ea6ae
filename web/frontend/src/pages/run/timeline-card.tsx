/** The timeline with its filters, legend and time slider. */
import { useEffect, useMemo, useState } from "react";
import { Card, Foreign, TypeMark, TypeName, Verdict } from "../../parts/bits";
import { Empty, Loading } from "../../parts/states";
import { Timeline as Drawing } from "../../parts/timeline/timeline";
import { count, time } from "../../lib/format";
import type { Timeline } from "../../state/timeline";
import { useRunSearch } from "./page";

interface TimelineCardProps {
  timeline: Timeline;
  isLoaded: boolean;
  at: number;
  selected: number;
  kept: ReadonlySet<number> | null;
  onSelect: (row: number) => void;
  onOpen: (row: number) => void;
}

function Pick({ label, value, options, change }: { label: string; value: string | undefined; options: readonly string[]; change: (value: string | undefined) => void }) {
  return (
    <select className="field" aria-label={label} value={value ?? ""} onChange={(event) => change(event.target.value || undefined)}>
      <option value="">{label}: all</option>
      {options.map((option) => (
        <option key={option} value={option}>
          {option}
        </option>
      ))}
    </select>
  );
}

/** Slide the whole page back to any entry; the address follows when the hand rests. */
function Slider({ timeline, at }: { timeline: Timeline; at: number }) {
  const [search, change] = useRunSearch();
  const [row, slide] = useState<number | null>(null);
  const last = timeline.marks.length - 1;
  useEffect(() => {
    if (row === null) return;
    const timer = setTimeout(() => {
      change({ at: row >= last ? undefined : timeline.marks[row]!.seq });
      slide(null);
    }, 140);
    return () => clearTimeout(timer);
  }, [row, last, change, timeline.marks]);
  const shown = row ?? at;
  const mark = timeline.marks[shown];
  return (
    <div className="slider">
      <label htmlFor="slider" className="soft">
        Time
      </label>
      <input
        id="slider"
        type="range"
        min={0}
        max={Math.max(0, last)}
        value={Math.max(0, shown)}
        aria-valuetext={mark ? `entry ${mark.seq}, ${time(mark.time)}` : "the beginning"}
        onChange={(event) => slide(Number(event.target.value))}
      />
      <span className="num">{search.at === undefined && row === null ? `now · ${count(timeline.marks.length)} packets` : mark ? `entry ${mark.seq} · ${time(mark.time)}` : ""}</span>
    </div>
  );
}

export function TimelineCard({ timeline, isLoaded, at, selected, kept, onSelect, onOpen }: TimelineCardProps) {
  const [search, change] = useRunSearch();
  const { marks, lanes } = timeline;
  const types = useMemo(() => [...new Set(marks.map((mark) => mark.type))], [marks]);
  const zoom = search.from !== undefined && search.to !== undefined ? { from: search.from, to: search.to } : null;
  const axis = search.axis ?? "order";
  const mark = marks[selected];
  const isFiltered = Boolean(search.type ?? search.verdict ?? search.agent);
  return (
    <Card
      flush
      title="Timeline"
      aside={
        <>
          {zoom && (
            <button className="button small" onClick={() => change({ from: undefined, to: undefined })}>
              Show all
            </button>
          )}
          <span className="switch" role="group" aria-label="Axis">
            {(["order", "time"] as const).map((name) => (
              <button key={name} aria-pressed={axis === name} onClick={() => change({ axis: name === "time" ? name : undefined, from: undefined, to: undefined })}>
                {name === "order" ? "Order" : "Time"}
              </button>
            ))}
          </span>
        </>
      }
    >
      <div className="filters">
        <Pick label="Agent" value={search.agent} options={lanes} change={(agent) => change({ agent })} />
        <Pick label="Type" value={search.type} options={types} change={(type) => change({ type })} />
        <Pick label="Verdict" value={search.verdict} options={["accepted", "refused", "held"]} change={(verdict) => change({ verdict })} />
        {isFiltered && (
          <>
            <button className="button small plain" onClick={() => change({ type: undefined, verdict: undefined, agent: undefined })}>
              Clear
            </button>
            <span className="quiet num">
              {count(kept?.size ?? 0)} of {count(marks.length)}
            </span>
          </>
        )}
      </div>
      {marks.length === 0 ? (
        isLoaded ? (
          <Empty title="No packets yet">Packets appear here as agents send them.</Empty>
        ) : (
          <Loading what="the timeline" lines={5} />
        )
      ) : (
        <>
          <div style={{ maxHeight: 560, overflowY: "auto", padding: "8px 0 0" }}>
            <Drawing
              marks={marks}
              lanes={lanes}
              axis={axis}
              at={at}
              selected={selected}
              kept={kept}
              zoom={zoom}
              onSelect={onSelect}
              onOpen={onOpen}
              onZoom={(next) => change({ from: next?.from, to: next?.to })}
            />
          </div>
          <Slider timeline={timeline} at={at} />
          <div className="legend">
            {mark ? (
              <>
                <TypeName type={mark.type} isHollow={mark.verdict !== "accepted"} />
                <span>
                  from <Foreign>{mark.lane}</Foreign>
                </span>
                <Verdict verdict={mark.verdict} code={mark.code || null} />
                <span className="num quiet">{time(mark.time)}</span>
                <button className="button small" style={{ marginLeft: "auto" }} onClick={() => onOpen(selected)}>
                  Open packet
                </button>
              </>
            ) : (
              <>
                {types.map((type) => (
                  <span key={type}>
                    <TypeMark type={type} /> {type}
                  </span>
                ))}
                <span className="quiet">hollow: refused or held</span>
              </>
            )}
          </div>
        </>
      )}
    </Card>
  );
}
