/** What came of a session: its result as fields, who approved what, and why it failed. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { arbitrations, useOpenEffects } from "../../api/queries";
import { Badge, Card, Foreign, PacketLink, Time, useIsViewer, Words } from "../../parts/bits";
import { ContentLine, LongText, TypedContent, whyNoContent } from "../../parts/content";
import { costText, duration, plural, score } from "../../lib/format";
import { haltOf } from "../../lib/outcome";
import { nobody, stateWord } from "../../lib/words";

type Detail = Schemas["SessionDetail"];
type Failure = Schemas["SessionFailure"];

function Exception({ failure }: { failure: Failure }) {
  const text = failure.exception ?? failure.why;
  const type = failure.exception_type;
  return (
    <p className="exception">
      {type && <b className="mono"><Foreign>{type}</Foreign></b>} <LongText text={type ? text.slice(type.length + 1).trim() : text} />
    </p>
  );
}

/** Why a delivery failed: the exception, where, on which packet, what went well before, and what to do. */
export function FailureCard({ failure, session }: { failure: Failure; session: string }) {
  const isViewer = useIsViewer();
  const good = failure.last_good;
  const isOpen = useOpenEffects(session);
  return (
    <Card title={failure.is_halted ? "Why it halted" : "What failed"} aside={<Badge tone="bad">{failure.is_dead ? "dead letter" : "failed"}</Badge>}>
      <div className="stack" style={{ gap: 10 }} data-failure={failure.packet_id}>
        {isViewer ? <p className="soft">Your role may not read what handlers raised.</p> : <Exception failure={failure} />}
        <dl className="facts">
          <dt>Handler</dt>
          <dd>
            <span className="mono">{failure.handled || failure.packet_type}</span> at{" "}
            <Link to="/agents/$agentId" params={{ agentId: failure.recipient }}>
              <Foreign>{failure.recipient}</Foreign>
            </Link>
            <span className="quiet">, {plural(failure.attempt, "attempt")}</span>
          </dd>
          {failure.at && (
            <>
              <dt>When</dt>
              <dd>
                <Time at={failure.at} />
              </dd>
            </>
          )}
          <dt>Packet</dt>
          <dd>
            <PacketLink id={failure.packet_id} session={session}>
              <span className="mono">{failure.packet_type}</span> of {failure.sender}
            </PacketLink>
            <div className="soft">
              <ContentLine line={failure.line} body={failure.body} />
            </div>
          </dd>
          {good && (
            <>
              <dt>Last good step</dt>
              <dd>
                <Foreign>{good.recipient}</Foreign> handled{" "}
                <PacketLink id={good.packet_id} session={session}>
                  <span className="mono">{good.packet_type}</span>
                </PacketLink>{" "}
                <span className="quiet">
                  <Time at={good.at} />
                </span>
              </dd>
            </>
          )}
          {failure.remedy && (
            <>
              <dt>What to do</dt>
              <dd>
                {isOpen(failure.recipient) && (
                  <>
                    Nobody knows whether its effect happened: <Link to="/inbox" search={{ view: "effects" }}>settle it</Link> first.{" "}
                  </>
                )}
                <Words>{failure.remedy}</Words>
              </dd>
            </>
          )}
        </dl>
      </div>
    </Card>
  );
}

const SAYS: Record<string, { tone: "good" | "bad" | "warn" | "neutral"; words: string }> = {
  approved: { tone: "good", words: "approved" },
  denied: { tone: "bad", words: "denied" },
  timed_out: { tone: "warn", words: "nobody answered in time" },
  veto: { tone: "bad", words: "vetoed" },
};

type Approval = Omit<Schemas["SessionApproval"], "asked"> & { asked: string };

/** One answer: who, what they said, when, on what, and their reason. */
export function ApprovalLine({ approval, session }: { approval: Approval; session: string }) {
  const said = SAYS[approval.outcome] ?? { tone: "neutral" as const, words: approval.outcome || "answered" };
  return (
    <div className="approval">
      <span className="row" style={{ gap: 6 }}>
        <b>
          <Foreign>{approval.by}</Foreign>
        </b>
        <Badge tone={said.tone}>{said.words}</Badge>
        <PacketLink id={approval.packet_id} session={session}>
          <Time at={approval.at} />
        </PacketLink>
      </span>
      {approval.asked && (
        <div className="soft">
          {approval.question_id ? (
            <PacketLink id={approval.question_id} session={session}>
              <Foreign>{approval.asked}</Foreign>
            </PacketLink>
          ) : (
            <Foreign>{approval.asked}</Foreign>
          )}
        </div>
      )}
      {approval.note && (
        <div>
          “<Foreign>{approval.note}</Foreign>”
        </div>
      )}
    </div>
  );
}

