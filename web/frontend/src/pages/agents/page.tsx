/** Every registered agent: alive or not, what waits for it, how much of its room and quota there is, and its rights. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { agentsWithQueues } from "../../api/queries";
import { Badge, Card, Foreign, usePageTitle, Words } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { isStuck, loadOf, quotaWords, rateWords, stateOf, type Agent, type AgentState } from "../../lib/agents";
import { count, plural, sentence } from "../../lib/format";
import { useStream } from "../../state/live";
import { AgentCard } from "./card";
import { AGENT_COLUMNS } from "./columns";

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
  { name: "waiting", title: <span title="Messages in its queues that no process has taken">Waiting</span>, value: (row) => row.waiting ?? null, cell: (row) => <Waiting row={row} />, width: "84px", isNumber: true },
  { name: "consumers", title: <span title="Processes that read its queues">Readers</span>, value: (row) => row.consumers ?? null, cell: (row) => (row.kind === "person" ? <span className="quiet">–</span> : row.consumers == null ? <span className="quiet">unknown</span> : count(row.consumers)), width: "84px", isNumber: true, isExtra: true },
  { name: "open_deliveries", title: <span title="Deliveries that have not ended, of those that it may have">Open</span>, value: (row) => row.open_deliveries, cell: (row) => <Open row={row} />, width: "110px", isExtra: true },
  { name: "quota", title: <span title="Packets that the gate admits">Quota</span>, value: quotaWords, cell: (row) => <span className="num" title={quotaWords(row)}>{rateWords(row)}</span>, width: "110px", isExtra: true },
  { name: "rights", title: "Rights", value: (row) => row.rights.join(" "), cell: (row) => (row.rights.length ? row.rights.join(", ") : <span className="quiet">none</span>), width: "minmax(90px, 1fr)", isExtra: true },
  { ...SEEN!, isExtra: true },
];

export function AgentsPage() {
  usePageTitle("Agents");
  const { agent: selected, state } = useSearch({ from: "/agents" });
  const navigate = useNavigate();
  const answer = useQuery(agentsWithQueues);
  useStream({}, ["agents"]);
  const show = (change: { agent?: string; state?: AgentState }) => void navigate({ to: "/agents", search: (old) => ({ ...old, ...change }), replace: true, resetScroll: false });
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Agents</h1>
          <p className="under">Who is registered, who is alive, and what waits for them.</p>
        </div>
      </div>
      <Loaded answer={answer} what="agents" lines={8}>
        {(data) => {
          const rows = data.items.filter((row) => !state || stateOf(row) === state);
          const one = data.items.find((row) => row.agent_id === selected);
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
                      <option value="">All</option>
                      {STATES.map((name) => (
                        <option key={name} value={name}>{sentence(name).slice(0, -1)}</option>
                      ))}
                    </select>
                    <span className="quiet num">{plural(rows.length, "registration")}</span>
                  </span>
                  <ExportMenu name="agents" rows={rows} columns={COLUMNS} />
                </div>
                {rows.length === 0 ? (
                  <Empty title="None of this state">Choose another state, or all.</Empty>
                ) : (
                  <Table label="Agents" rows={rows} columns={COLUMNS} rowKey={(row) => row.agent_id} selected={selected ?? null} onSelect={(row) => show({ agent: row.agent_id })} height={560} />
                )}
              </Card>
              {one && <AgentCard agent={one} />}
              {selected && !one && <p className="notice neutral"><span>No agent is called <Foreign>{selected}</Foreign>.</span></p>}
            </>
          );
        }}
      </Loaded>
    </div>
  );
}
