/** What the pages read. Keys begin with the subject, so that live entries can mark a subject as outdated. */
import { infiniteQueryOptions, keepPreviousData, queryOptions, useQueries, useQuery } from "@tanstack/react-query";
import { batched } from "../lib/batches";
import type { paths } from "./schema";
import { againAfter, api, data, type Schemas } from "./client";

const query = <T extends object>(given: T) => ({ params: { query: given } });

export const about = queryOptions({ queryKey: ["about"], queryFn: () => data(api.GET("/api/v1/about")), staleTime: 60_000, refetchInterval: (query) => againAfter(query.state.error, 60_000) });

/** Gate, log writer and alerts: the server looks at the queues at most every 3 s. */
export const system = queryOptions({ queryKey: ["system"], queryFn: () => data(api.GET("/api/v1/system")), refetchInterval: (query) => againAfter(query.state.error, 5_000) });

type RunsAsked = NonNullable<paths["/api/v1/runs"]["get"]["parameters"]["query"]>;
type SearchAsked = NonNullable<paths["/api/v1/search"]["get"]["parameters"]["query"]>;

/** While the follower of the log is behind, what has just begun is still missing. */
const whileBehind = (behind: number | undefined) => (behind ? 1_000 : false);

export const runs = (given: RunsAsked = {}) =>
  infiniteQueryOptions({
    queryKey: ["runs", given],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/runs", query({ ...given, after: pageParam, limit: 50 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    refetchInterval: (query) => whileBehind(query.state.data?.pages[0]?.behind),
    placeholderData: keepPreviousData,
  });

/** Packets and runs that fit a search. */
export const found = (given: SearchAsked) =>
  infiniteQueryOptions({
    queryKey: ["search", given],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/search", query({ ...given, after: pageParam, limit: given.limit ?? 50 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });

export const run = (run_id: string) =>
  queryOptions({ queryKey: ["run", run_id], queryFn: () => data(api.GET("/api/v1/runs/{run_id}", { params: { path: { run_id } } })) });

export const session = (session_id: string) =>
  queryOptions({
    queryKey: ["session", session_id],
    queryFn: () => data(api.GET("/api/v1/sessions/{session_id}", { params: { path: { session_id } } })),
  });

export const sessionAt = (session_id: string, seq: number) =>
  queryOptions({
    queryKey: ["at", session_id, seq],
    queryFn: () => data(api.GET("/api/v1/sessions/{session_id}/at/{seq}", { params: { path: { session_id, seq } } })),
    placeholderData: keepPreviousData,
    staleTime: Infinity,
  });

export const moves = (session_id: string) =>
  queryOptions({
    queryKey: ["moves", session_id],
    queryFn: () => data(api.GET("/api/v1/sessions/{session_id}/moves", { params: { path: { session_id }, query: { limit: 500 } } })),
  });

export const scores = (session_id: string) =>
  queryOptions({
    queryKey: ["scores", session_id],
    queryFn: () => data(api.GET("/api/v1/sessions/{session_id}/scores", { params: { path: { session_id } } })),
  });

export const packet = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["packet", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}", { params: { path: { packet_id }, query: { session } } })),
  });

const asked = new Map<string, (seq: number) => Promise<Schemas["ContentLine"] | null>>();

/** Ask for lines of a session's packets, many at once. */
function lineOf(session_id: string, seq: number): Promise<Schemas["ContentLine"] | null> {
  let ask = asked.get(session_id);
  if (!ask) {
    ask = batched(async (seqs: number[]) => {
      const found = await data(api.GET("/api/v1/sessions/{session_id}/lines", { params: { path: { session_id }, query: { seq: seqs } } }));
      return new Map(found.items.map((one) => [one.seq, one]));
    }, 200);
    asked.set(session_id, ask);
  }
  return ask(seq);
}

/** What a packet of a session says, in one line. */
export const line = (session_id: string, seq: number) =>
  queryOptions({ queryKey: ["line", session_id, seq], queryFn: () => lineOf(session_id, seq), staleTime: Infinity });

/** A registered schema never changes under its version. */
export const schemaDocument = (schema_id: string) =>
  queryOptions({
    queryKey: ["schema", schema_id],
    queryFn: () => data(api.GET("/api/v1/schemas/{name}/{version}", { params: { path: splitSchema(schema_id) } })),
    staleTime: Infinity,
    retry: false,
  });

function splitSchema(schema_id: string): { name: string; version: number } {
  const at = schema_id.lastIndexOf("/");
  return { name: schema_id.slice(0, at), version: Number(schema_id.slice(at + 1)) };
}

export const tree = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["tree", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}/tree", { params: { path: { packet_id }, query: { session, limit: 300 } } })),
  });

export const impact = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["impact", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}/impact", { params: { path: { packet_id }, query: { session, limit: 100 } } })),
  });

/** What a packet rests on. */
export const evidence = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["evidence", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}/evidence", { params: { path: { packet_id }, query: { session } } })),
  });

export const proof = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["proof", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}/proof", { params: { path: { packet_id }, query: { session } } })),
    staleTime: 0,
    retry: false,
  });

/** The proof of an entry of any kind. */
export const entryProof = (shard: number, seq: number) =>
  queryOptions({
    queryKey: ["proof", "entry", shard, seq],
    queryFn: () => data(api.GET("/api/v1/log/entries/{shard}/{seq}/proof", { params: { path: { shard, seq } } })),
    staleTime: 60_000,
    retry: false,
  });

