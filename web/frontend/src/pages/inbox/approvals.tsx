/** What agents ask people: the question with all that is shown beside it, approve or deny with a reason; and what was answered. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useId, useMemo, useRef, useState, type RefObject } from "react";
import { api, ApiProblem, data, type Schemas } from "../../api/client";
import { about, answered, approvals } from "../../api/queries";
import { Ago, Badge, Foreign, PacketLink, TypeName, useIsViewer, useNow, Verdict } from "../../parts/bits";
import { ContentLine, Fields, LongText, TypedContent } from "../../parts/content";
import { CountedFolds } from "../../parts/folds";
import { TimeRangeChoice, useTimeRange } from "../../parts/range";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, type Column } from "../../parts/table";
import { isObject, type Json } from "../../lib/content";
import { formFields, refusedField, written } from "../../lib/form";
import { dateTime, duration, plural } from "../../lib/format";
import { AnswerFields } from "./answer-fields";

type Approval = Schemas["OpenApproval"];
type Answered = Schemas["AnsweredApproval"];
type Act = "approve" | "deny";

const COLUMNS: Column<Approval>[] = [
  { name: "packet_id", title: "Question", value: (row) => row.packet_id },
  { name: "session_id", title: "Session", value: (row) => row.session_id },
  { name: "asker", title: "Asked by", value: (row) => row.asker },
  { name: "may_answer", title: "May answer", value: (row) => row.may_answer.join(", ") },
  { name: "text", title: "Text", value: (row) => row.text },
  { name: "due_at", title: "Due", value: (row) => row.due_at },
];

/** Soon is within ten minutes. */
const SOON = 600_000;

/** How long until a time; from ten minutes on it warns. */
export function Countdown({ at, over }: { at: string; over: string }) {
  const left = new Date(at).getTime() - useNow(1000);
  if (left <= 0) return <Badge tone="bad">{over}</Badge>;
  return (
    <Badge tone={left < SOON ? "warn" : "neutral"} title={dateTime(at)}>
      {duration(left)} left
    </Badge>
  );
}

/** What an agent shows beside its question: data of a registered schema, or fields as they come. */
function Beside({ content }: { content: Json }) {
  const { schema, content: inner, ...further } = content;
  if (typeof schema !== "string" || !isObject(inner)) return <Fields value={content} />;
  return (
    <>
      <p className="quiet mono"><Foreign>{schema}</Foreign></p>
      <TypedContent schema={schema} content={inner} />
      {/* The words beside a content, and whatever else stands there: nothing of it may stay unseen. */}
      {Object.keys(further).length > 0 && <Fields value={further} />}
    </>
  );
}

/** Whether the end of something that is open as a whole has been on the screen. */
function useSeen(end: RefObject<HTMLElement | null>, isWhole: boolean): boolean {
  const [isSeen, see] = useState(false);
  useEffect(() => {
    if (!isWhole || isSeen || !end.current) return;
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && see(true));
    watch.observe(end.current);
    return () => watch.disconnect();
  }, [end, isWhole, isSeen]);
  return isSeen && isWhole;
}

interface AnswerFormProps {
  approval: Approval;
  closed: number;
  openAll: () => void;
  answered: (words: { act: Act; by: string }) => void;
}

