/** Where the session stands: machine, figures, what it waits for, budgets, refusals. */
import { Link } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import type { Schemas } from "../../api/client";
import { Badge, Card, Foreign, PacketLink, StateBadge, Time, useNow } from "../../parts/bits";
import { compact, costText, count, duration, plain, sentence } from "../../lib/format";
import { placesOfStates } from "../../lib/outcome";
import { codeWord, resourceWord, stateTone, stateWord } from "../../lib/words";
import { FailureCard, OutcomeCard } from "./outcome";

type Detail = Schemas["SessionDetail"];
type At = Schemas["SessionAt"];

/** What both the present session and a past one have. */
export interface Shown {
  state: string;
  round: number;
  generation: number;
  packets: number;
  refused: number;
  open: number;
  dead: number;
  refusals: { name: string; count: number }[];
  spent: Record<string, number>;
  at: At | null;
}

export function shownOf(detail: Detail, at: At | null): Shown {
  if (!at) {
    const refused = detail.refusals.reduce((sum, one) => sum + one.count, 0);
    return { ...detail, refused, open: detail.open_deliveries, at: null };
  }
  const ends = new Set(["APPLIED", "VERIFIED", "ARCHIVED", "DEAD_LETTERED", "EXPIRED", "RETRACTED", "REJECTED_POLICY", "PROMOTED", "SUPERSEDED"]);
  const open = Object.entries(at.deliveries).filter(([state]) => !ends.has(state));
  return {
    state: at.state ?? "SESSION_OPEN",
    round: at.round,
    generation: at.generation,
    packets: at.packets,
    refused: at.verdicts.refused ?? 0,
    open: open.reduce((sum, [, number]) => sum + number, 0),
    dead: at.deliveries.DEAD_LETTERED ?? 0,
    refusals: Object.entries(at.refusals).map(([name, number]) => ({ name, count: number })),
    spent: at.spent,
    at,
  };
}

/** Whether the phase of a state says more than its name. */
const hasPhase = (detail: Detail, state: { name: string; run_phase: string | null }): boolean =>
  detail.coordinator === "research" && state.run_phase !== null && plain(state.run_phase) !== stateWord(state.name);

export function Machine({ detail, shown }: { detail: Detail; shown: Shown }) {
  const states = placesOfStates(detail, shown.state, shown.at?.seq);
  const here = states.findIndex((state) => state.place === "here");
  const box = useRef<HTMLOListElement>(null);
  useEffect(() => {
    const [list, step] = [box.current, box.current?.children[here] as HTMLElement | undefined];
    if (list && step) list.scrollLeft = step.offsetLeft - list.offsetLeft - (list.clientWidth - step.clientWidth) / 2;
  }, [here]);
  return (
    <ol className="machine" ref={box} tabIndex={0} aria-label={`The session is at ${stateWord(shown.state)}`}>
      {states.map((state) => (
        <li key={state.name} data-at={state.place} data-tone={stateTone(state.name)} aria-current={state.place === "here" ? "step" : undefined} title={state.name}>
          <span className="bar" />
          <span className="name">
            {stateWord(state.name)}
            {state.place === "stopped" ? <small>stopped here</small> : hasPhase(detail, state) && <small>{plain(state.run_phase!)}</small>}
          </span>
        </li>
      ))}
    </ol>
  );
}

function Figure({ name, title, value, of, children }: { name: string; title?: string; value: number | string; of?: number; children?: React.ReactNode }) {
  return (
    <div className="figure">
      <dt title={title}>{name}</dt>
      <dd title={typeof value === "number" ? count(value) : undefined}>
        {typeof value === "number" ? compact(value) : value}
        {of !== undefined && <small> of {count(of)}</small>}
        {children}
      </dd>
    </div>
  );
}

/** Only a review sends work into another round. */
const hasReview = (detail: Detail): boolean => detail.entered.some((one) => one.name === "REVIEW") || detail.round > 1;

export function Figures({ detail, shown }: { detail: Detail; shown: Shown }) {
  const now = useNow(1000);
  const end = shown.at?.at ?? (detail.is_terminal ? detail.updated_at : null);
  const elapsed = (end ? Date.parse(end) : now) - Date.parse(detail.opened_at);
  const tokens = shown.spent.tokens ?? 0;
  const cost = shown.spent.cost ?? 0;
  return (
    <dl className="figures">
      {detail.coordinator === "research" && <Figure name="Generation" value={shown.generation} of={detail.generation_limit >= shown.generation ? detail.generation_limit : undefined} />}
      {(detail.coordinator === "research" || hasReview(detail)) && <Figure name="Round" value={shown.round} of={detail.max_rounds} />}
      <Figure name="Packets" value={shown.packets} />
      <Figure name="Refused" value={shown.refused} />
      <Figure name="Open" title="Deliveries that have not ended" value={shown.open} />
      <Figure name="Dead letters" value={shown.dead} />
      <Figure name="Time" value={duration(Math.max(0, elapsed))} />
      {tokens > 0 && <Figure name="Tokens" value={tokens} />}
      {cost > 0 && <Figure name="Cost" value={costText(cost)} />}
    </dl>
  );
}

/** What the session's contract leaves out of the usual checks. */
export function LeftOut({ detail }: { detail: Detail }) {
  return detail.left_out.map((one) => (
    <p key={one} role="note">
      <Badge tone="warn">contract</Badge> <Foreign>{one}</Foreign>
    </p>
  ));
}

