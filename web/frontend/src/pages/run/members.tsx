/** Transitions and members of a session. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../../api/client";
import { moves } from "../../api/queries";
import { Badge, Foreign, PacketLink, Time, ZoneTitle } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { plain, plural } from "../../lib/format";
import { stateWord } from "../../lib/words";

type Move = Schemas["SessionMove"];

const words = (move: Move) => (move.from_state === move.to_state ? "Stays" : `${stateWord(move.from_state)} → ${stateWord(move.to_state)}`);

const GENERATION: Column<Move> = { name: "generation", title: "Generation", value: (row) => row.generation, width: "88px", isNumber: true, isExtra: true };

const MOVES = (session: string): Column<Move>[] => [
  { name: "seq", title: "Entry", value: (row) => row.seq, width: "64px", isNumber: true },
  { name: "at", title: <ZoneTitle />, value: (row) => row.at, cell: (row) => <Time at={row.at} isBare />, width: "116px", isExtra: true },
  { name: "event", title: "Event", value: (row) => row.event, cell: (row) => <span title={row.event}>{plain(row.event)}</span> },
  { name: "transition", title: "Transition", value: (row) => `${row.from_state} ${row.to_state}`, cell: (row) => <span title={`${row.from_state} → ${row.to_state}`}>{words(row)}</span> },
  { name: "cause", title: "Cause", value: (row) => row.cause_packet_id, cell: (row) => <PacketLink id={row.cause_packet_id} session={session} />, width: "90px" },
];

export function Moves({ sessionId, until, isResearch }: { sessionId: string; until: number | undefined; isResearch: boolean }) {
  const answer = useQuery(moves(sessionId));
  const columns = isResearch ? [...MOVES(sessionId), GENERATION] : MOVES(sessionId);
  return (
    <Loaded answer={answer} what="transitions">
      {(page) => {
        const rows = page.items.filter((move) => until === undefined || move.seq <= until);
        if (rows.length === 0) return <Empty title="No transitions yet" />;
        return (
          <>
            <div className="filters" style={{ justifyContent: "flex-end" }}>
              <ExportMenu name={`transitions-${sessionId}`} rows={rows} columns={columns} />
            </div>
            <Table label="Transitions" rows={rows} columns={columns} rowKey={(row) => row.seq} />
          </>
        );
      }}
    </Loaded>
  );
}

const BARRIERS: Column<Schemas["SessionMember"]> = { name: "live", title: "Barriers", value: (row) => row.is_live, cell: (row) => <Badge tone={row.is_live ? "good" : "neutral"}>{row.is_live ? "waited for" : "not waited for"}</Badge> };

export function Members({ detail }: { detail: Schemas["SessionDetail"] }) {
  if (detail.members.length === 0) return <Empty title="No members" />;
  const columns: Column<Schemas["SessionMember"]>[] = [
    { name: "agent", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
    { name: "swarm", title: "Swarm", value: (row) => row.swarm, cell: (row) => (row.swarm ? <Foreign>{row.swarm}</Foreign> : <span className="quiet">none</span>) },
    ...(detail.coordinator === "research" ? [BARRIERS] : []),
  ];
  return (
    <>
      <div className="filters" style={{ justifyContent: "space-between" }}>
        <span className="quiet num">{plural(detail.members.length, "member")}</span>
        <ExportMenu name={`members-${detail.session_id}`} rows={detail.members} columns={columns} />
      </div>
      <Table label="Members" rows={detail.members} columns={columns} rowKey={(row) => row.agent_id} />
    </>
  );
}
