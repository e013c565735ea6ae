/** Effects whose outcome is unknown, and durable tasks that failed. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { about, effects, tasks } from "../../api/queries";
import { Ago, Badge, Foreign, PacketLink } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { EffectDialog } from "./settling";

type Effect = Schemas["EffectSummary"];
const EFFECTS: Column<Effect>[] = [
  { name: "key", title: "Effect", value: (row) => row.key, cell: (row) => <Foreign>{row.key}</Foreign>, width: "minmax(90px, 1fr)", isMain: true },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign>, width: "minmax(70px, 1fr)" },
  { name: "state", title: "State", value: (row) => row.state, cell: (row) => <Badge tone="warn">{row.state === "UNKNOWN" ? "may have happened" : "result lost"}</Badge>, width: "150px", isExtra: true },
  { name: "problem", title: "Problem", value: (row) => row.problem, cell: (row) => (row.problem ? <Foreign>{row.problem}</Foreign> : <span className="quiet">{row.state === "UNKNOWN" ? "no word since it began" : "–"}</span>), width: "minmax(90px, 2fr)", isExtra: true },
  { name: "claimed_at", title: "Begun", value: (row) => row.claimed_at, cell: (row) => <Ago at={row.claimed_at} />, width: "96px" },
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id, cell: (row) => <PacketLink id={row.packet_id} session={row.session_id} />, width: "84px", isExtra: true },
];

export function Effects() {
  const unknown = useQuery(effects("UNKNOWN"));
  const lost = useQuery(effects("RESULT_LOST"));
  const server = useQuery(about).data;
  const [asked, ask] = useState<Effect | null>(null);
  const settle: Column<Effect> = { name: "settle", title: "", value: () => "", cell: (row) => <button type="button" className="button small" onClick={() => ask(row)}>Settle…</button>, width: "84px" };
  return (
    <>
      {asked && <EffectDialog effect={asked} close={() => ask(null)} />}
      <Loaded answer={unknown} what="effects">
        {(found) => {
          const rows = [...found.items, ...(lost.data?.items ?? [])];
          if (rows.length === 0) return <Empty title="No effects to settle">An act outside the bus whose outcome is unknown appears here, to be settled.</Empty>;
          return (
            <>
              <div className="filters" style={{ justifyContent: "space-between" }}>
                <span className="soft">{server?.can_act ? "Find out at the other side whether it happened, then settle it." : (server?.why_not ?? "This server allows no acts.")}</span>
                <ExportMenu name="effects" rows={rows} columns={EFFECTS} />
              </div>
              <Table label="Effects" rows={rows} columns={server?.can_act ? [...EFFECTS, settle] : EFFECTS} rowKey={(row) => `${row.packet_id} ${row.agent_id} ${row.key}`} />
            </>
          );
        }}
      </Loaded>
    </>
  );
}

type Task = Schemas["TaskSummary"];
const TASKS: Column<Task>[] = [
  { name: "action", title: "Task", value: (row) => row.action, cell: (row) => <Foreign>{row.action}</Foreign> },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
  { name: "error", title: "Error", value: (row) => row.error, cell: (row) => <Foreign>{row.error ?? ""}</Foreign>, width: "minmax(0, 2fr)", isMain: true },
  { name: "attempt", title: "Attempt", value: (row) => row.attempt, width: "76px", isNumber: true, isExtra: true },
  { name: "finished_at", title: "Ended", value: (row) => row.finished_at, cell: (row) => (row.finished_at ? <Ago at={row.finished_at} /> : ""), width: "96px" },
];

export function Tasks() {
  const answer = useQuery(tasks("FAILED"));
  return (
    <Loaded answer={answer} what="tasks">
      {(found) => (found.items.length === 0 ? <Empty title="No failed tasks">A durable task that failed appears here.</Empty> : <Table label="Failed tasks" rows={found.items} columns={TASKS} rowKey={(row) => row.task_id} />)}
    </Loaded>
  );
}
