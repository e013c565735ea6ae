/** What is around every page: navigation, breadcrumbs, search, theme, live state. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, Outlet, useRouterState } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { api, ApiProblem } from "../api/client";
import { about, approvals, dead } from "../api/queries";
import { plural, shortId } from "../lib/format";
import { Card } from "../parts/bits";
import type { StreamState } from "../live/stream";
import { Failed } from "../parts/states";
import { useLive } from "../state/live";
import { Icon } from "./icons";
import { Palette } from "./palette";
import { toggleTheme, useTheme } from "./theme";

const PAGES = [
  { to: "/", name: "Overview", icon: "overview" },
  { to: "/runs", name: "Runs", icon: "runs" },
  { to: "/inbox", name: "Inbox", icon: "inbox" },
  { to: "/arbitrations", name: "Arbitrations", icon: "arbitrations" },
  { to: "/agents", name: "Agents", icon: "agents" },
  { to: "/chat", name: "Chat", icon: "chat" },
] as const;

const LIVE_WORDS = { live: "Live", waiting: "Reconnecting", away: "Log not readable", off: "Not live" };

function Side() {
  const questions = useQuery({ ...approvals, refetchInterval: 30_000 }).data?.items.length ?? 0;
  const letters = useInfiniteQuery({ ...dead, refetchInterval: 30_000 }).data?.pages.flatMap((page) => page.items).length ?? 0;
  const server = useQuery(about).data;
  return (
    <nav className="side" aria-label="Pages">
      <Link to="/" className="brand">
        <img src="/icon.svg" alt="" />
        apc-bus
      </Link>
      {PAGES.map((page) => (
        <Link key={page.to} to={page.to} className="nav" activeOptions={{ exact: page.to === "/" }}>
          <Icon name={page.icon} />
          {page.name}
          {page.name === "Inbox" && questions + letters > 0 && (
            <span className="count" title={`${plural(questions, "question")}, ${plural(letters, "dead letter")}`}>
              {questions + letters}
            </span>
          )}
        </Link>
      ))}
      {server && (
        <div className="foot">
          {server.has_accounts && (
            <span className="row">
              <span title={`Role: ${server.role}`}>{server.user}</span>
              <button className="button small plain" onClick={() => void api.POST("/api/v1/logout").finally(() => location.assign("/"))}>
                Log out
              </button>
            </span>
          )}
          <span>{server.can_act ? "Acts allowed" : <span title={server.why_not ?? undefined}>Read only</span>}</span>
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
  const words: Record<string, string> = { "": "Overview", runs: "Runs", packets: "Packets", inbox: "Inbox", arbitrations: "Arbitrations", agents: "Agents", chat: "Chat" };
  const title = words[area] ?? "Page";
  return (
    <nav className="crumbs" aria-label="Breadcrumbs">
      {name && area === "runs" ? <Link to="/runs">{title}</Link> : name && area === "chat" ? <Link to="/chat">{title}</Link> : <span aria-current={name ? undefined : "page"}>{title}</span>}
      {name && (
        <>
          <span aria-hidden="true">/</span>
          <span aria-current="page" className="mono">
            {shortId(name)}
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

/** The server answers, and cannot read the log. */
function Away({ live }: { live: StreamState }) {
  return (
    <div role="status">
      {live === "away" && (
        <p className="notice warn" style={{ marginBottom: 14 }}>
          <span>The server cannot read the log: its database does not answer. What you see may be old. This page continues by itself.</span>
        </p>
      )}
    </div>
  );
}

export function Shell() {
  const [isSearching, search] = useState(false);
  const theme = useTheme();
  const live = useLive();
  // One form for the whole page, and not one in each of its parts.
  const refusal = useQuery(about).error;
  const isOut = refusal instanceof ApiProblem && refusal.status === 401;
  return (
    <div className="shell">
      <a href="#content" className="skip">
        Skip to the content
      </a>
      <Side />
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
          <button className="button icon plain" onClick={toggleTheme} aria-label={theme === "dark" ? "Use light colours" : "Use dark colours"}>
            <Icon name={theme === "dark" ? "sun" : "moon"} />
          </button>
        </header>
        <main id="content" tabIndex={-1}>
          <Away live={live} />
          <Updated />
          {isOut ? (
            <Card>
              <Failed error={refusal} />
            </Card>
          ) : (
            <Outlet />
          )}
        </main>
      </div>
      <Palette isOpen={isSearching} change={search} />
    </div>
  );
}
