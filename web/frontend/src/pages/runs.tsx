/** Every run by its name: team, one line of its input, tags; filtered and sorted over all of them. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { linkOptions } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { runs } from "../api/queries";
import { Ago, Badge, Card, Foreign, Id, StateBadge, useIsViewer, usePageTitle } from "../parts/bits";
import { FilterField, useFilters } from "../parts/filter";
import { TimeRangeChoice, useTimeRange } from "../parts/range";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, useSort, type Column } from "../parts/table";
import { compact, costText, count, duration, plural, shortId } from "../lib/format";
import { lengthOfRun, nameOf } from "../lib/runs";
import { useStream } from "../state/live";

type Run = Schemas["RunSummary"];

export function RunName({ run }: { run: Run }) {
  const { team, title } = nameOf(run);
  return (
    <span title={[team, title].filter(Boolean).join(": ")}>
      {team && <b><Foreign>{team}</Foreign></b>}
      {!team && title && <bdi className="mono soft" title={run.run_id}>{shortId(run.run_id)}</bdi>}
      {title && " "}
      {title && <Foreign>{title}</Foreign>}
      {!team && !title && <bdi className="mono" title={run.run_id}>{shortId(run.run_id)}</bdi>}
    </span>
  );
}

function Outcome({ run }: { run: Run }) {
  const state = run.outcome === "halted" ? "HALTED" : run.states[0]?.name;
  return (
    <span className="row" style={{ gap: 4, flexWrap: "nowrap" }}>
      {state ? <StateBadge state={state} /> : <Badge>{run.outcome}</Badge>}
      {run.sessions > 1 && <span className="quiet num" title={plural(run.sessions, "session")}>×{count(run.sessions)}</span>}
    </span>
  );
}

export const RUN_COLUMNS: Column<Run>[] = [
  { name: "team", title: "Run", value: (row) => [row.team, row.title].filter(Boolean).join(": ") || row.run_id, cell: (row) => <RunName run={row} />, width: "minmax(200px, 5fr)", isMain: true },
  { name: "tags", title: "Tags", value: (row) => row.tags.join(" "), cell: (row) => <span title={row.tags.join("\n")}><Foreign>{row.tags.join(" ")}</Foreign></span>, width: "minmax(90px, 2fr)", hiddenBelow: 620 },
  { name: "outcome", title: "Outcome", value: (row) => row.outcome, cell: (row) => <Outcome run={row} />, width: "minmax(116px, 1fr)" },
  { name: "duration", title: "Duration", value: lengthOfRun, cell: (row) => { const ms = lengthOfRun(row); return ms == null ? <span className="quiet">goes on</span> : duration(ms); }, width: "92px", isNumber: true },
  { name: "cost", title: "Cost", value: (row) => row.spent.cost ?? null, cell: (row) => (row.spent.cost ? costText(row.spent.cost) : <span className="quiet">–</span>), width: "76px", isNumber: true, isExtra: true },
  { name: "agents", title: "Agents", value: (row) => row.agents, width: "68px", isNumber: true, hiddenBelow: 1240 },
  { name: "packets", title: <span title="Packets that agents sent; the orchestrator's own are not counted">Sent</span>, value: (row) => row.spent.packets ?? 0, cell: (row) => compact(row.spent.packets ?? 0), width: "64px", isNumber: true, hiddenBelow: 1240 },
  { name: "started", title: "Started", value: (row) => row.opened_at, cell: (row) => <Ago at={row.opened_at} />, width: "96px" },
  { name: "run_id", title: "Id", value: (row) => row.run_id, cell: (row) => <Id id={row.run_id} />, width: "118px", hiddenBelow: 1240 },
];
/** The columns that say something of these runs. */
export const runColumns = (rows: readonly Run[]) => (rows.some((row) => row.tags.length > 0) ? RUN_COLUMNS : RUN_COLUMNS.filter((one) => one.name !== "tags"));
/** Columns by which the server sorts all runs. */
export const RUN_SORTS = ["team", "outcome", "duration", "cost", "agents", "packets", "started"] as const;
type RunSort = NonNullable<NonNullable<Parameters<typeof runs>[0]>["sort"]>;

export const runLink = (row: Run) => linkOptions({ to: "/runs/$runId", params: { runId: row.run_id } });


export function NoRuns() {
  return (
    <Empty title="The log is empty" command="apc automl run --ui">
      Every packet that agents send appears here, with its verdict and its proof. Start a run to see one:
    </Empty>
  );
}

function useRunSort(): RunSort {
  const sort = useSort();
  const name = RUN_SORTS.find((one) => one === sort?.name);
  return name ? `${sort?.isDown ? "-" : ""}${name}` : "-started";
}

const OUTCOMES = ["running", "closed", "halted"] as const;

export function Runs() {
  usePageTitle("Runs");
  const isViewer = useIsViewer();
  const [search, change] = useFilters();
  const { since, until, words } = useTimeRange();
  const outcome = OUTCOMES.find((one) => one === search.outcome);
  const sort = useRunSort();
  const { team, contract, agent, in_state: state } = search;
  const given = { team, contract, agent, state, outcome, since, until, sort, ...(isViewer ? {} : { text: search.q, tag: search.tag }) };
  const isNarrowed = [given.text, given.tag, team, contract, agent, state, outcome, since, until].some(Boolean);
  const answer = useInfiniteQuery(runs(given));
  useStream({}, ["runs"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Runs</h1>
          <p className="under">{isViewer ? "Every run in this log by team. Your role may not read inputs and tags." : "Every run in this log by team, input and tags."}</p>
        </div>
      </div>
      <Card flush>
        <div className="filters" role="search" aria-label="Filter runs">
          {!isViewer && <FilterField name="q" label="Words of a run" placeholder="Words, tags, end of an id" width={220} />}
          <FilterField name="team" label="Team" />
          <select className="field" aria-label="Outcome" value={outcome ?? ""} onChange={(event) => change({ outcome: event.target.value || undefined })}>
            <option value="">Any outcome</option>
            {OUTCOMES.map((one) => (
              <option key={one} value={one}>{one}</option>
            ))}
          </select>
          {!isViewer && <FilterField name="tag" label="Tag" placeholder="Tag: customer=7" width={150} />}
          <FilterField name="in_state" label="State" placeholder="State: WORKING" width={150} />
          <FilterField name="contract" label="Contract" width={110} />
          <TimeRangeChoice />
        </div>
        <Loaded answer={answer} what="runs" lines={8}>
          {(data) => {
            const rows = data.pages.flatMap((page) => page.items);
            const behind = data.pages[0]?.behind ?? 0;
            if (rows.length === 0) return isNarrowed ? <Empty title="No such run">No run that was started {words} fits these filters.</Empty> : <NoRuns />;
            return (
              <>
                <div className="filters" style={{ justifyContent: "space-between" }}>
                  <span className="quiet num">
                    {count(rows.length)}
                    {answer.hasNextPage ? " and more" : rows.length === 1 ? " run" : " runs"}
                    {behind > 0 && `; ${plural(behind, "entry", "entries")} of the log not yet in this list`}
                  </span>
                  <ExportMenu name="runs" rows={rows} columns={RUN_COLUMNS} />
                </div>
                <Table
                  label="Runs"
                  rows={rows}
                  columns={runColumns(rows)}
                  rowKey={(row) => row.run_id}
                  link={runLink}
                  serverSorts={RUN_SORTS}
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
