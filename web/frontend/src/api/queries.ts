/** What the pages read. Keys begin with the subject, so that live entries can mark a subject as outdated. */
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { againAfter, api, data } from "./client";

const query = <T extends object>(given: T) => ({ params: { query: given } });

export const about = queryOptions({ queryKey: ["about"], queryFn: () => data(api.GET("/api/v1/about")), staleTime: 60_000, refetchInterval: (query) => againAfter(query.state.error, 60_000) });

/** Gate, log writer and alerts: the server looks at the queues at most every 3 s. */
export const system = queryOptions({ queryKey: ["system"], queryFn: () => data(api.GET("/api/v1/system")), refetchInterval: (query) => againAfter(query.state.error, 5_000) });

export const runs = infiniteQueryOptions({
  queryKey: ["runs"],
  queryFn: ({ pageParam }) => data(api.GET("/api/v1/runs", query({ after: pageParam, limit: 50 }))),
  initialPageParam: undefined as string | undefined,
  getNextPageParam: (page) => page.next ?? undefined,
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

export const proof = (packet_id: string, session?: string) =>
  queryOptions({
    queryKey: ["proof", packet_id, session],
    queryFn: () => data(api.GET("/api/v1/packets/{packet_id}/proof", { params: { path: { packet_id }, query: { session } } })),
    staleTime: 0,
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

export const effects = (state: "UNKNOWN" | "RESULT_LOST") =>
  queryOptions({ queryKey: ["effects", state], queryFn: () => data(api.GET("/api/v1/effects", query({ state }))) });

export const tasks = (status: "FAILED" | "RUNNING") =>
  queryOptions({ queryKey: ["tasks", status], queryFn: () => data(api.GET("/api/v1/tasks", query({ status }))) });

export const arbitrations = (run_id?: string) =>
  infiniteQueryOptions({
    queryKey: ["arbitrations", run_id],
    queryFn: ({ pageParam }) => data(api.GET("/api/v1/arbitrations", query({ run_id, after: pageParam, limit: 50 }))),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });

export const arbitrationStats = (run_id?: string) =>
  queryOptions({ queryKey: ["arbitrations", "stats", run_id], queryFn: () => data(api.GET("/api/v1/arbitrations/stats", query({ run_id }))) });

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
