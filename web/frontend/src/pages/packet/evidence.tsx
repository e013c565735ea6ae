/** What a packet rests on: references, scores against their gate, falsifiers. */
import { Foreign, PacketLink } from "../../parts/bits";
import { Json } from "../../parts/json";
import { plain, score } from "../../lib/format";

type Json = Record<string, unknown>;

const KNOWN = new Set(["evidence_refs", "gate_scores", "falsifiers", "signatures"]);
const texts = (value: unknown): string[] => (Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : []);

function Reference({ name, session }: { name: string; session: string }) {
  const id = /^packet:([0-9a-f-]{36})$/.exec(name)?.[1];
  if (id) return <PacketLink id={id} session={session}>{name}</PacketLink>;
  return <Foreign>{name}</Foreign>;
}

/** `isScored` leaves out the scores of the gate: the packet shows them itself. */
export function Evidence({ bundle, session, isScored }: { bundle: Json; session: string; isScored: boolean }) {
  const references = texts(bundle.evidence_refs);
  const falsifiers = texts(bundle.falsifiers);
  const scores = Object.entries((isScored ? {} : (bundle.gate_scores ?? {})) as Json).filter((pair): pair is [string, number] => typeof pair[1] === "number");
  const others = Object.entries(bundle).filter(([name, value]) => !KNOWN.has(name) || (name === "signatures" && Array.isArray(value) && value.length > 0));
  return (
    <div className="stack" style={{ gap: 8 }}>
      <h3>Evidence</h3>
      {references.length + falsifiers.length + scores.length + others.length === 0 && <p className="soft">None was given.</p>}
      {references.length > 0 && (
        <ul className="refs">
          {references.map((one) => (
            <li key={one} className="mono">
              <Reference name={one} session={session} />
            </li>
          ))}
        </ul>
      )}
      {scores.length > 0 && (
        <p className="row" style={{ gap: 6 }}>
          {scores.map(([name, value]) => (
            <span key={name} className="badge">
              {plain(name)} <b className="num">{score(value)}</b>
            </span>
          ))}
        </p>
      )}
      {falsifiers.length > 0 && (
        <div>
          <p className="quiet">It would be wrong if</p>
          <ul className="refs">
            {falsifiers.map((one) => (
              <li key={one}>
                <Foreign>{one}</Foreign>
              </li>
            ))}
          </ul>
        </div>
      )}
      {others.length > 0 && <Json value={Object.fromEntries(others)} />}
    </div>
  );
}
