/** Effects whose outcome is unknown, and durable tasks that failed. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../../api/client";
import { effects, tasks } from "../../api/queries";
import { Ago, Badge, Foreign, PacketLink } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";

type Effect = Schemas["EffectSummary"];
const EFFECTS: Column<Effect>[] = [
  { name: "key", title: "Effect", value: (row) => row.key, cell: (row) => <Foreign>{row.key}</Foreign> },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
  { name: "state", title: "State", value: (row) => row.state, cell: (row) => <Badge tone="warn">{row.state === "UNKNOWN" ? "may have happened" : "result lost"}</Badge>, width: "150px" },
  { name: "problem", title: "Problem", value: (row) => row.problem, cell: (row) => <Foreign>{row.problem ?? ""}</Foreign>, isExtra: true },
  { name: "claimed_at", title: "Begun", value: (row) => row.claimed_at, cell: (row) => <Ago at={row.claimed_at} />, width: "96px" },
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id, cell: (row) => <PacketLink id={row.packet_id} session={row.session_id} />, width: "84px", isExtra: true },
];

export function Effects() {
  const unknown = useQuery(effects("UNKNOWN"));
  const lost = useQuery(effects("RESULT_LOST"));
  return (
    <Loaded answer={unknown} what="effects">
      {(found) => {
        const rows = [...found.items, ...(lost.data?.items ?? [])];
        if (rows.length === 0) return <Empty title="No effects to settle">An act outside the bus whose outcome is unknown appears here. Settle it with apc effect settle.</Empty>;
        return (
          <>
            <div className="filters" style={{ justifyContent: "space-between" }}>
              <span className="soft">Settle them on the command line: <code>apc effect settle</code></span>
              <ExportMenu name="effects" rows={rows} columns={EFFECTS} />
            </div>
            <Table label="Effects" rows={rows} columns={EFFECTS} rowKey={(row) => `${row.packet_id} ${row.agent_id} ${row.key}`} />
          </>
        );
      }}
    </Loaded>
  );
}

type Task = Schemas["TaskSummary"];
const TASKS: Column<Task>[] = [
  { name: "action", title: "Task", value: (row) => row.action, cell: (row) => <Foreign>{row.action}</Foreign> },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
  { name: "error", title: "Error", value: (row) => row.error, cell: (row) => <Foreign>{row.error ?? ""}</Foreign>, width: "minmax(0, 2fr)" },
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
