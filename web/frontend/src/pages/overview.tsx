/** What runs, what waits for a person, how full the log is. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useState } from "react";
import type { Schemas } from "../api/client";
import { agents, approvals, dead, effects, runs } from "../api/queries";
import { Card, useNow, usePageTitle } from "../parts/bits";
import { Empty, Loaded } from "../parts/states";
import { Table, type Column } from "../parts/table";
import { serverNow } from "../lib/clock";
import type { Agent } from "../lib/agents";
import { count, plural } from "../lib/format";
import { codeWord } from "../lib/words";
import { useStream } from "../state/live";
import { AGENT_COLUMNS } from "./agents/columns";
import { Alerts, Services } from "./overview-health";
import { LogCard } from "./overview-log";
import { NoRuns, RUN_COLUMNS } from "./runs";

const WINDOW = 60_000;
const STEP = 2_000;

interface Seen {
  at: number;
  code: string | null;
}

/** Packets of the last minute as they came over the stream. */
function useRecent(): { seen: readonly Seen[]; take: (entries: Schemas["FoldEntry"][]) => void } {
  const [seen, change] = useState<readonly Seen[]>([]);
  const take = useCallback((entries: Schemas["FoldEntry"][]) => {
    const now = serverNow();
    const fresh = entries.filter((entry) => entry.kind === "packet").map((entry) => ({ at: now, code: entry.refusal_code ?? null }));
    if (fresh.length > 0) change((old) => [...old.filter((one) => one.at > now - WINDOW), ...fresh].slice(-50_000));
  }, []);
  useEffect(() => {
    const timer = setInterval(() => change((old) => (old.length ? old.filter((one) => one.at > serverNow() - WINDOW) : old)), STEP);
    return () => clearInterval(timer);
  }, []);
  return { seen, take };
}

function Rate({ seen }: { seen: readonly Seen[] }) {
  const now = useNow(STEP);
  const steps = WINDOW / STEP;
  const bars = Array.from({ length: steps }, () => 0);
  for (const one of seen) {
    const place = steps - 1 - Math.floor((now - one.at) / STEP);
    if (place >= 0 && place < steps) bars[place]! += 1;
  }
  const most = Math.max(1, ...bars);
  const rate = seen.length / (WINDOW / 1000);
  return (
    <div>
      <svg viewBox={`0 0 ${steps * 8} 48`} className="chart" style={{ height: 56 }} preserveAspectRatio="none" role="img" aria-label={`${seen.length} packets in the last minute`}>
        {bars.map((value, index) => (
          <rect key={index} x={index * 8 + 1} width={6} rx={1} y={47 - (value / most) * 44} height={Math.max(1, (value / most) * 44)} fill={value ? "var(--accent)" : "var(--line)"} />
        ))}
      </svg>
      <p className="soft num">
        {seen.length === 0 ? "No packet in the last minute." : `${plural(seen.length, "packet")} in the last minute, ${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))} a second`}
      </p>
    </div>
  );
}

function RefusedNow({ seen }: { seen: readonly Seen[] }) {
  const counts = new Map<string, number>();
  for (const one of seen) if (one.code) counts.set(one.code, (counts.get(one.code) ?? 0) + 1);
  if (counts.size === 0) return <p className="soft">No refusal in the last minute.</p>;
  const most = Math.max(...counts.values());
  return (
    <ul className="bars">
      {[...counts].slice(0, 6).map(([code, number]) => (
        <li key={code}>
          <span title={code}>{codeWord(code)}</span>
          <span className="meter bad">
            <i style={{ width: `${(number / most) * 100}%` }} />
          </span>
          <span className="num">{number}</span>
        </li>
      ))}
    </ul>
  );
}

function Waiting() {
  const letters = useInfiniteQuery(dead);
  const unknown = useQuery(effects("UNKNOWN"));
  const lost = useQuery(effects("RESULT_LOST"));
  const questions = useQuery(approvals).data?.items.length ?? 0;
  return (
    <Loaded answer={letters} what="what waits" lines={3}>
      {(data) => {
        const number = data.pages.flatMap((page) => page.items).length;
        const open = (unknown.data?.items.length ?? 0) + (lost.data?.items.length ?? 0);
        if (number + open + questions === 0) return <p className="soft">Nothing waits for a person.</p>;
        return (
          <ul className="stack" style={{ gap: 6 }}>
            {questions > 0 && (
              <li>
                <Link to="/inbox">{plural(questions, "question")} to answer</Link>
              </li>
            )}
            {number > 0 && (
              <li>
                <Link to="/inbox" search={{ view: "dead" }}>{plural(number, "dead letter")}</Link>
              </li>
            )}
            {open > 0 && (
              <li>
                <Link to="/inbox" search={{ view: "effects" }}>{plural(open, "effect")} to settle</Link>
              </li>
            )}
          </ul>
        );
      }}
    </Loaded>
  );
}

const [NAME, ROLE, SWARM, STATE, SEEN] = AGENT_COLUMNS;
const AGENTS: Column<Agent>[] = [
  NAME!,
  ROLE!,
  SWARM!,
  STATE!,
  { name: "open", title: "Open", value: (row) => row.open_deliveries, width: "60px", isNumber: true, isExtra: true },
  SEEN!,
];

export function Overview() {
  usePageTitle("Overview");
  const navigate = useNavigate();
  const all = useInfiniteQuery(runs);
  const registry = useQuery(agents);
  const { seen, take } = useRecent();
  useStream({}, ["runs", "dead", "checkpoints", "agents"], take);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Overview</h1>
          <p className="under">What runs now, and what waits for you.</p>
        </div>
      </div>
      <Alerts />
      <div className="three">
        <Card title="Live">
          <Rate seen={seen} />
        </Card>
        <Card title="Refusals, last minute">
          <RefusedNow seen={seen} />
        </Card>
        <Card title="Waits for you">
          <Waiting />
        </Card>
      </div>
      <Card flush title="Latest runs" aside={<Link to="/runs">All runs</Link>}>
        <Loaded answer={all} what="runs">
          {(data) => {
            const rows = data.pages.flatMap((page) => page.items).slice(0, 10);
            return rows.length === 0 ? <NoRuns /> : <Table label="Latest runs" rows={rows} columns={RUN_COLUMNS} rowKey={(row) => row.run_id} onOpen={(row) => void navigate({ to: "/runs/$runId", params: { runId: row.run_id } })} />;
          }}
        </Loaded>
      </Card>
      <div className="wide-narrow">
        <Card flush title="Agents" aside={<Link to="/agents">All agents</Link>}>
          <Loaded answer={registry} what="agents">
            {(data) => (data.items.length === 0 ? <Empty title="No agents" command="apc agent add">Nobody is registered yet.</Empty> : <Table label="Agents" rows={data.items} columns={AGENTS} rowKey={(row) => row.agent_id} onOpen={(row) => void navigate({ to: "/agents", search: { agent: row.agent_id } })} height={320} />)}
          </Loaded>
        </Card>
        <div className="stack">
        <Services />
        <LogCard />
        </div>
      </div>
    </div>
  );
}
