/** The path of a packet through its lifecycle, one step a hop. */
import type { Schemas } from "../../api/client";
import { Foreign, Time } from "../../parts/bits";
import { effectOf } from "../../lib/effects";
import { plain, zone } from "../../lib/format";
import { stepWord } from "../../lib/words";

const BAD = new Set(["REJECTED_SCHEMA", "REJECTED_POLICY", "DEAD_LETTERED", "EXPIRED", "RETRACTED"]);
const GOOD = new Set(["ARCHIVED", "PROMOTED", "VERIFIED"]);

type Hop = Schemas["PacketHop"];

function reason(hop: Hop): string {
  const found = hop.metadata?.error ?? hop.metadata?.warning ?? hop.metadata?.reason;
  return typeof found === "string" ? found : "";
}

/** What a worker or an operator has reported of an effect outside the bus. */
function Effect({ hop }: { hop: Hop }) {
  const effect = effectOf(hop);
  if (effect === null) return null;
  return (
    <div className="soft">
      <Foreign>{effect.key}</Foreign>
      {hop.actor !== hop.recipient && (
        <>
          , by <Foreign>{hop.actor}</Foreign>
        </>
      )}
      {effect.said.map((one) => (
        <span key={one}>
          , <Foreign>{one}</Foreign>
        </span>
      ))}
      {effect.digest && (
        <div className="mono" title="SHA-256 of the result">
          <Foreign>{effect.digest}</Foreign>
        </div>
      )}
    </div>
  );
}

/** Steps of one entry as one line: where it began and where it ended. */
function joined(hops: readonly Hop[]): Hop[] {
  const lines: Hop[] = [];
  for (const hop of hops) {
    const last = lines.at(-1);
    if (last && last.seq === hop.seq) lines[lines.length - 1] = { ...hop, from_state: last.from_state };
    else lines.push(hop);
  }
  return lines;
}

export function Hops({ detail }: { detail: Schemas["PacketDetail"] }) {
  const lines = joined(detail.hops);
  if (lines.length === 0) return <p className="soft">{detail.verdict === "refused" ? "Refused on arrival: it was never delivered." : "No steps yet."}</p>;
  return (
    <ol className="hops">
      {lines.map((hop) => (
        <li key={hop.seq} className={BAD.has(hop.to_state) ? "bad" : GOOD.has(hop.to_state) ? "good" : ""}>
          <span className="quiet"><Time at={hop.at} isBare /> {zone(hop.at)}</span>
          <div>
            <span title={`${hop.from_state} → ${hop.to_state || "no change"}`}>{hop.to_state ? stepWord(hop.to_state) : plain(hop.event)}</span>
            {hop.recipient && (
              <span className="soft">
                {" "}
                at <Foreign>{hop.recipient}</Foreign>
              </span>
            )}
            {hop.to_state && <span className="protocol"> {hop.to_state}</span>}
            {hop.attempt > 1 && <span className="quiet">, attempt {hop.attempt}</span>}
            <Effect hop={hop} />
            {reason(hop) && (
              <div className="soft">
                <Foreign>{reason(hop)}</Foreign>
              </div>
            )}
          </div>
        </li>
      ))}
    </ol>
  );
}