/** The last decision between candidates, of a research session. */
function Winner({ detail }: { detail: Detail }) {
  const found = useInfiniteQuery(arbitrations({}, detail.run_id)).data?.pages.flatMap((page) => page.items) ?? [];
  const last = found.find((one) => one.session_id === detail.session_id && one.subject === "candidates");
  if (!last) return null;
  return (
    <p>
      <PacketLink id={last.packet_id} session={detail.session_id}>
        <Foreign>{nobody(last.winner_candidate_id)}</Foreign>
      </PacketLink>{" "}
      won against {plural(last.candidates.filter((one) => one.candidate_id !== last.winner_candidate_id).length, "other candidate")}
      {last.margin != null && ` by ${score(last.margin)}`}.
    </p>
  );
}

function Ended({ detail }: { detail: Detail }) {
  if (detail.state === "CLOSED") return detail.result ? null : <p className="soft">The session closed without a result.</p>;
  const halt = haltOf(detail.halt_reason ?? "");
  const refused = detail.refusals.reduce((sum, one) => sum + one.count, 0);
  return (
    <>
      <p>{halt.words || `The session ended as ${stateWord(detail.state).toLowerCase()}.`}</p>
      {(halt.code || halt.parts.length > 0) && (
        <p className="soft">
          <span className="mono">{halt.code}</span>{" "}
          {halt.parts.map((one, at) => (one.isPacket ? <PacketLink key={at} id={one.text} session={detail.session_id} /> : <Foreign key={at}>{one.text}</Foreign>))}
        </p>
      )}
      {refused > 0 && (
        <p>
          {plural(refused, "packet")} {refused === 1 ? "was" : "were"} refused in it:{" "}
          <Link to="/runs/$runId" params={{ runId: detail.run_id }} search={{ session: detail.session_id, verdict: "refused" }}>
            see what and why
          </Link>
          .
        </p>
      )}
    </>
  );
}

function Result({ result, session }: { result: NonNullable<Detail["result"]>; session: string }) {
  const why = whyNoContent(result.body, useIsViewer());
  return (
    <div className="stack" style={{ gap: 8 }}>
      {why ? <p className="soft">{why}</p> : result.schema_id && result.content ? <TypedContent schema={result.schema_id} content={result.content} /> : <LongText text={result.said} />}
      <p className="quiet">
        {result.schema_id && <span className="mono">{result.schema_id}, </span>}decided by <Foreign>{result.sender}</Foreign>.{" "}
        <PacketLink id={result.packet_id} session={session}>
          What it rests on
        </PacketLink>
      </p>
    </div>
  );
}

function Doubts({ detail }: { detail: Detail }) {
  return (
    <>
      {detail.doubts.map((one) => (
        <p key={one} role="note">
          <Badge tone="warn">doubt</Badge> <Words>{one}</Words>
        </p>
      ))}
      {detail.stale_decisions.map((one) => (
        <p key={one.packet_id} role="note">
          <Badge tone="warn">stale</Badge> A <PacketLink id={one.packet_id} session={detail.session_id}>decision</PacketLink> rests on a{" "}
          <PacketLink id={one.ground_id} session={detail.session_id}>packet</PacketLink> that was retracted or is stale itself.
        </p>
      ))}
    </>
  );
}

/** The outcome of a session that has ended, and of one that runs what was approved so far. */
export function OutcomeCard({ detail }: { detail: Detail }) {
  const approvals = detail.approvals;
  const isTold = detail.failures[0]?.is_halted && detail.doubts.length + detail.stale_decisions.length === 0;
  if (approvals.length === 0 && (!detail.is_terminal || isTold)) return null;
  const lasted = Date.parse(detail.updated_at) - Date.parse(detail.opened_at);
  const { cost, tokens } = detail.spent;
  return (
    <Card title={detail.is_terminal ? "Outcome" : approvals.every((one) => one.outcome === "approved") ? "Approved so far" : "Answered so far"}>
      <div className={approvals.length > 0 ? "outcome" : "stack"}>
        {detail.is_terminal && (
          <div className="stack" style={{ gap: 8 }}>
            {detail.result && <Result result={detail.result} session={detail.session_id} />}
            {detail.coordinator === "research" && <Winner detail={detail} />}
            {!isTold && <Ended detail={detail} />}
            <Doubts detail={detail} />
            <p className="quiet num">
              {duration(Math.max(0, lasted))}
              {cost ? `, cost ${costText(cost)}` : ""}
              {tokens ? `, ${plural(tokens, "token")}` : ""}
            </p>
          </div>
        )}
        {approvals.length > 0 && (
          <div>
            <h3>{approvals.every((one) => one.outcome === "approved") ? "Who approved" : "Who answered"}</h3>
            <ul className="stack" style={{ gap: 10, marginTop: 6 }}>
              {approvals.slice(0, 20).map((one) => (
                <li key={one.packet_id}>
                  <ApprovalLine approval={one} session={detail.session_id} />
                </li>
              ))}
            </ul>
          </div>
        )}
      </div>
    </Card>
  );
}
