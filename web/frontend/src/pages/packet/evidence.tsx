/** What a packet gives as its evidence beside packets: references, scores against their gate, falsifiers. */
import { Foreign } from "../../parts/bits";
import { Json } from "../../parts/json";
import { plain, score } from "../../lib/format";

type Json = Record<string, unknown>;

const KNOWN = new Set(["evidence_refs", "gate_scores", "falsifiers", "signatures"]);
const texts = (value: unknown): string[] => (Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : []);

/** `isScored` leaves out the scores of the gate: the packet shows them itself. */
export function Evidence({ bundle, isScored }: { bundle: Json; isScored: boolean }) {
  const references = texts(bundle.evidence_refs).filter((one) => !one.startsWith("packet:"));
  const falsifiers = texts(bundle.falsifiers);
  const scores = Object.entries((isScored ? {} : (bundle.gate_scores ?? {})) as Json).filter((pair): pair is [string, number] => typeof pair[1] === "number");
  const others = Object.entries(bundle).filter(([name, value]) => !KNOWN.has(name) || (name === "signatures" && Array.isArray(value) && value.length > 0));
  if (references.length + falsifiers.length + scores.length + others.length === 0) return null;
  return (
    <div className="stack" style={{ gap: 8 }}>
      <h3>Evidence</h3>
      {references.length > 0 && (
        <ul className="refs">
          {references.map((one) => (
            <li key={one} className="mono">
              <Foreign>{one}</Foreign>
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
