/** What agents did and spent by day. */
import { linkOptions } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { Foreign } from "../../parts/bits";
import { Empty } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { compact, costText, count, plural } from "../../lib/format";

export type AgentDay = Schemas["AgentDay"];

const quiet = <span className="quiet">–</span>;

const AGENT: Column<AgentDay> = { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign>, width: "minmax(80px, 1.6fr)" };
const DAYS: Column<AgentDay>[] = [
  { name: "day", title: <span title="Days in UTC">Day, UTC</span>, value: (row) => row.day, cell: (row) => <span className="num">{row.day}</span>, width: "84px" },
  { name: "cost", title: <span title="As handlers reported it, in the unit of their reports; what sessions did not charge is among it">Cost</span>, value: (row) => row.cost, cell: (row) => (row.cost ? costText(row.cost) : quiet), width: "minmax(56px, 1fr)", isNumber: true },
  { name: "tokens", title: "Tokens", value: (row) => row.tokens, cell: (row) => (row.tokens ? <span title={count(row.tokens)}>{compact(row.tokens)}</span> : quiet), width: "minmax(52px, 1fr)", isNumber: true },
  { name: "packets", title: <span title="Sent, without HEARTBEATs">Sent</span>, value: (row) => row.packets, cell: (row) => compact(row.packets), width: "minmax(60px, 1fr)", isNumber: true, isExtra: true },
  { name: "refused", title: <span title="Of what it sent">Refused</span>, value: (row) => row.refused, cell: (row) => (row.refused ? <span style={{ color: "var(--bad)" }}>{count(row.refused)}</span> : quiet), width: "minmax(66px, 1fr)", isNumber: true, isExtra: true },
  { name: "handled", title: <span title="Attempts of its handlers that ended with an outcome">Handled</span>, value: (row) => row.handled, cell: (row) => (row.handled ? compact(row.handled) : quiet), width: "minmax(68px, 1fr)", isNumber: true, isExtra: true },
  { name: "failed", title: <span title="Attempts of its handlers that ended without an outcome">Failed</span>, value: (row) => row.failed, cell: (row) => (row.failed ? <span style={{ color: "var(--bad)" }}>{count(row.failed)}</span> : quiet), width: "minmax(60px, 1fr)", isNumber: true, isExtra: true },
];
const OF_ALL = [AGENT, ...DAYS];

export function behindWords(behind: number): string {
  return behind > 0 ? ` · ${plural(behind, "entry", "entries")} of the log not counted yet` : "";
}

/** Days of one agent, or of all. */
export function DayTable({ days, behind, isOfOne = false, name }: { days: readonly AgentDay[]; behind: number; isOfOne?: boolean; name: string }) {
  const columns = isOfOne ? DAYS : OF_ALL;
  if (days.length === 0) return <Empty title="Nothing in this time">Choose a longer time range.{behindWords(behind)}</Empty>;
  const cost = days.reduce((sum, row) => sum + row.cost, 0);
  const tokens = days.reduce((sum, row) => sum + row.tokens, 0);
  return (
    <>
      <div className="filters" style={{ justifyContent: "space-between" }}>
        <span className="quiet num">
          {cost || tokens ? `${costText(cost)} cost, ${compact(tokens)} tokens` : "No handler reported cost or tokens"}{behindWords(behind)}
        </span>
        <ExportMenu name={name} rows={days} columns={columns} />
      </div>
      <Table
        label={isOfOne ? "Days" : "Agents by day"}
        rows={days}
        columns={columns}
        rowKey={(row) => `${row.day} ${row.agent_id}`}
        link={isOfOne ? undefined : (row) => linkOptions({ to: "/agents/$agentId", params: { agentId: row.agent_id } })}
        height={420}
      />
    </>
  );
}
