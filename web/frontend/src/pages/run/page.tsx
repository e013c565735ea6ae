/** The run page: where it stands, its timeline, and the packets; now, or after any entry. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, linkOptions, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import { lazy, Suspense, useCallback, useMemo } from "react";
import { againAfter, api, data, type Schemas } from "../../api/client";
import { about, run, runs, session, sessionAt } from "../../api/queries";
import { Ago, Badge, Card, Foreign, usePageTitle } from "../../parts/bits";
import { Empty, Failed, Loaded, Loading } from "../../parts/states";
import { alike } from "../../lib/alike";
import { cut, count, dateTime, shortId } from "../../lib/format";
import { factsOf } from "../../lib/outcome";
import { nameOf } from "../../lib/runs";
import { stateWord } from "../../lib/words";
import { rowAt } from "../../state/timeline";
import { useStream } from "../../state/live";
import { useTimeline } from "./data";
import { PacketTable } from "./packets";
import { Scores } from "./scores";
import { SessionActs } from "./acts";
import { shownOf, SummaryCards } from "./summary";
import { Moves, Members } from "./members";
import { TimelineCard } from "./timeline-card";
import { Transcript } from "./transcript";

const Lineage = lazy(() => import("./graph").then((module) => ({ default: module.Lineage })));

export function useRunSearch() {
  const search = useSearch({ from: "/runs/$runId" });
  const navigate = useNavigate({ from: "/runs/$runId" });
  const change = useCallback(
    (next: Partial<typeof search>) => void navigate({ search: (old) => ({ ...old, ...next }), replace: true, resetScroll: false }),
    [navigate],
  );
  return [search, change] as const;
}

type SessionRow = Schemas["SessionSummary"];

function useSessionId(runId: string): { sessionId: string | undefined; sessions: SessionRow[]; error: unknown } {
  const [search] = useRunSearch();
  const answer = useQuery({
    queryKey: ["sessions", runId],
    queryFn: () => data(api.GET("/api/v1/sessions", { params: { query: { run_id: runId, limit: 100 } } })),
    refetchInterval: (query) => againAfter(query.state.error, query.state.data?.items.length === 0 ? 1_000 : false),
  });
  const sessions = useMemo(() => answer.data?.items ?? [], [answer.data]);
  return { sessionId: search.session ?? sessions[0]?.session_id, sessions, error: answer.data ? (sessions.length === 0 ? "none" : null) : answer.error };
}

function NoRun({ runId }: { runId: string }) {
  const known = useInfiniteQuery(runs()).data?.pages.flatMap((page) => page.items.map((one) => one.run_id)) ?? [];
  const near = alike(runId, known);
  return (
    <Card>
      <Empty title="There is no such run" command="apc session list">
        Nothing was logged under “<Foreign>{runId}</Foreign>” yet: this page shows it when it begins. It may also be in the log of another data folder or database.
        {near.length > 0 && (
          <>
            {" "}Runs like it:{" "}
            {near.map((one, index) => (
              <span key={one}>
                {index > 0 && ", "}
                <Link to="/runs/$runId" params={{ runId: one }}><Foreign>{one}</Foreign></Link>
              </span>
            ))}.
          </>
        )}
      </Empty>
    </Card>
  );
}

export function RunPage() {
  const { runId } = useParams({ from: "/runs/$runId" });
  usePageTitle(useRunName(runId) || runId);
  const { sessionId, sessions, error } = useSessionId(runId);
  if (error === "none") return <NoRun runId={runId} />;
  if (error && !sessionId) return <Card><Failed error={error} /></Card>;
  if (!sessionId) return <Card><Loading what="the run" lines={8} /></Card>;
  return <Session key={sessionId} runId={runId} sessionId={sessionId} sessions={sessions} />;
}

/** What the run is called: its team and a line of its input; "" where it has no name. */
function useRunName(runId: string): string {
  const named = useQuery(run(runId)).data;
  return named ? Object.values(nameOf(named)).filter(Boolean).join(": ") : "";
}

/** Characters of a heading; the input of the run is whole in its first packet. */
const LONGEST_NAME = 120;

function RunHeading({ runId }: { runId: string }) {
  const name = useRunName(runId);
  if (!name) return <h1 className="mono">{runId}</h1>;
  return (
    <h1>
      <span title={name}><Foreign>{cut(name, LONGEST_NAME)}</Foreign></span> <small className="mono quiet">{runId}</small>
    </h1>
  );
}

/** What tells the run apart; each leads to the runs that have the same. */
function Tags({ runId }: { runId: string }) {
  const tags = useQuery(run(runId)).data?.tags ?? [];
  if (tags.length === 0) return null;
  return (
    <p className="row" style={{ gap: 6 }}>
      {tags.map((tag) => (
        <Link key={tag} className="badge" to="/runs" search={{ tag }} title="Runs with this tag">
          <Foreign>{tag}</Foreign>
        </Link>
      ))}
    </p>
  );
}

/** What there is to say about the session, the worst first. */
function Facts({ detail, onRefused }: { detail: Schemas["SessionDetail"]; onRefused: () => void }) {
  return (
    <p className="row" style={{ gap: 6 }}>
      {factsOf(detail).map((fact) =>
        fact.view === "refused" ? (
          <button key={fact.words} className={`badge ${fact.tone}`} onClick={onRefused}>
            {fact.words}
          </button>
        ) : fact.view === "dead" ? (
          <Link key={fact.words} className={`badge ${fact.tone}`} to="/inbox" search={{ view: "dead" }}>
            {fact.words}
          </Link>
        ) : (
          <Badge key={fact.words} tone={fact.tone}>
            <Foreign>{fact.words}</Foreign>
          </Badge>
        ),
      )}
    </p>
  );
}

