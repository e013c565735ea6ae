/** What is around every page: navigation, breadcrumbs, search, theme, live state. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, Outlet, useRouterState } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { api, ApiProblem } from "../api/client";
import { about, approvals, dead, useUnknownEffects } from "../api/queries";
import { plural, shortId, visible } from "../lib/format";
import { Card, Foreign } from "../parts/bits";
import type { StreamState } from "../live/stream";
import { CopyLink } from "../parts/copy";
import { Loading } from "../parts/states";
import { useLive } from "../state/live";
import { Entrance } from "./entrance";
import { Icon } from "./icons";
import { Palette } from "./palette";
import { Shortcuts } from "./shortcuts";
import { toggleTheme, useTheme } from "./theme";

const PAGES = [
  { to: "/", name: "Overview", icon: "overview" },
  { to: "/runs", name: "Runs", icon: "runs" },
  { to: "/search", name: "Search", icon: "search" },
  { to: "/issues", name: "Issues", icon: "issues" },
  { to: "/inbox", name: "Inbox", icon: "inbox" },
  { to: "/agents", name: "Agents", icon: "agents" },
  { to: "/log", name: "Log", icon: "log" },
  { to: "/chat", name: "Chat", icon: "chat" },
] as const;

const LIVE_WORDS = { live: "Live", waiting: "Reconnecting", away: "Log not readable", off: "Not live" };

function Side({ leave }: { leave: () => void }) {
  const questions = useQuery({ ...approvals, refetchInterval: 30_000 }).data?.items.length ?? 0;
  const letters = useInfiniteQuery({ ...dead, refetchInterval: 30_000 }).data?.pages.flatMap((page) => page.items).length ?? 0;
  const unknown = useUnknownEffects(30_000);
  const waiting = questions + letters + unknown;
  const server = useQuery(about).data;
  return (
    <nav className="side" aria-label="Pages">
      <Link to="/" className="brand">
        <img src="/icon.svg" alt="" />
        apc-bus
      </Link>
      {PAGES.filter((page) => page.to !== "/chat" || server?.can_chat).map((page) => (
        <Link key={page.to} to={page.to} className="nav" activeOptions={{ exact: page.to === "/" }}>
          <Icon name={page.icon} />
          {page.name}
          {page.name === "Inbox" && waiting > 0 && (
            <span className="count" title={`${plural(questions, "question")}, ${plural(letters, "dead letter")}, ${plural(unknown, "unknown effect")}`}>
              {waiting}
            </span>
          )}
        </Link>
      ))}
      {server && (
        <div className="foot">
          {server.has_accounts && (
            <span className="row">
              <span title={`Role: ${server.role}`}>{server.user}</span>
              <button className="button small plain" onClick={leave}>
                Log out
              </button>
            </span>
          )}
          <span>{server.can_act ? "Acts allowed" : <span title={server.why_not?.replaceAll("`", "") ?? undefined}>Read only</span>}</span>
          <span>
            {server.database === "embedded" ? "Embedded log" : "Shared log"} · {server.version}
          </span>
        </div>
      )}
    </nav>
  );
}

function Crumbs() {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const [area = "", name] = path.split("/").filter(Boolean).map(decodeURIComponent);
  const page = PAGES.find((one) => one.to === `/${area}`);
  const title = page?.name ?? { packets: "Packets", arbitrations: "Arbitrations" }[area] ?? "Page";
  return (
    <nav className="crumbs" aria-label="Breadcrumbs">
      {name && page ? <Link to={page.to}>{title}</Link> : <span aria-current={name ? undefined : "page"}>{title}</span>}
      {name && (
        <>
          <span aria-hidden="true">/</span>
          <span aria-current="page" className="mono" title={visible(name)}>
            <Foreign>{shortId(name)}</Foreign>
          </span>
        </>
      )}
    </nav>
  );
}

/** A newer server than the one that this page came from. */
function Updated() {
  const version = useQuery(about).data?.version;
  const [first, remember] = useState<string>();
  useEffect(() => {
    if (version && !first) remember(version);
  }, [version, first]);
  if (!version || !first || version === first) return null;
  return (
    <div className="notice neutral" role="status" style={{ marginBottom: 14 }}>
      <span>
        The server is now version {version}. This page is of version {first}.
      </span>
      <button className="button small" style={{ marginLeft: "auto" }} onClick={() => location.reload()}>
        Load the new page
      </button>
    </div>
  );
}

const isOffline = (error: unknown) => error instanceof ApiProblem && error.status === 0;

/** The server does not answer, or answers and cannot read the log. */
function Away({ live }: { live: StreamState }) {
  const server = useQuery(about);
  const words = isOffline(server.error) && server.data ? "The server does not answer." : live === "away" ? "The server cannot read the log: its database does not answer." : "";
  return (
    <div role="status">
      {words && (
        <p className="notice warn" style={{ marginBottom: 14 }}>
          <span>{words} What you see may be old. This page continues by itself.</span>
        </p>
      )}
    </div>
  );
}

/** A page that came from this browser's own files, because the server was away, is replaced as soon as it is back. */
function useReloadAfterAway(error: unknown, isThere: boolean): void {
  const [wasAway, remember] = useState(false);
  useEffect(() => {
    if (isOffline(error) && !isThere) remember(true);
    if (wasAway && isThere) location.reload();
  }, [error, isThere, wasAway]);
}

export function Shell() {
  const [isSearching, search] = useState(false);
  const [isHelping, help] = useState(false);
  const [isLeaving, say] = useState(false);
  const theme = useTheme();
  const live = useLive();
  // Until the page is loaded again without anything of the account, none of its parts asks for more.
  const leave = () => {
    say(true);
    void api.POST("/api/v1/logout").finally(() => location.assign("/"));
  };
  // One form for the whole page, and not one in each of its parts.
  const server = useQuery(about);
  const refusal = server.error;
  const isOut = refusal instanceof ApiProblem && (refusal.status === 401 || (isOffline(refusal) && !server.data));
  useReloadAfterAway(refusal, server.data !== undefined);
  return (
    <div className="shell">
      <a href="#content" className="skip">
        Skip to the content
      </a>
      <Side leave={leave} />
      <div>
        <header className="top">
          <Crumbs />
          <button className="search" onClick={() => search(true)} aria-label="Search (Ctrl-K)">
            <Icon name="search" />
            <span>Go to…</span>
            <kbd>Ctrl K</kbd>
          </button>
          <span className="live" data-state={live} role="status">
            <span className="dot" />
            <span>{LIVE_WORDS[live]}</span>
          </span>
          <CopyLink />
          <button className="button icon plain help" onClick={() => help(true)} aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)">
            <Icon name="help" />
          </button>
          <button className="button icon plain" onClick={toggleTheme} aria-label={theme === "dark" ? "Use light colours" : "Use dark colours"}>
            <Icon name={theme === "dark" ? "sun" : "moon"} />
          </button>
        </header>
        <main id="content" tabIndex={-1}>
          <Away live={live} />
          <Updated />
          {isLeaving ? (
            <Card>
              <Loading what="the login" lines={3} />
            </Card>
          ) : isOut ? (
            <Card>
              <Entrance error={refusal} />
            </Card>
          ) : (
            <Outlet />
          )}
        </main>
      </div>
      <Palette isOpen={isSearching} change={search} />
      <Shortcuts isOpen={isHelping} change={help} />
    </div>
  );
}
