/** The lifecycle of a packet as a diagram, with the states that it passed for one recipient. */
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { drawnEdges, pathOf, placesOf, recipientsOf, type Place } from "../../lib/lifecycle";
import { stepWord } from "../../lib/words";

const BOX = { width: 164, height: 24, gap: 40, step: 36 };
const SIZE = { width: 2 * BOX.width + BOX.gap + 34, margin: 17 };

const left = (place: Place) => SIZE.margin + place.column * (BOX.width + BOX.gap);
const top = (place: Place) => 4 + place.row * BOX.step;
const middle = (place: Place) => top(place) + BOX.height / 2;

/** A line between two boxes: straight down, across the gap, or around the side. */
function lineOf(from: Place, to: Place): string {
  if (from.column === to.column) {
    if (to.row === from.row + 1) return `M${left(from) + BOX.width / 2} ${top(from) + BOX.height}V${top(to)}`;
    const side = from.column === 0 ? left(from) : left(from) + BOX.width;
    const out = side + (from.column === 0 ? -14 : 14);
    return `M${side} ${middle(from)}C${out} ${middle(from)} ${out} ${middle(to)} ${side} ${middle(to)}`;
  }
  const [start, end] = from.column < to.column ? [left(from) + BOX.width, left(to)] : [left(from), left(to) + BOX.width];
  const bend = (start + end) / 2;
  return `M${start} ${middle(from)}C${bend} ${middle(from)} ${bend} ${middle(to)} ${end} ${middle(to)}`;
}

function Diagram({ detail, recipient }: { detail: Schemas["PacketDetail"]; recipient: string | undefined }) {
  const places = placesOf(detail.lifecycle);
  const at = new Map(places.map((place) => [place.name, place]));
  const path = pathOf(detail.hops, recipient);
  const passed = new Set(path.flatMap((step) => [step.from, step.to]));
  const here = path.at(-1)?.to;
  const ways = new Set(path.map((step) => `${step.from} ${step.to}`));
  const drawn = drawnEdges(detail.lifecycle).filter((edge) => !ways.has(`${edge.from} ${edge.to}`));
  const lines = [...drawn.map((edge) => ({ ...edge, isPassed: false })), ...[...ways].map((way) => ({ from: way.split(" ")[0]!, to: way.split(" ")[1]!, isPassed: true }))];
  const words = here ? `Passed ${[path[0]!.from, ...path.map((step) => step.to)].map(stepWord).join(", ")}` : "No step yet";
  const height = 8 + Math.max(...places.map((place) => place.row + 1)) * BOX.step - (BOX.step - BOX.height);
  return (
    <svg className="lifecycle" viewBox={`0 0 ${SIZE.width} ${height}`} role="img" aria-label={`${words}${recipient ? `, for ${recipient}` : ""}`}>
      {lines.map(({ from, to, isPassed }) => {
        const [start, end] = [at.get(from), at.get(to)];
        return start && end && <path key={`${from} ${to}`} className={isPassed ? "passed" : undefined} d={lineOf(start, end)} />;
      })}
      {places.map((place) => (
        <g key={place.name} className={place.name === here ? (place.column === 0 ? "here" : "here ended") : passed.has(place.name) ? "passed" : undefined}>
          <title>{place.name}</title>
          <rect x={left(place)} y={top(place)} width={BOX.width} height={BOX.height} rx="5" />
          <text x={left(place) + BOX.width / 2} y={middle(place) + 4} textAnchor="middle">
            {stepWord(place.name)}
          </text>
        </g>
      ))}
    </svg>
  );
}

export function Lifecycle({ detail }: { detail: Schemas["PacketDetail"] }) {
  const names = recipientsOf(detail.recipients, detail.hops);
  const [chosen, choose] = useState<string>();
  const recipient = chosen !== undefined && names.includes(chosen) ? chosen : names[0];
  if (detail.lifecycle.states.length === 0) return null;
  return (
    <>
      {names.length > 1 && (
        <label className="row soft" style={{ marginBottom: 10 }}>
          Recipient
          <select className="field" value={recipient} onChange={(event) => choose(event.target.value)}>
            {names.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      )}
      <Diagram detail={detail} recipient={recipient} />
    </>
  );
}