function AnswerForm({ approval, closed, openAll, answered: say }: AnswerFormProps) {
  const client = useQueryClient();
  const voices = approval.answer_as;
  const [note, write] = useState("");
  const [chosen, choose] = useState("");
  const person = voices.length === 1 ? voices[0]! : chosen;
  const end = useRef<HTMLDivElement>(null);
  const isSealed = approval.text === null;
  const isSeen = useSeen(end, closed === 0 && !isSealed);
  const why = useId();
  const fields = useMemo(() => formFields(approval.answer_schema ?? {}), [approval.answer_schema]);
  const form = useRef<HTMLFormElement>(null);
  const [texts, fill] = useState<ReadonlyMap<string, string>>(new Map());
  const [faults, refuse] = useState<ReadonlyMap<string, string>>(new Map());
  const act = useMutation({
    mutationFn: (name: Act) =>
      data(
        api.POST("/api/v1/approvals/{packet_id}/{act}", {
          params: { path: { packet_id: approval.packet_id, act: name } },
          body: {
            note: note.trim() || null,
            person,
            seen: name === "approve" ? approval.payload_hash : null,
            answer: name === "approve" && approval.answer_schema ? written(fields, texts).answer : null,
          },
        }),
      ),
    onSuccess: (done, name) => say({ act: name, by: String(done.detail.by) }),
    onError: (error) => {
      const name = error instanceof ApiProblem ? refusedField(fields, error.field) : null;
      if (name !== null) refuse(new Map([[name, error.message]]));
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["approvals"] }),
  });
  useEffect(() => {
    if (faults.size > 0) form.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
  }, [faults]);
  const approve = () => {
    const found = written(fields, texts).faults;
    refuse(found);
    if (found.size === 0) act.mutate("approve");
  };
  const change = (name: string, text: string) => {
    fill((old) => new Map(old).set(name, text));
    refuse((old) => (old.has(name) ? new Map([...old].filter(([one]) => one !== name)) : old));
  };
  const isWaiting = act.isPending || person === "";
  const said = isSealed ? "Encrypted or erased: nobody can read it here, so it cannot be approved here." : closed > 0 ? `${plural(closed, "long part")} of this ${closed === 1 ? "is" : "are"} closed: approve when you have seen all of it.` : "";
  return (
    <form className="stack" style={{ gap: 8 }} ref={form} onSubmit={(event) => event.preventDefault()}>
      <div ref={end} aria-hidden="true" />
      {said && (
        <p className="notice warn" id={why}>
          <span className="grow">{said}</span>
          {closed > 0 && <button type="button" className="button small" onClick={openAll}>Open all of it</button>}
        </p>
      )}
      {fields.length > 0 && <AnswerFields fields={fields} texts={texts} faults={faults} write={change} />}
      <div className="row">
        <input className="field grow" style={{ minWidth: 150 }} aria-label={`Reason for ${approval.asker}`} placeholder="Reason, kept in the log (optional)" value={note} onChange={(event) => write(event.target.value)} maxLength={8192} />
        {voices.length > 1 ? (
          <select className="field" aria-label="Answer as" value={person} onChange={(event) => choose(event.target.value)}>
            <option value="">Answer as…</option>
            {voices.map((one) => <option key={one} value={one}>as {one}</option>)}
          </select>
        ) : (
          <span className="quiet">as <Foreign>{person}</Foreign></span>
        )}
        <button type="button" className="button primary" disabled={isWaiting || !isSeen} aria-describedby={said ? why : undefined} onClick={approve}>Approve</button>
        <button type="button" className="button danger" disabled={isWaiting} onClick={() => act.mutate("deny")}>Deny</button>
      </div>
      {voices.length > 1 && person === "" && <p className="quiet">Several of those whom this server speaks for may answer: choose who you are.</p>}
      {act.error && faults.size === 0 && <p role="alert" className="notice bad">{act.error.message}</p>}
      {faults.size > 0 && <p role="alert" className="notice bad">Not sent: {plural(faults.size, "field")} to correct.</p>}
    </form>
  );
}

