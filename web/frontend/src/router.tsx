/** Every view has an address that reproduces it: selection and filters are typed search parameters. */
import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import type { AgentState } from "./lib/agents";
import { readRange } from "./lib/range";
import { readIssueSearch } from "./lib/issues";
import { Failed } from "./parts/states";
import { Shell } from "./shell/shell";

const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : typeof value === "number" ? String(value) : undefined);
const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : undefined);

const oneOf = <Name extends string>(value: unknown, names: readonly Name[]) => names.find((name) => name === value);

export interface RunSearch {
  session?: string;
  /** Entry after which the past is shown. */
  at?: number;
  /** Entry of the selected packet. */
  packet?: number;
  from?: number;
  to?: number;
  axis?: "time";
  /** What the lineage graph is laid out by. */
  by?: "order";
  view?: string;
  type?: string;
  verdict?: string;
  agent?: string;
}

/** What every list and chart understands: its order, and its time range. */
export interface ListSearch {
  /** A column, with a minus downwards. */
  sort?: string;
  since?: string;
  until?: string;
}

const root = createRootRoute({
  validateSearch: (search: Record<string, unknown>): ListSearch => ({ sort: text(search.sort), ...(search.since === "all" ? { since: "all" } : readRange(search)) }),
  component: Shell,
  errorComponent: ({ error }) => <Failed error={error} retry={() => location.reload()} />,
  notFoundComponent: () => <Failed error={new Error("There is no such page.")} />,
});

const overview = createRoute({ getParentRoute: () => root, path: "/", component: lazyRouteComponent(() => import("./pages/overview"), "Overview") });

/** What narrows the runs; see `GET /runs`. */
export interface RunsSearch {
  q?: string;
  team?: string;
  contract?: string;
  tag?: string;
  agent?: string;
  outcome?: string;
  in_state?: string;
}

const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  validateSearch: (search: Record<string, unknown>): RunsSearch => ({
    q: text(search.q),
    team: text(search.team),
    contract: text(search.contract),
    tag: text(search.tag),
    agent: text(search.agent),
    outcome: text(search.outcome),
    in_state: text(search.in_state),
  }),
  component: lazyRouteComponent(() => import("./pages/runs"), "Runs"),
});

const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$runId",
  validateSearch: (search: Record<string, unknown>): RunSearch => ({
    session: text(search.session),
    at: number(search.at),
    packet: number(search.packet),
    from: number(search.from),
    to: number(search.to),
    axis: search.axis === "time" ? "time" : undefined,
    by: search.by === "order" ? "order" : undefined,
    view: text(search.view),
    type: text(search.type),
    verdict: text(search.verdict),
    agent: text(search.agent),
  }),
  component: lazyRouteComponent(() => import("./pages/run/page"), "RunPage"),
});

const packet = createRoute({
  getParentRoute: () => root,
  path: "/packets/$packetId",
  validateSearch: (search: Record<string, unknown>): { session?: string } => ({ session: text(search.session) }),
  component: lazyRouteComponent(() => import("./pages/packet/page"), "PacketPage"),
});

const inbox = createRoute({
  getParentRoute: () => root,
  path: "/inbox",
  validateSearch: (search: Record<string, unknown>): { view?: string; show?: "answered" } => ({ view: text(search.view), show: oneOf(search.show, ["answered"]) }),
  component: lazyRouteComponent(() => import("./pages/inbox/page"), "InboxPage"),
});

const arbitrations = createRoute({
  getParentRoute: () => root,
  path: "/arbitrations",
  validateSearch: (search: Record<string, unknown>): { run?: string; open?: string } => ({ run: text(search.run), open: text(search.open) }),
  component: lazyRouteComponent(() => import("./pages/arbitrations"), "Arbitrations"),
});

const agents = createRoute({
  getParentRoute: () => root,
  path: "/agents",
  validateSearch: (search: Record<string, unknown>): { state?: AgentState } => ({ state: oneOf(search.state, ["alive", "silent", "revoked", "person"]) }),
  component: lazyRouteComponent(() => import("./pages/agents/page"), "AgentsPage"),
});

const agent = createRoute({ getParentRoute: () => root, path: "/agents/$agentId", component: lazyRouteComponent(() => import("./pages/agents/agent"), "AgentPage"), remountDeps: ({ params }) => params.agentId });

const search = createRoute({
  getParentRoute: () => root,
  path: "/search",
  validateSearch: (search: Record<string, unknown>): { q?: string; agent?: string; schema?: string; code?: string; run?: string } => ({
    q: text(search.q),
    agent: text(search.agent),
    schema: text(search.schema),
    code: text(search.code),
    run: text(search.run),
  }),
  component: lazyRouteComponent(() => import("./pages/search"), "SearchPage"),
});

const issues = createRoute({
  getParentRoute: () => root,
  path: "/issues",
  validateSearch: readIssueSearch,
  component: lazyRouteComponent(() => import("./pages/issues"), "IssuesPage"),
});

const log = createRoute({ getParentRoute: () => root, path: "/log", component: lazyRouteComponent(() => import("./pages/log"), "LogPage") });

const chat = createRoute({ getParentRoute: () => root, path: "/chat", component: lazyRouteComponent(() => import("./pages/chat/page"), "ChatPage") });

const chatOne = createRoute({ getParentRoute: () => root, path: "/chat/$chatId", component: lazyRouteComponent(() => import("./pages/chat/page"), "ChatPage"), remountDeps: ({ params }) => params.chatId });

export const router = createRouter({
  routeTree: root.addChildren([overview, runs, run, packet, search, issues, inbox, arbitrations, agents, agent, log, chat, chatOne]),
  scrollRestoration: true,
  defaultPreload: "intent",
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
