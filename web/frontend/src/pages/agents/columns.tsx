/** What every list of agents shows. */
import { linkOptions } from "@tanstack/react-router";
import { Ago, Badge, Foreign } from "../../parts/bits";
import type { Column } from "../../parts/table";
import { STATE_HINTS, STATE_TONES, stateOf, type Agent } from "../../lib/agents";

export const agentLink = (row: { agent_id: string }) => linkOptions({ to: "/agents/$agentId", params: { agentId: row.agent_id } });

export const AGENT_COLUMNS: Column<Agent>[] = [
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign>, width: "minmax(110px, 1.6fr)", isMain: true },
  { name: "role", title: "Role", value: (row) => row.role, cell: (row) => <Foreign>{row.role}</Foreign>, width: "minmax(70px, 1fr)" },
  { name: "swarm", title: "Swarm", value: (row) => row.swarm, cell: (row) => <Foreign>{row.swarm}</Foreign>, width: "minmax(70px, 1fr)", isExtra: true },
  { name: "state", title: "State", value: stateOf, cell: (row) => <Badge tone={STATE_TONES[stateOf(row)]} title={STATE_HINTS[stateOf(row)]}>{stateOf(row)}</Badge>, width: "84px" },
  { name: "last_seen", title: "Seen", value: (row) => row.last_seen, cell: (row) => (row.last_seen ? <Ago at={row.last_seen} /> : <span className="quiet">{row.kind === "person" ? "–" : "never"}</span>), width: "96px" },
];
