/** Every run, the one that changed last first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { runs } from "../api/queries";
import { Ago, Card, Foreign, StateBadge, usePageTitle } from "../parts/bits";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, type Column } from "../parts/table";
import { compact, count, money } from "../lib/format";
import { useStream } from "../state/live";

type Run = Schemas["RunSummary"];

export const RUN_COLUMNS: Column<Run>[] = [
  { name: "run_id", title: "Run", value: (row) => row.run_id, cell: (row) => <span className="mono"><Foreign>{row.run_id}</Foreign></span>, width: "minmax(110px, 2fr)" },
  {
    name: "state",
    title: "State",
    value: (row) => row.states.map((state) => state.name).join(" "),
    cell: (row) => (
      <span className="row" style={{ gap: 6, flexWrap: "nowrap" }}>
        {row.states.slice(0, 2).map((state) => (
          <span key={state.name} className="row" style={{ gap: 3, flexWrap: "nowrap" }}>
            <StateBadge state={state.name} />
            {state.count > 1 && <span className="quiet num">×{state.count}</span>}
          </span>
        ))}
      </span>
    ),
    width: "minmax(92px, 1.2fr)",
  },
  { name: "sessions", title: "Sessions", value: (row) => row.sessions, width: "76px", isNumber: true, isExtra: true },
  { name: "packets", title: <span title="Packets that agents sent; the orchestrator's own are not counted">By agents</span>, value: (row) => row.spent.packets ?? 0, cell: (row) => compact(row.spent.packets ?? 0), width: "84px", isNumber: true, isExtra: true },
  { name: "tokens", title: "Tokens", value: (row) => row.spent.tokens ?? 0, cell: (row) => (row.spent.tokens ? compact(row.spent.tokens) : <span className="quiet">–</span>), width: "76px", isNumber: true, isExtra: true },
  { name: "cost_usd", title: "Cost", value: (row) => row.spent.cost_usd ?? 0, cell: (row) => (row.spent.cost_usd ? money(row.spent.cost_usd) : <span className="quiet">–</span>), width: "76px", isNumber: true, isExtra: true },
  { name: "open", title: <span title="Deliveries that have not ended">Open</span>, value: (row) => row.open_deliveries, width: "60px", isNumber: true, isExtra: true },
  { name: "updated_at", title: "Changed", value: (row) => row.updated_at, cell: (row) => <Ago at={row.updated_at} />, width: "96px" },
];

export function NoRuns() {
  return (
    <Empty title="The log is empty" command="apc automl run --ui">
      Every packet that agents send appears here, with its verdict and its proof. Start a run to see one:
    </Empty>
  );
}

export function Runs() {
  usePageTitle("Runs");
  const answer = useInfiniteQuery(runs);
  const navigate = useNavigate();
  useStream({}, ["runs"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Runs</h1>
          <p className="under">Everything in this log, the run that changed last first.</p>
        </div>
      </div>
      <Card flush>
        <Loaded answer={answer} what="runs" lines={8}>
          {(data) => {
            const rows = data.pages.flatMap((page) => page.items);
            if (rows.length === 0) return <NoRuns />;
            return (
              <>
                <div className="filters" style={{ justifyContent: "space-between" }}>
                  <span className="quiet num">
                    {count(rows.length)}
                    {answer.hasNextPage ? " and more" : rows.length === 1 ? " run" : " runs"}
                  </span>
                  <ExportMenu name="runs" rows={rows} columns={RUN_COLUMNS} />
                </div>
                <Table
                  label="Runs"
                  rows={rows}
                  columns={RUN_COLUMNS}
                  rowKey={(row) => row.run_id}
                  onOpen={(row) => void navigate({ to: "/runs/$runId", params: { runId: row.run_id } })}
                  height={640}
                  onEnd={answer.hasNextPage && !answer.isFetchingNextPage ? () => void answer.fetchNextPage() : undefined}
                />
              </>
            );
          }}
        </Loaded>
      </Card>
    </div>
  );
}