function Session({ runId, sessionId, sessions }: { runId: string; sessionId: string; sessions: SessionRow[] }) {
  const [search, change] = useRunSearch();
  const navigate = useNavigate();
  const answer = useQuery(session(sessionId));
  const past = useQuery({ ...sessionAt(sessionId, search.at ?? 0), enabled: search.at !== undefined });
  const { timeline, isLoaded, error, take } = useTimeline(sessionId);
  useStream({ session_id: sessionId }, ["run", "session", "timeline", "scores", "moves", "transcript"], take);
  const server = useQuery(about).data;

  const { marks, shard } = timeline;
  const at = search.at === undefined ? marks.length - 1 : rowAt(marks, search.at);
  const selected = search.packet === undefined ? -1 : marks.findIndex((mark) => mark.seq === search.packet);
  const kept = useMemo(() => {
    const { type, verdict, agent } = search;
    if (!type && !verdict && !agent) return null;
    const rows = new Set<number>();
    marks.forEach((mark, row) => {
      if ((!type || mark.type === type) && (!verdict || mark.verdict === verdict) && (!agent || mark.lane === agent)) rows.add(row);
    });
    return rows;
  }, [marks, search]);
  const select = (row: number) => change({ packet: marks[row]?.seq });
  const placeOf = (mark: { seq: number }) => ({ to: "/packets/$packetId", params: { packetId: `${shard}-${mark.seq}` }, search: { session: sessionId } }) as const;
  const open = (row: number) => void navigate(placeOf(marks[row]!));

  return (
    <Loaded answer={answer} what="the session" lines={10}>
      {(detail) => {
        const shown = shownOf(detail, search.at === undefined ? null : (past.data ?? null));
        const isResearch = detail.coordinator === "research";
        return (
          <div className="stack">
            <div className="title">
              <div>
                <RunHeading runId={runId} />
                <div className="row session-facts" style={{ gap: 6 }}>
                  <Facts detail={detail} onRefused={() => change({ verdict: "refused", view: undefined })} />
                  <Tags runId={runId} />
                </div>
                <p className="under">
                  {detail.is_terminal ? "Ended" : "Started"} <Ago at={detail.is_terminal ? detail.updated_at : detail.opened_at} />, opened by {detail.opener}
                </p>
              </div>
              <div className="acts">
                {sessions.length > 1 && (
                  <select className="field" aria-label="Session" value={sessionId} onChange={(event) => change({ session: event.target.value, at: undefined, packet: undefined, from: undefined, to: undefined })}>
                    {sessions.map((one) => (
                      <option key={one.session_id} value={one.session_id}>
                        {`${stateWord(one.state)}, from ${dateTime(one.opened_at)}, ${shortId(one.session_id)}`}
                      </option>
                    ))}
                  </select>
                )}
                {server?.can_act && !detail.is_terminal && <SessionActs detail={detail} />}
              </div>
            </div>
            {search.at !== undefined && (
              <div className="notice neutral" role="status">
                <span>
                  <strong>The past.</strong> You see the session after entry {count(search.at)} of the log.
                </span>
                <button className="button small" style={{ marginLeft: "auto" }} onClick={() => change({ at: undefined })}>
                  Return to now
                </button>
              </div>
            )}
            {past.error && search.at !== undefined && <Failed error={past.error} />}
            <SummaryCards detail={detail} shown={shown} onPick={() => change({ verdict: "refused", view: undefined })} />
            {error && !isLoaded ? (
              <Card><Failed error={error} /></Card>
            ) : (
              <TimelineCard timeline={timeline} isLoaded={isLoaded} at={at} selected={selected} kept={kept} onSelect={select} onOpen={open} />
            )}
            <Tabs.Root className="card" value={search.view ?? "packets"} onValueChange={(view) => change({ view: view === "packets" ? undefined : view })}>
              <Tabs.List className="tabs" aria-label="Details">
                <Tabs.Trigger value="packets">Packets</Tabs.Trigger>
                <Tabs.Trigger value="graph">Lineage</Tabs.Trigger>
                {isResearch && <Tabs.Trigger value="scores">Scores</Tabs.Trigger>}
                <Tabs.Trigger value="transcript">Transcript</Tabs.Trigger>
                <Tabs.Trigger value="moves">Transitions</Tabs.Trigger>
                <Tabs.Trigger value="members">Members</Tabs.Trigger>
              </Tabs.List>
              <Tabs.Content value="packets" tabIndex={-1}>
                <PacketTable sessionId={sessionId} hasGenerations={isResearch} timeline={timeline} isLoaded={isLoaded} isLive={!detail.is_terminal && search.at === undefined} at={at} selected={search.packet ?? null} kept={kept} onSelect={select} link={(mark) => linkOptions(placeOf(mark))} />
              </Tabs.Content>
              <Tabs.Content value="graph" tabIndex={-1}>
                <Suspense fallback={<Loading what="the lineage" />}>
                  <Lineage timeline={timeline} isLoaded={isLoaded} at={at} selected={selected} onSelect={select} onOpen={open} />
                </Suspense>
              </Tabs.Content>
              <Tabs.Content value="scores" tabIndex={-1}>
                <Scores runId={runId} sessionId={sessionId} until={search.at} />
              </Tabs.Content>
              <Tabs.Content value="transcript" tabIndex={-1}>
                <Transcript sessionId={sessionId} until={search.at} />
              </Tabs.Content>
              <Tabs.Content value="moves" tabIndex={-1}>
                <Moves sessionId={sessionId} until={search.at} isResearch={isResearch} />
              </Tabs.Content>
              <Tabs.Content value="members" tabIndex={-1}>
                <Members detail={detail} />
              </Tabs.Content>
            </Tabs.Root>
          </div>
        );
      }}
    </Loaded>
  );
}