function Item({ approval, mayOperate, say }: { approval: Approval; mayOperate: boolean; say: (words: { act: Act; by: string }) => void }) {
  const title = useId();
  const isViewer = useIsViewer();
  return (
    <li className="letter" aria-labelledby={title}>
      <div className="row">
        <span>
          <b><Foreign>{approval.asker}</Foreign></b> <span className="quiet">asks</span> <Foreign>{approval.role ?? approval.may_answer.join(", ")}</Foreign>
        </span>
        <span className="quiet"><Ago at={approval.asked_at} /></span>
        <span style={{ marginLeft: "auto" }}><Countdown at={approval.due_at} over="time is over" /></span>
      </div>
      <CountedFolds>
        {({ closed, openAll }) => (
          <>
            <div id={title} style={{ fontSize: 15 }}>
              {isViewer || approval.text === null ? <span className="soft">{isViewer ? "Your role may not read contents." : "The question is sealed: this server has no key to read it."}</span> : <LongText text={approval.text} />}
            </div>
            {approval.denied_by.length > 0 && <p className="notice warn">The same was denied before by <Foreign>{approval.denied_by.join(", ")}</Foreign>.</p>}
            {!isViewer && approval.content && <div className="sunken"><Beside content={approval.content} /></div>}
            <p className="soft row">
              <PacketLink id={approval.packet_id} session={approval.session_id}>Open packet</PacketLink>·
              <Link to="/runs/$runId" params={{ runId: approval.run_id }} search={{ session: approval.session_id }}>Open run</Link>
            </p>
            {approval.answer_as.length > 0 ? (
              <AnswerForm approval={approval} closed={closed} openAll={openAll} answered={say} />
            ) : (
              mayOperate && <p className="quiet">To be answered by <Foreign>{approval.may_answer.join(", ")}</Foreign>.</p>
            )}
          </>
        )}
      </CountedFolds>
    </li>
  );
}

function Open() {
  const answer = useQuery(approvals);
  const server = useQuery(about).data;
  const [said, say] = useState<{ act: Act; by: string } | null>(null);
  return (
    <Loaded answer={answer} what="questions">
      {({ items }) => (
        <>
          <div role="status">
            {said && (
              <div className="notice good" style={{ margin: 14 }}>
                <span>{said.act === "deny" ? "Denied" : "Approved"} as <Foreign>{said.by}</Foreign>.</span>
              </div>
            )}
          </div>
          {items.length === 0 ? (
            <Empty title="No open questions">What a handler asks people with ctx.ask waits here until somebody approves or denies it.</Empty>
          ) : (
            <>
              <div className="filters" style={{ justifyContent: "space-between" }}>
                <span className="quiet num">{plural(items.length, "open question")}</span>
                <ExportMenu name="approvals" rows={items} columns={COLUMNS} />
              </div>
              <ul>
                {items.map((one) => (
                  <Item key={one.packet_id} approval={one} mayOperate={server?.role === "operator"} say={say} />
                ))}
              </ul>
            </>
          )}
        </>
      )}
    </Loaded>
  );
}

const OUTCOMES: Record<string, { word: string; tone: "good" | "bad" | "warn" }> = {
  approved: { word: "Approved", tone: "good" },
  denied: { word: "Denied", tone: "bad" },
  timed_out: { word: "Time was over", tone: "warn" },
};

const ANSWERED: Column<Answered>[] = [
  { name: "packet_id", title: "Question", value: (row) => row.packet_id },
  { name: "run_id", title: "Run", value: (row) => row.run_id },
  { name: "asker", title: "Asked by", value: (row) => row.asker },
  { name: "text", title: "Text", value: (row) => row.text },
  { name: "outcome", title: "Outcome", value: (row) => row.outcome },
  { name: "answered_by", title: "Answered by", value: (row) => row.answered_by },
  { name: "answered_at", title: "Answered", value: (row) => row.answered_at },
  { name: "note", title: "Reason", value: (row) => row.note },
  { name: "answer", title: "Answer", value: (row) => (row.answer ? JSON.stringify(row.answer) : null) },
];

function Followed({ row }: { row: Answered }) {
  if (row.followed.length + row.effects.length === 0) return <p className="quiet">Nothing that rests on this answer is in the log.</p>;
  return (
    <ul className="followed" aria-label="What followed">
      {row.followed.map((one) => (
        <li key={one.packet_id}>
          <TypeName type={one.packet_type} isHollow={one.verdict !== "accepted"} />
          <PacketLink id={one.packet_id} session={row.session_id}><ContentLine line={one.line} body={one.body} /></PacketLink>
          <Verdict verdict={one.verdict} code={one.refusal_code} isQuiet />
        </li>
      ))}
      {row.effects.map((one) => (
        <li key={`${one.packet_id} ${one.key}`}>
          <span className="quiet">effect</span>
          <PacketLink id={one.packet_id} session={row.session_id}><Foreign>{`${one.key || "an effect"} of ${one.agent_id}`}</Foreign></PacketLink>
          <Badge tone={one.state === "made" || one.state === "settled" ? "good" : "warn"}>{one.state}</Badge>
        </li>
      ))}
    </ul>
  );
}

