/** The run page: where it stands, its timeline, and the packets; now, or after any entry. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import { lazy, Suspense, useCallback, useMemo } from "react";
import { againAfter, api, data } from "../../api/client";
import { about, session, sessionAt } from "../../api/queries";
import { Ago, Card, usePageTitle } from "../../parts/bits";
import { Empty, Failed, Loaded, Loading } from "../../parts/states";
import { count } from "../../lib/format";
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

function useSessionId(runId: string): { sessionId: string | undefined; sessions: string[]; error: unknown } {
  const [search] = useRunSearch();
  const answer = useQuery({
    queryKey: ["sessions", runId],
    queryFn: () => data(api.GET("/api/v1/sessions", { params: { query: { run_id: runId, limit: 100 } } })),
    refetchInterval: (query) => againAfter(query.state.error, query.state.data?.items.length === 0 ? 1_000 : false),
  });
  const sessions = useMemo(() => answer.data?.items.map((item) => item.session_id) ?? [], [answer.data]);
  return { sessionId: search.session ?? sessions[0], sessions, error: answer.data ? (sessions.length === 0 ? "none" : null) : answer.error };
}

export function RunPage() {
  const { runId } = useParams({ from: "/runs/$runId" });
  usePageTitle(runId);
  const { sessionId, sessions, error } = useSessionId(runId);
  if (error === "none") {
    return (
      <Card>
        <Empty title="The log has no such run" command="apc session list">
          Nothing was logged under “{runId}” yet: this page shows it when it begins. It may also be in the log of another data folder or database.
        </Empty>
      </Card>
    );
  }
  if (error && !sessionId) return <Card><Failed error={error} /></Card>;
  if (!sessionId) return <Card><Loading what="the run" lines={8} /></Card>;
  return <Session key={sessionId} runId={runId} sessionId={sessionId} sessions={sessions} />;
}

function Session({ runId, sessionId, sessions }: { runId: string; sessionId: string; sessions: string[] }) {
  const [search, change] = useRunSearch();
  const navigate = useNavigate();
  const answer = useQuery(session(sessionId));
  const past = useQuery({ ...sessionAt(sessionId, search.at ?? 0), enabled: search.at !== undefined });
  const { timeline, isLoaded, error, take } = useTimeline(sessionId);
  useStream({ session_id: sessionId }, ["session", "timeline", "scores", "moves", "transcript"], take);
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
  const open = (row: number) => void navigate({ to: "/packets/$packetId", params: { packetId: `${shard}-${marks[row]!.seq}` }, search: { session: sessionId } });

  return (
    <Loaded answer={answer} what="the session" lines={10}>
      {(detail) => {
        const shown = shownOf(detail, search.at === undefined ? null : (past.data ?? null));
        return (
          <div className="stack">
            <div className="title">
              <div>
                <h1 className="mono">{runId}</h1>
                <p className="under">
                  {detail.is_terminal ? "Ended" : "Started"} <Ago at={detail.is_terminal ? detail.updated_at : detail.opened_at} />, opened by {detail.opener}
                </p>
              </div>
              <div className="acts">
                {sessions.length > 1 && (
                  <select className="field" aria-label="Session" value={sessionId} onChange={(event) => change({ session: event.target.value, at: undefined, packet: undefined, from: undefined, to: undefined })}>
                    {sessions.map((one) => (
                      <option key={one}>{one}</option>
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
                <Tabs.Trigger value="scores">Scores</Tabs.Trigger>
                <Tabs.Trigger value="transcript">Transcript</Tabs.Trigger>
                <Tabs.Trigger value="moves">Transitions</Tabs.Trigger>
                <Tabs.Trigger value="members">Members</Tabs.Trigger>
              </Tabs.List>
              <Tabs.Content value="packets" tabIndex={-1}>
                <PacketTable name={sessionId} timeline={timeline} isLoaded={isLoaded} at={at} selected={search.packet ?? null} kept={kept} onSelect={select} onOpen={open} />
              </Tabs.Content>
              <Tabs.Content value="graph" tabIndex={-1}>
                <Suspense fallback={<Loading what="the lineage" />}>
                  <Lineage timeline={timeline} isLoaded={isLoaded} at={at} selected={selected} onSelect={select} onOpen={open} />
                </Suspense>
              </Tabs.Content>
              <Tabs.Content value="scores" tabIndex={-1}>
                <Scores sessionId={sessionId} until={search.at} />
              </Tabs.Content>
              <Tabs.Content value="transcript" tabIndex={-1}>
                <Transcript sessionId={sessionId} until={search.at} />
              </Tabs.Content>
              <Tabs.Content value="moves" tabIndex={-1}>
                <Moves sessionId={sessionId} until={search.at} />
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
