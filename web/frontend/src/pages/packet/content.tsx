/** What a packet says: its words, its data as fields by the schema, an EVAL against its gate, a DECISION with its options. */
import type { Schemas } from "../../api/client";
import { Foreign, useIsViewer } from "../../parts/bits";
import { Fields, LongText, TypedContent, whyNoContent } from "../../parts/content";
import { isObject, typedOf, type Json } from "../../lib/content";
import { formFields } from "../../lib/form";
import { plain, score } from "../../lib/format";
import { nobody } from "../../lib/words";
import { Evidence } from "./evidence";

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

/** What the words and drawings above say already, or says nothing to people. */
const SAID: Record<string, readonly string[]> = {
  MESSAGE: ["schema", "content", "text"],
  SIGNAL: ["signal", "reason", "question", "request", "answer"],
  HEARTBEAT: ["signal", "reason"],
  EVAL: ["metric_set", "thresholds", "pass", "notes"],
  ARBITRATION: ["candidates", "winner_candidate_id"],
  DECISION: ["decision_id", "recommendation", "priority_distribution", "next_actions", "result"],
  CLAIM: ["text"],
  IDEA: ["intent"],
  RETRACTION: ["reason"],
  ERROR: ["error_code", "message"],
  TRANSFER: ["protocol_id", "from_swarm", "to_swarm", "sender_score", "receiver_score"],
};

/** What a DECISION recommends where its agent gives no text. */
const DONE = "done";

function restOf(type: string, payload: Json): Json {
  const said = new Set(SAID[type] ?? []);
  return Object.fromEntries(Object.entries(payload).filter(([name, value]) => !said.has(name) && value !== null && !(Array.isArray(value) && value.length === 0)));
}

/** Data of a registered schema, under its name. */
function Typed({ schema, content }: { schema: string; content: Json }) {
  return (
    <div className="stack" style={{ gap: 6 }}>
      <p className="quiet mono">
        <Foreign>{schema}</Foreign>
      </p>
      <TypedContent schema={schema} content={content} />
    </div>
  );
}

/** What a question shows beside its text: the message that it is about, or other data. */
export function Shown({ content }: { content: unknown }) {
  if (!isObject(content) || Object.keys(content).length === 0) return null;
  const about = typedOf(content);
  return about ? <Typed {...about} /> : <Fields value={content} />;
}

/** The content of a packet whose document this server can read. */
export function Spoken({ type, said, payload }: { type: string; said: string; payload: Json }) {
  const typed = typedOf(payload);
  const options = numbers(payload.priority_distribution);
  const candidates = Array.isArray(payload.candidates) ? payload.candidates.filter(isObject).map((one): [string, number] => [String(one.candidate_id), Number(one.total_score)]) : [];
  const rest = restOf(type, payload);
  const question = isObject(payload.question) ? payload.question : null;
  const asked = question && isObject(question.answer_schema) ? formFields(question.answer_schema) : [];
  const filledIn = isObject(payload.answer) && isObject(payload.answer.content) ? payload.answer.content : null;
  return (
    <>
      {said && !(typed && said === DONE) && (
        <p>
          <LongText text={said} />
        </p>
      )}
      {question && <Shown content={question.content} />}
      {asked.length > 0 && <p className="quiet">Asks for <Foreign>{asked.map((one) => one.label).join(", ").slice(0, 600)}</Foreign>.</p>}
      {filledIn && <Fields value={filledIn} />}
      {typed && <Typed {...typed} />}
      {type === "EVAL" && <Gauges payload={payload} />}
      {options.length > 0 && <Shares values={options} />}
      {candidates.length > 0 && <Shares values={candidates} />}
      {Object.keys(rest).length > 0 && <Fields value={rest} />}
    </>
  );
}

export function Content({ detail }: { detail: Schemas["PacketDetail"] }) {
  const why = whyNoContent(detail.body, useIsViewer());
  const payload = detail.document?.payload;
  if (why || !isObject(payload)) return <p className="soft">{why || whyNoContent("damaged", false)}</p>;
  const evidence = detail.document?.proof_bundle;
  return (
    <div className="stack">
      <Spoken type={detail.packet_type} said={detail.said} payload={payload} />
      {isObject(evidence) && <Evidence bundle={evidence} isScored={detail.packet_type === "EVAL"} />}
    </div>
  );
}