function AnsweredItem({ row }: { row: Answered }) {
  const isViewer = useIsViewer();
  const outcome = OUTCOMES[row.outcome] ?? { word: row.outcome, tone: "warn" as const };
  return (
    <li className="letter">
      <div className="row">
        <Badge tone={outcome.tone}>{outcome.word}</Badge>
        <span>
          {row.outcome !== "timed_out" && <><span className="quiet">by</span> <b><Foreign>{row.answered_by}</Foreign></b>, </>}
          <span className="quiet">asked by</span> <Foreign>{row.asker}</Foreign>
        </span>
        <span className="quiet" style={{ marginLeft: "auto" }}><Ago at={row.answered_at} /></span>
      </div>
      {isViewer ? <p className="soft">Your role may not read contents.</p> : row.text !== null && <LongText text={row.text} />}
      {row.note && (
        <div className="row soft" style={{ alignItems: "baseline" }}>
          <span className="quiet">Reason</span>
          <span className="grow"><LongText text={row.note} /></span>
        </div>
      )}
      {row.answer && <div className="sunken"><Fields value={row.answer} schema={row.answer_schema ?? {}} /></div>}
      {!isViewer && row.content && (
        <details>
          <summary className="soft">What was shown</summary>
          <div className="sunken" style={{ marginTop: 8 }}><Beside content={row.content} /></div>
        </details>
      )}
      <Followed row={row} />
      <p className="soft row">
        <PacketLink id={row.packet_id} session={row.session_id}>Question</PacketLink>·
        <PacketLink id={row.answer_id} session={row.session_id}>Answer and its proof</PacketLink>·
        <Link to="/runs/$runId" params={{ runId: row.run_id }} search={{ session: row.session_id }}>Open run</Link>
      </p>
    </li>
  );
}

function AnsweredList() {
  const { since, until } = useTimeRange();
  const answer = useInfiniteQuery(answered(since, until));
  return (
    <Loaded answer={answer} what="answers">
      {(found) => {
        const rows = found.pages.flatMap((page) => page.items);
        return (
          <>
            <div className="filters" style={{ justifyContent: "space-between" }}>
              <TimeRangeChoice />
              <ExportMenu name="answered" rows={rows} columns={ANSWERED} />
            </div>
            {rows.length === 0 ? (
              <Empty title="No answers">A question that somebody has answered, or whose time is over, stays here.</Empty>
            ) : (
              <ul>{rows.map((row) => <AnsweredItem key={row.answer_id} row={row} />)}</ul>
            )}
            {answer.hasNextPage && <div style={{ padding: 14 }}><button className="button" onClick={() => void answer.fetchNextPage()}>Show more</button></div>}
          </>
        );
      }}
    </Loaded>
  );
}

export function Approvals() {
  const { show } = useSearch({ from: "/inbox" });
  const navigate = useNavigate();
  const choose = (next: "answered" | undefined) => void navigate({ to: "/inbox", search: (old) => ({ ...old, show: next }), replace: true, resetScroll: false });
  return (
    <>
      <div className="filters">
        <div className="switch" role="group" aria-label="Questions">
          <button type="button" aria-pressed={show !== "answered"} onClick={() => choose(undefined)}>Open</button>
          <button type="button" aria-pressed={show === "answered"} onClick={() => choose("answered")}>Answered</button>
        </div>
      </div>
      {show === "answered" ? <AnsweredList /> : <Open />}
    </>
  );
}