export const transcript = (session_id: string) =>
  infiniteQueryOptions({
    queryKey: ["transcript", session_id],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/packets", query({ session_id, after: pageParam, limit: 40 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });

export const dead = infiniteQueryOptions({
  queryKey: ["dead"],
  queryFn: ({ pageParam }) => data(api.GET("/api/v1/dead", query({ after: pageParam, limit: 50 }))),
  initialPageParam: undefined as string | undefined,
  getNextPageParam: (page) => page.next ?? undefined,
});

export const approvals = queryOptions({ queryKey: ["approvals"], queryFn: () => data(api.GET("/api/v1/approvals", query({ limit: 200 }))) });

export const answered = (since?: string, until?: string) =>
  infiniteQueryOptions({
    queryKey: ["approvals", "answered", since, until],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/approvals/answered", query({ since, until, after: pageParam, limit: 30 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });

export const deadGroups = queryOptions({ queryKey: ["dead", "groups"], queryFn: () => data(api.GET("/api/v1/dead/groups")) });

export type IssueQuery = NonNullable<paths["/api/v1/issues"]["get"]["parameters"]["query"]>;

export const issues = (given: IssueQuery) => queryOptions({ queryKey: ["issues", given], queryFn: () => data(api.GET("/api/v1/issues", query(given))), placeholderData: keepPreviousData });

export const occurrences = (given: NonNullable<paths["/api/v1/issues/occurrences"]["get"]["parameters"]["query"]>) =>
  infiniteQueryOptions({
    queryKey: ["issues", "occurrences", given],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/issues/occurrences", query({ ...given, after: pageParam, limit: 20 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });

export const effects = (state: "UNKNOWN" | "RESULT_LOST") =>
  queryOptions({ queryKey: ["effects", state], queryFn: () => data(api.GET("/api/v1/effects", query({ state }))) });

/** How many effects wait to be settled. */
export function useUnknownEffects(refetchInterval: number | false = false): number {
  const counts = (["UNKNOWN", "RESULT_LOST"] as const).map((state) => effects(state));
  return useQueries({ queries: counts.map((one) => ({ ...one, refetchInterval })) }).reduce((sum, one) => sum + (one.data?.items.length ?? 0), 0);
}

/** Whose effects of a session wait to be settled: what died of one would only die again. */
export function useOpenEffects(session_id: string): (agent_id: string) => boolean {
  const open = useQuery(effects("UNKNOWN")).data?.items ?? [];
  return (agent_id) => open.some((one) => one.session_id === session_id && one.agent_id === agent_id);
}

export const tasks = (status: "FAILED" | "RUNNING") =>
  queryOptions({ queryKey: ["tasks", status], queryFn: () => data(api.GET("/api/v1/tasks", query({ status }))) });

export const arbitrations = (range: { since?: string; until?: string }, run_id?: string) =>
  infiniteQueryOptions({
    queryKey: ["arbitrations", range.since, range.until, run_id],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/arbitrations", query({ ...range, run_id, after: pageParam, limit: 50 }))),
    placeholderData: keepPreviousData,
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });

export const arbitrationStats = (range: { since?: string; until?: string }, run_id?: string) =>
  queryOptions({
    queryKey: ["arbitrations", "stats", range.since, range.until, run_id],
    queryFn: () => data(api.GET("/api/v1/arbitrations/stats", query({ ...range, run_id }))),
    placeholderData: keepPreviousData,
  });

export const agents = queryOptions({ queryKey: ["agents"], queryFn: () => data(api.GET("/api/v1/agents")) });

/** Agents with their queues: the server looks at them at most every 3 s. */
export const agentsWithQueues = queryOptions({
  queryKey: ["agents", "queues"],
  queryFn: () => data(api.GET("/api/v1/agents", query({ queues: true }))),
  refetchInterval: (query) => againAfter(query.state.error, 5_000),
});

export const checkpoints = queryOptions({ queryKey: ["checkpoints"], queryFn: () => data(api.GET("/api/v1/log/checkpoints")) });

/** The verification that runs or ran: asked every second while one runs, now and then because somebody else may start one. */
export const verification = queryOptions({
  queryKey: ["verification"],
  queryFn: () => data(api.GET("/api/v1/log/verify")),
  refetchInterval: (query) => againAfter(query.state.error, query.state.data?.state === "running" ? 1_000 : 15_000),
});

/** Packets of the last minute: counted in the log every few seconds. */
export const ratesNow = queryOptions({ queryKey: ["rates", "now"], queryFn: () => data(api.GET("/api/v1/rates")), refetchInterval: (query) => againAfter(query.state.error, 2_000) });

export const rates = (range: { since?: string; until?: string }) =>
  queryOptions({
    queryKey: ["rates", range.since, range.until],
    // Without a beginning all that is in the log is meant, and not the last minute.
    queryFn: () => data(api.GET("/api/v1/rates", query({ since: range.since ?? "1970-01-01T00:00:00Z", until: range.until }))),
    placeholderData: keepPreviousData,
    refetchInterval: (query) => againAfter(query.state.error, 15_000),
  });

export const agentDays = (range: { since?: string; until?: string }) =>
  queryOptions({ queryKey: ["agents", "days", range.since, range.until], queryFn: () => data(api.GET("/api/v1/agent-days", query(range))), placeholderData: keepPreviousData });

export const agent = (agent_id: string, range: { since?: string; until?: string }) =>
  queryOptions({
    queryKey: ["agents", "one", agent_id, range.since, range.until],
    queryFn: () => data(api.GET("/api/v1/agents/{agent_id}", { params: { path: { agent_id }, query: range } })),
    placeholderData: keepPreviousData,
    refetchInterval: (query) => againAfter(query.state.error, 5_000),
  });

/** What goes wrong most, of what nobody has said to know of. */
export const topIssues = (range: { since?: string; until?: string }) =>
  queryOptions({ queryKey: ["issues", "top", range.since, range.until], queryFn: () => data(api.GET("/api/v1/issues", query({ ...range, state: "open" as const, limit: 3 }))), placeholderData: keepPreviousData });
