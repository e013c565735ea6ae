/** A packet's payload by its type: an EVAL against its gate, a DECISION with its options, else its text. */
import type { Schemas } from "../../api/client";
import { Foreign, useIsViewer } from "../../parts/bits";
import { Json } from "../../parts/json";
import { plain, score } from "../../lib/format";
import { gistOf, nobody } from "../../lib/gist";
import { Evidence } from "./evidence";

type Json = Record<string, unknown>;

const numbers = (value: unknown): [string, number][] =>
  typeof value === "object" && value !== null ? Object.entries(value).filter((pair): pair is [string, number] => typeof pair[1] === "number") : [];

/** Lower is better for these. */
const CEILINGS = new Set(["drift_risk"]);

function Gauges({ payload }: { payload: Json }) {
  const gate = new Map(numbers(payload.thresholds));
  return (
    <ul className="bars">
      {numbers(payload.metric_set).map(([name, value]) => {
        const wanted = gate.get(name);
        const passes = wanted === undefined || (CEILINGS.has(name) ? value <= wanted : value >= wanted);
        return (
          <li key={name}>
            <span>{plain(name)}</span>
            <span style={{ position: "relative" }}>
              <span className={`meter ${passes ? "" : "bad"}`} style={{ display: "block" }}>
                <i style={{ width: `${Math.min(1, Math.max(0, value)) * 100}%` }} />
              </span>
              {wanted !== undefined && <span style={{ position: "absolute", top: -3, bottom: -3, left: `${Math.min(1, wanted) * 100}%`, width: 2, marginLeft: -1, background: "var(--text-2)" }} title={`gate ${wanted}`} />}
            </span>
            <span className="num">
              {score(value)} <span className="quiet">{wanted === undefined ? "" : `${CEILINGS.has(name) ? "≤" : "≥"} ${wanted}`}</span>
              <span className="sr">{passes ? "passes" : "does not pass"}</span>
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function Shares({ values }: { values: [string, number][] }) {
  const most = Math.max(...values.map(([, value]) => value), 1e-9);
  return (
    <ul className="bars">
      {values.map(([name, value]) => (
        <li key={name}>
          <Foreign>{nobody(name)}</Foreign>
          <span className="meter">
            <i style={{ width: `${(value / most) * 100}%` }} />
          </span>
          <span className="num">{score(value)}</span>
        </li>
      ))}
    </ul>
  );
}

/** Why a packet shows no body: sealed, withheld from the role, or not JSON. */
export function whyNoBody(detail: { is_sealed: boolean }, isViewer: boolean): string {
  if (isViewer) return "Your role does not read bodies.";
  if (detail.is_sealed) return "The body is sealed: it is encrypted with a key that this server does not have.";
  return "The body cannot be read as a packet. The exact bytes are in the log.";
}

export function Content({ detail }: { detail: Schemas["PacketDetail"] }) {
  const isViewer = useIsViewer();
  const payload = (detail.document as { payload?: Json } | null)?.payload;
  if (!payload) return <p className="soft">{whyNoBody(detail, isViewer)}</p>;
  const gist = gistOf(detail.packet_type, detail.document);
  const evidence = (detail.document as { proof_bundle?: Json | null }).proof_bundle;
  const options = numbers(payload.priority_distribution);
  const candidates = Array.isArray(payload.candidates) ? (payload.candidates as Json[]).map((one): [string, number] => [String(one.candidate_id), Number(one.total_score)]) : [];
  return (
    <div className="stack">
      {gist && (
        <p style={{ whiteSpace: "pre-wrap" }}>
          <Foreign>{gist}</Foreign>
        </p>
      )}
      {detail.packet_type === "EVAL" && <Gauges payload={payload} />}
      {options.length > 0 && <Shares values={options} />}
      {candidates.length > 0 && <Shares values={candidates} />}
      {evidence != null && typeof evidence === "object" && (
        <Evidence bundle={evidence} session={detail.session_id} isScored={detail.packet_type === "EVAL"} />
      )}
      {!gist && <Json value={payload} />}
    </div>
  );
}