export function Waits({ detail }: { detail: Detail }) {
  if (detail.waits.length === 0) return <p className="soft">Nothing: agents are working.</p>;
  return (
    <ul className="stack" style={{ gap: 10 }}>
      {detail.waits.slice(0, 8).map((wait, index) => (
        <li key={index}>
          <Foreign>{sentence(wait.words)}</Foreign>
          {wait.due && (
            <span className="quiet">
              {" "}
              Due <Time at={wait.due} />.
            </span>
          )}
          <div className="row quiet" style={{ gap: 6, fontSize: 12.5, marginTop: 4 }}>
            {wait.agents?.slice(0, 6).map((agent) => (
              <Badge key={agent}>{agent}</Badge>
            ))}
            {wait.packet_ids?.slice(0, 3).map((id) => (
              <PacketLink key={id} id={id} session={detail.session_id} />
            ))}
            {wait.kind === "dead_letter" && <Link to="/inbox" search={{ view: "dead" }}>Open the inbox</Link>}
            {wait.kind === "question" && <Link to="/inbox">Answer it</Link>}
          </div>
        </li>
      ))}
    </ul>
  );
}

function amount(resource: string, value: number): string {
  if (resource === "wall_ms") return duration(value);
  return resource === "cost" ? costText(value) : compact(value);
}

export function Budgets({ detail }: { detail: Detail }) {
  const now = useNow(1000);
  const parts = detail.budgets.filter((part) => part.limit != null);
  return (
    <div className="stack" style={{ gap: 10 }}>
      {parts.slice(0, 12).map((part) => {
        const limit = part.limit!;
        const elapsed = (detail.is_terminal ? Date.parse(detail.updated_at) : now) - Date.parse(detail.opened_at);
        const spent = Math.max(0, part.spent ?? (part.resource === "wall_ms" ? elapsed : limit - part.left));
        const share = limit > 0 ? Math.min(1, spent / limit) : 1;
        const tone = share >= 1 ? "bad" : share > 0.8 ? "warn" : "";
        const name = resourceWord(part.resource);
        return (
          <div className="budget" key={`${part.task} ${part.resource}`}>
            <span>
              {name}
              {part.task && <span className="quiet"> of {part.task.length > 18 ? `${part.task.slice(0, 17)}…` : part.task}</span>}
            </span>
            <span className={`meter ${tone}`} role="meter" aria-label={`${name} spent`} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={Math.min(spent, limit)}>
              <i style={{ width: `${share * 100}%` }} />
            </span>
            <span className="num soft">
              {amount(part.resource, spent)} <span className="quiet">of {amount(part.resource, limit)}</span>
            </span>
          </div>
        );
      })}
    </div>
  );
}

export function Refusals({ shown, onPick }: { shown: Shown; onPick: (code: string) => void }) {
  const most = Math.max(...shown.refusals.map((one) => one.count));
  return (
    <ul className="bars">
      {shown.refusals.slice(0, 8).map((one) => (
        <li key={one.name}>
          <button className="j-fold" title={`${one.name}: show only refused packets`} onClick={() => onPick(one.name)}>
            {codeWord(one.name)}
          </button>
          <span className="meter bad">
            <i style={{ width: `${(one.count / most) * 100}%` }} />
          </span>
          <span className="num">{count(one.count)}</span>
        </li>
      ))}
    </ul>
  );
}

export function SummaryCards({ detail, shown, onPick }: { detail: Detail; shown: Shown; onPick: (code: string) => void }) {
  const isEnded = detail.is_terminal && !shown.at;
  const hasBudgets = detail.budgets.some((part) => part.limit != null);
  const cards = [
    (!isEnded || detail.left_out.length > 0) && (
      <Card key="waits" title={isEnded ? "Contract" : "Waits for"}>
        {shown.at ? <p className="soft">Known for the present only. Return to now to see it.</p> : !isEnded && <Waits detail={detail} />}
        <LeftOut detail={detail} />
      </Card>
    ),
    hasBudgets && (
      <Card key="budgets" title="Budgets">
        {shown.at ? <p className="soft">Spent until then: {count(shown.spent.packets ?? shown.packets)} packets{shown.spent.tokens ? `, ${count(shown.spent.tokens)} tokens` : ""}.</p> : <Budgets detail={detail} />}
      </Card>
    ),
    shown.refusals.length > 0 && (
      <Card key="refusals" title="Refusals by reason">
        <Refusals shown={shown} onPick={onPick} />
      </Card>
    ),
  ].filter(Boolean);
  return (
    <>
      {!shown.at && detail.failures.map((one) => <FailureCard key={`${one.packet_id} ${one.recipient}`} failure={one} session={detail.session_id} />)}
      {!shown.at && <OutcomeCard detail={detail} />}
      <Card
        flush
        title="Session"
        aside={shown.at && <StateBadge state={shown.state} />}
      >
        <Machine detail={detail} shown={shown} />
        <div style={{ borderTop: "1px solid var(--line)" }}>
          <Figures detail={detail} shown={shown} />
        </div>
      </Card>
      {cards.length > 0 && <div className={cards.length > 2 ? "three" : cards.length > 1 ? "two" : "stack"}>{cards}</div>}
    </>
  );
}
