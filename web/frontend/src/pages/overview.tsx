/** What waits for a person, what goes wrong, what runs: the worst first. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { agents, approvals, dead, effects, rates, ratesNow, runs, topIssues } from "../api/queries";
import { Bars } from "../parts/bars";
import { Ago, Badge, Card, Foreign, usePageTitle } from "../parts/bits";
import { TimeRangeChoice, useTimeRange } from "../parts/range";
import { Empty, Loaded } from "../parts/states";
import { Table, type Column } from "../parts/table";
import { stateOf, type Agent } from "../lib/agents";
import { count, plural } from "../lib/format";
import { keyOf, KINDS, wordsOf } from "../lib/issues";
import { codeWord } from "../lib/words";
import { useStream } from "../state/live";
import { AGENT_COLUMNS, agentLink } from "./agents/columns";
import { Alerts, Services } from "./overview-health";
import { NoRuns, runColumns, runLink } from "./runs";

/** The last minute, counted in the log. */
function LastMinute() {
  const answer = useQuery(ratesNow);
  return (
    <Loaded answer={answer} what="the rate" lines={3}>
      {(found) => {
        const [from, until] = [Date.parse(found.since), Date.parse(found.until)];
        const rate = found.packets / Math.max(1, (until - from) / 1000);
        return (
          <>
            <Bars bars={barsOf(found)} from={from} until={until} step={found.step_seconds * 1000} what="packets" badWhat="refused" isBare />
            <p className="soft num">
              {found.packets === 0 ? "No packet in the last minute." : `${plural(found.packets, "packet")}, ${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))} a second`}
            </p>
            {found.refused > 0 && (
              <p className="num" style={{ color: "var(--bad)" }}>
                {count(found.refused)} refused: {found.refusals.slice(0, 3).map((one) => `${codeWord(one.name)} (${count(one.count)})`).join(", ")}
              </p>
            )}
          </>
        );
      }}
    </Loaded>
  );
}

const barsOf = (found: Schemas["Rates"]) => found.points.map((point) => ({ at: Date.parse(point.at), value: point.packets, bad: point.refused }));

function PacketsOverTime() {
  const range = useTimeRange("1d");
  const answer = useQuery(rates(range));
  return (
    <Card title="Packets" aside={<TimeRangeChoice otherwise="1d" />}>
      <Loaded answer={answer} what="packets over time" lines={3}>
        {(found) => {
          const [from, until] = [Date.parse(found.since), Date.parse(found.until)];
          return (
            <div className="stack" style={{ gap: 6 }}>
              {found.packets > 0 && <Bars bars={barsOf(found)} from={from} until={until} step={found.step_seconds * 1000} what="packets" badWhat="refused" />}
              <p className="soft num">
                {found.packets === 0 ? `No packet ${range.words}.` : `${plural(found.packets, "packet")} ${range.words}, ${count(found.refused)} refused.`}
                {found.behind > 0 && ` ${plural(found.behind, "entry", "entries")} of the log ${found.behind === 1 ? "is" : "are"} not counted yet.`}
              </p>
            </div>
          );
        }}
      </Loaded>
    </Card>
  );
}

function TopIssues() {
  const range = useTimeRange("1d");
  const answer = useQuery(topIssues(range));
  return (
    <Loaded answer={answer} what="issues" lines={3}>
      {(found) =>
        found.groups.length === 0 ? (
          <p className="soft">Nothing went wrong {range.words}.</p>
        ) : (
          <ul className="stack" style={{ gap: 8 }}>
            {found.groups.map((one, index) => (
              <li key={index} className="issue">
                <Badge tone={one.kind === "refusal" ? "warn" : "bad"}>{KINDS[one.kind].one}</Badge>
                <Link to="/issues" search={{ issue: keyOf(one) }}>
                  <Foreign>{wordsOf(keyOf(one)).plain}</Foreign>
                </Link>
                <span className="quiet num">
                  {count(one.count)}×, <Ago at={one.last_at} />
                </span>
              </li>
            ))}
          </ul>
        )
      }
    </Loaded>
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
/** Agents that this page has room for. */
const MOST_AGENTS = 12;
const ORDER = { alive: 1, silent: 2, person: 3, revoked: 4 };
/** Who is silent while something waits for it comes first, then who works. */
const placeOf = (agent: Agent) => (stateOf(agent) === "silent" && agent.open_deliveries > 0 ? 0 : ORDER[stateOf(agent)]);

export function Overview() {
  usePageTitle("Overview");
  const all = useInfiniteQuery(runs({ sort: "-started" }));
  const registry = useQuery(agents);
  useStream({}, ["runs", "dead", "approvals", "effects", "checkpoints", "agents", "issues"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Overview</h1>
          <p className="under">What needs you first, then what runs.</p>
        </div>
      </div>
      <Alerts />
      <div className="three">
        <Card title="Waits for you" aside={<Link to="/inbox">Inbox</Link>}>
          <Waiting />
        </Card>
        <Card title="Issues" aside={<Link to="/issues">All issues</Link>}>
          <TopIssues />
        </Card>
        <Card title="Last minute">
          <LastMinute />
        </Card>
      </div>
      <PacketsOverTime />
      <Card flush title="Latest runs" aside={<Link to="/runs">All runs</Link>}>
        <Loaded answer={all} what="runs">
          {(data) => {
            const rows = data.pages.flatMap((page) => page.items).slice(0, 10);
            return rows.length === 0 ? <NoRuns /> : <Table label="Latest runs" rows={rows} columns={runColumns(rows)} rowKey={(row) => row.run_id} link={runLink} serverSorts={NONE} />;
          }}
        </Loaded>
      </Card>
      <div className="wide-narrow">
        <Card flush title="Agents" aside={<Link to="/agents">All agents</Link>}>
          <Loaded answer={registry} what="agents">
            {(data) => {
              const rows = data.items.filter((one) => !one.is_revoked).sort((a, b) => placeOf(a) - placeOf(b)).slice(0, MOST_AGENTS);
              return rows.length === 0 ? <Empty title="No agents" command="apc agent add">Nobody is registered yet.</Empty> : <Table label="Agents" rows={rows} columns={AGENTS} rowKey={(row) => row.agent_id} link={agentLink} serverSorts={NONE} height={460} />;
            }}
          </Loaded>
        </Card>
        <Services />
      </div>
    </div>
  );
}

const NONE: readonly string[] = [];
