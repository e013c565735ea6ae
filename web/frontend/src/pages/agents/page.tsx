/** Every registered agent: alive or not, what waits for it, how much of its room and quota there is, and its rights. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { agentDays, agentsWithQueues } from "../../api/queries";
import { Badge, Card, Foreign, usePageTitle, Words } from "../../parts/bits";
import { TimeRangeChoice, useTimeRange } from "../../parts/range";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { isStuck, loadOf, stateOf, type Agent, type AgentState } from "../../lib/agents";
import { count, plural, sentence } from "../../lib/format";
import { useStream } from "../../state/live";
import { AGENT_COLUMNS, agentLink } from "./columns";
import { DayTable } from "./days";

const STATES: AgentState[] = ["alive", "silent", "revoked", "person"];

function Waiting({ row }: { row: Agent }) {
  if (row.kind === "person") return <span className="quiet">–</span>;
  if (row.waiting == null) return <span className="quiet">unknown</span>;
  return isStuck(row) ? <Badge tone="warn" title="No process reads its queues">{count(row.waiting)}</Badge> : <>{count(row.waiting)}</>;
}

function Open({ row }: { row: Agent }) {
  const { share, tone } = loadOf(row);
  if (row.kind === "person") return <span className="quiet">–</span>;
  return (
    <span className="row" style={{ gap: 8, flexWrap: "nowrap" }} title={`${count(row.open_deliveries)} of at most ${count(row.most_open)}`}>
      <span className={`meter ${tone}`} style={{ flex: 1, minWidth: 24 }}>
        <i style={{ width: `${share * 100}%` }} />
      </span>
      <span className="num">{count(row.open_deliveries)}</span>
    </span>
  );
}

const [NAME, ROLE, SWARM, STATE, SEEN] = AGENT_COLUMNS;
const COLUMNS: Column<Agent>[] = [
  NAME!,
  STATE!,
  ROLE!,
  SWARM!,
  { name: "host", title: <span title="The process that it shares with other agents">Host</span>, value: (row) => row.host ?? null, cell: (row) => (row.host ? <Foreign>{row.host}</Foreign> : <span className="quiet">–</span>), width: "minmax(60px, 1fr)", hiddenBelow: 1240 },
  { name: "waiting", title: <span title="Messages in its queues that no process has taken">Waiting</span>, value: (row) => row.waiting ?? null, cell: (row) => <Waiting row={row} />, width: "84px", isNumber: true },
  { name: "consumers", title: <span title="Processes that read its queues">Readers</span>, value: (row) => row.consumers ?? null, cell: (row) => (row.kind === "person" ? <span className="quiet">–</span> : row.consumers == null ? <span className="quiet">unknown</span> : count(row.consumers)), width: "84px", isNumber: true, hiddenBelow: 1240 },
  { name: "open_deliveries", title: <span title="Deliveries that have not ended, of those that it may have">Open</span>, value: (row) => row.open_deliveries, cell: (row) => <Open row={row} />, width: "110px", isExtra: true },
  { ...SEEN!, isExtra: true },
];

function Costs() {
  const range = useTimeRange("7d");
  const answer = useQuery(agentDays({ since: range.since ?? "1970-01-01T00:00:00Z", until: range.until }));
  return (
    <Card flush title="Cost and tokens, by agent and day" aside={<TimeRangeChoice otherwise="7d" />}>
      <Loaded answer={answer} what="the days" lines={5}>
        {(found) => (
          <>
            {!found.is_complete && <p className="notice neutral">These are the newest {count(found.items.length)} rows: choose a shorter time range for the others.</p>}
            <DayTable days={found.items} behind={found.behind} name="agents-by-day" />
          </>
        )}
      </Loaded>
    </Card>
  );
}

const isAmong = (agent: Agent, state: AgentState | undefined) => (state ? stateOf(agent) === state : !agent.is_revoked);

export function AgentsPage() {
  usePageTitle("Agents");
  const { state } = useSearch({ from: "/agents" });
  const navigate = useNavigate();
  const answer = useQuery(agentsWithQueues);
  useStream({}, ["agents"]);
  const show = (change: { state?: AgentState }) => void navigate({ to: "/agents", search: (old) => ({ ...old, ...change }), replace: true, resetScroll: false });
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Agents</h1>
          <p className="under">Who is registered, who is alive, what waits for them, and what they cost.</p>
        </div>
      </div>
      <Loaded answer={answer} what="agents" lines={8}>
        {(data) => {
          const rows = data.items.filter((row) => isAmong(row, state));
          const revoked = data.items.filter((row) => row.is_revoked).length;
          if (data.items.length === 0)
            return (
              <Card>
                <Empty title="No agents" command="apc agent add">Nobody is registered yet.</Empty>
              </Card>
            );
          return (
            <>
              {!data.is_complete && (
                <p className="notice neutral">
                  <span>{data.items.some((row) => row.waiting != null) ? "Some queues" : "Queues"} are unknown. <Words>{sentence(data.words ?? "nobody can say")}</Words></span>
                </p>
              )}
              <Card flush>
                <div className="filters" style={{ justifyContent: "space-between" }}>
                  <span className="row">
                    <select className="field" aria-label="State" value={state ?? ""} onChange={(event) => show({ state: (event.target.value || undefined) as AgentState | undefined })}>
                      <option value="">All but revoked</option>
                      {STATES.map((name) => (
                        <option key={name} value={name}>{sentence(name).slice(0, -1)}</option>
                      ))}
                    </select>
                    <span className="quiet num">{plural(rows.length, "registration")}</span>
                    {!state && revoked > 0 && <Link to="/agents" search={{ state: "revoked" }}>{count(revoked)} revoked</Link>}
                  </span>
                  <ExportMenu name="agents" rows={rows} columns={COLUMNS} />
                </div>
                {rows.length === 0 ? (
                  <Empty title="None of this state">Choose another state, or all.</Empty>
                ) : (
                  <Table label="Agents" rows={rows} columns={rows.some((row) => row.host) ? COLUMNS : COLUMNS.filter((one) => one.name !== "host")} rowKey={(row) => row.agent_id} link={agentLink} height={480} />
                )}
              </Card>
            </>
          );
        }}
      </Loaded>
      <Costs />
    </div>
  );
}
