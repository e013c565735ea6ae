/** Small parts that every page uses. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useState, type ReactNode } from "react";
import { about } from "../api/queries";
import { serverNow } from "../lib/clock";
import { ago, dateTime, shortId, time, utc, visible, zone } from "../lib/format";
import { CopyButton } from "./copy";
import { codeWord, stateTone, stateWord, typeColour, typeShape, verdictTone, type Shape, type Tone } from "../lib/words";

export function Badge({ tone = "neutral", children, title }: { tone?: Tone; children: ReactNode; title?: string }) {
  return (
    <span className={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

/** A text that somebody else wrote: isolated, with control characters visible. */
export function Foreign({ children }: { children: string }) {
  return <bdi className="foreign">{visible(children)}</bdi>;
}

/** Words of the server, with what stands in backticks as code. */
export function Words({ children }: { children: string }) {
  return (
    <bdi className="foreign">
      {visible(children)
        .split("`")
        .map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}
    </bdi>
  );
}

/** The verdict in words. In lists `isQuiet` leaves an accepted packet without a background, so that the others stand out, and says of a refused one why. */
export function Verdict({ verdict, code, isQuiet = false }: { verdict: string; code?: string | null; isQuiet?: boolean }) {
  const isBare = isQuiet && verdict === "accepted";
  const why = code && codeWord(code);
  return (
    <span className={`badge ${verdictTone(verdict)} ${isBare ? "bare" : ""}`} title={why ? `${verdict}: ${why} (${code})` : undefined}>
      <span className="dot" />
      <span className="cut">
        {why && isQuiet && verdict === "refused" ? <span className="sr">{verdict}: </span> : why ? `${verdict}: ` : verdict}
        {why}
      </span>
    </span>
  );
}

export function StateBadge({ state, isPaused = false }: { state: string; isPaused?: boolean }) {
  return (
    <Badge tone={stateTone(state, isPaused)} title={state}>
      <span className="dot" />
      {isPaused ? `Paused in ${stateWord(state)}` : stateWord(state)}
    </Badge>
  );
}

const PATHS: Record<Shape, string> = {
  circle: "M5 1a4 4 0 1 0 0 8a4 4 0 1 0 0-8Z",
  square: "M1.5 1.5h7v7h-7Z",
  diamond: "M5 .4 9.6 5 5 9.6.4 5Z",
  triangle: "M5 .8 9.5 9h-9Z",
  bar: "M3.4.6h3.2v8.8H3.4Z",
};

export function TypeMark({ type, isHollow = false }: { type: string; isHollow?: boolean }) {
  const colour = typeColour(type);
  return (
    <svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true" style={{ flex: "none" }}>
      <path d={PATHS[typeShape(type)]} fill={isHollow ? "none" : colour} stroke={colour} strokeWidth={isHollow ? 1.5 : 0} />
    </svg>
  );
}

export function TypeName({ type, isHollow }: { type: string; isHollow?: boolean }) {
  return (
    <span className="row" style={{ gap: 6, flexWrap: "nowrap" }}>
      <TypeMark type={type} isHollow={isHollow} />
      <span className="mono">{type}</span>
    </span>
  );
}

/** The present by the server's clock, refreshed every `every` milliseconds. */
export function useNow(every = 10_000): number {
  const [now, change] = useState(serverNow);
  useEffect(() => {
    const timer = setInterval(() => change(serverNow()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

/** How long ago; the time itself in UTC on hover. */
export function Ago({ at }: { at: string }) {
  const now = useNow();
  return <TimeText at={at} words={ago(at, now)} />;
}

/** A time with its zone; in UTC on hover. `isBare` leaves hours to milliseconds, where a `ZoneTitle` stands above. */
export function Time({ at, isBare = false }: { at: string | number; isBare?: boolean }) {
  return <TimeText at={at} words={isBare ? time(at) : dateTime(at)} />;
}

function TimeText({ at, words }: { at: string | number; words: string }) {
  const known = !Number.isNaN(new Date(at).getTime());
  return (
    <time dateTime={known ? new Date(at).toISOString() : undefined} title={utc(at)} className="num" style={{ whiteSpace: "nowrap" }}>
      {words}
    </time>
  );
}

/** The head of a column of bare times. */
export function ZoneTitle({ children = "Time" }: { children?: string }) {
  return (
    <span title="Shown in the zone of this browser; in UTC on hover">
      {children}, {zone(Date.now())}
    </span>
  );
}

/** An id: short at its end, whole on hover and by its copy button. */
export function Id({ id, isWhole = false }: { id: string; isWhole?: boolean }) {
  return (
    <span className="id">
      <bdi className="mono" title={visible(id)}>
        {visible(isWhole ? id : shortId(id))}
      </bdi>
      <CopyButton text={id} what="id" />
    </span>
  );
}

export function PacketLink({ id, session, children }: { id: string; session?: string; children?: ReactNode }) {
  return (
    <Link to="/packets/$packetId" params={{ packetId: id }} search={{ session }} className={children ? undefined : "mono"} title={id}>
      {children ?? shortId(id)}
    </Link>
  );
}

export function Card({ title, aside, children, flush = false }: { title?: ReactNode; aside?: ReactNode; children: ReactNode; flush?: boolean }) {
  return (
    <section className="card">
      {title && (
        <header>
          <h2>{title}</h2>
          {aside && <div className="row">{aside}</div>}
        </header>
      )}
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}

/** True for a reader who sees columns alone: the server withholds bodies, facts and texts. */
export function useIsViewer(): boolean {
  return useQuery(about).data?.role === "viewer";
}

export function usePageTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · apc-bus`;
  }, [title]);
}
