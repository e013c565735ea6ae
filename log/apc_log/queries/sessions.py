"""Sessions as the projection has them, with the packets that they hold; and a run from its log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_contracts.session.document import SessionDocument, decode_document
from apc_log.heads import Given, Reach, bounded, of_given, read_range, reads
from apc_log.queries.packets import Position

_COLUMNS = "session_id, open_deliveries, updated_at, is_terminal, document"
_LISTED = f"""
SELECT {_COLUMNS} FROM apc_log.sessions
WHERE ($1::text IS NULL OR run_id = $1) AND (NOT $2 OR NOT is_terminal)
ORDER BY updated_at DESC, session_id LIMIT $3
"""
_ONE = f"SELECT {_COLUMNS} FROM apc_log.sessions WHERE session_id = $1"
_HELD = """
SELECT packet_id, packet_type, sender_agent_id, judged_at FROM apc_log.agent_packets AS packet
WHERE session_id = $1 AND verdict = 'held' AND NOT EXISTS (
    SELECT FROM apc_log.packet_events AS hop
    WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
      AND (hop.from_state = 'SCHEMA_VALIDATED' OR hop.to_state = 'RETRACTED') /*within hop*/
) /*within packet*/
ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session after its last batch."""

    session_id: str
    open_deliveries: int
    updated_at: datetime
    is_terminal: bool
    document: SessionDocument


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A packet that was logged as held, and not judged since."""

    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    judged_at: datetime


async def list_sessions(
    pool: asyncpg.Pool, *, run_id: str | None = None, only_running: bool = False, limit: int = 100
) -> list[SessionRow]:
    """Return the sessions that changed last first. Raises msgspec.ValidationError on a document of another version."""
    return [_session(record) for record in await pool.fetch(_LISTED, run_id, only_running, limit)]


async def get_session(pool: asyncpg.Pool, session_id: str) -> SessionRow | None:
    """Return a session; None if the log has none of that name."""
    record = await pool.fetchrow(_ONE, session_id)
    return None if record is None else _session(record)


@reads(of_given)
async def list_held_packets(pool: asyncpg.Pool, session_id: str) -> list[HeldRow]:
    """Return what a session holds, until its barrier or until RESUME, in the order of the log."""
    bounds = await read_range(pool, [session_id])
    return [HeldRow(**record) for record in await pool.fetch(*bounded(_HELD, bounds, session_id))]


def _session(record: asyncpg.Record) -> SessionRow:
    fields = dict(record)
    return SessionRow(**fields | {"document": decode_document(fields["document"])})


# A run from its log: packets of some types, counts, barriers, transitions, and what earlier runs have measured.

_PACKETS = """
SELECT packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.run_phase, packet.session_id,
       packet.round, packet.sender_agent_id, packet.sender_swarm_id, packet.generation, packet.verdict,
       packet.refusal::text AS refusal, convert_from(packet.body_stored, 'UTF8') AS body
FROM apc_log.agent_packets AS packet
WHERE packet.run_id = $1 AND packet.packet_type = ANY($2::text[]) AND (packet.shard, packet.seq) > ($3::int, $4::bigint)
ORDER BY packet.shard, packet.seq
"""
_COUNTS = """
SELECT packet_type, verdict, count(*) AS packets
FROM apc_log.agent_packets WHERE run_id = $1 GROUP BY packet_type, verdict ORDER BY packet_type, verdict
"""
_TRANSFER_ENDS = """
SELECT DISTINCT ON (hop.packet_id) hop.packet_id, hop.to_state, hop.metadata::text AS metadata
FROM apc_log.agent_packets AS packet JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE packet.run_id = $1 AND packet.packet_type = 'TRANSFER' AND hop.recipient = ''
ORDER BY hop.packet_id, hop.seq DESC
"""
_MOVES = """
SELECT move.event, move.to_state, move.round, move.generation, move.facts::text AS facts
FROM apc_log.coordination_events AS move
WHERE move.session_id IN (SELECT DISTINCT session_id FROM apc_log.agent_packets WHERE run_id = $1)
ORDER BY move.session_id, move.step, move.seq
"""
_HAS_ENDED = "SELECT coalesce(bool_and(is_terminal), false) FROM apc_log.sessions WHERE run_id = $1"
_PAST_TRIALS = """
WITH profiles AS (
    SELECT DISTINCT ON (brief.run_id) brief.run_id, brief.shard, brief.seq, brief.judged_at,
           object ->> 'expression' AS profile
    FROM apc_log.agent_packets AS brief
    JOIN apc_log.packets AS content USING (shard, seq)
    CROSS JOIN LATERAL jsonb_array_elements(content.packet #> '{payload,objects}') AS object
    WHERE brief.packet_type = 'TASK_IR' AND brief.verdict = 'accepted' AND brief.sender_role = 'librarian'
      AND object ->> 'id' = 'profile' AND brief.run_id <> $1 AND ($3::text IS NULL OR brief.run_id = $3)
    ORDER BY brief.run_id, brief.shard, brief.seq
), newest AS (
    SELECT run_id, profile FROM profiles ORDER BY judged_at DESC, run_id LIMIT $2
), trials AS (
    SELECT newest.run_id, newest.profile, eval.session_id, eval.packet_id, content.packet,
           (content.packet #>> '{payload,metric_set,outcome}')::double precision AS outcome
    FROM newest
    JOIN apc_log.agent_packets AS eval USING (run_id)
    JOIN apc_log.packets AS content ON content.shard = eval.shard AND content.seq = eval.seq
    WHERE eval.packet_type = 'EVAL' AND eval.sender_role = 'builder' AND eval.verdict = 'accepted'
      AND eval.run_phase IN ('DISCOVERY', 'REFINEMENT', 'CONVERGENCE')
      AND EXISTS (
          SELECT FROM apc_log.packet_events AS hop
          WHERE hop.session_id = eval.session_id AND hop.packet_id = eval.packet_id
            AND 'verification_pass' = ANY (hop.events)
      )
)
SELECT run_id, profile, outcome, packet #>> '{symbolic_keys,0}' AS family,
       packet #>> '{proof_bundle,evidence_refs,2}' AS recipe_hash
FROM trials
WHERE packet #>> '{symbolic_keys,0}' IS NOT NULL AND EXISTS (
    SELECT FROM apc_log.agent_packets AS answer
    JOIN apc_log.packets AS said USING (shard, seq)
    WHERE answer.parent_packet_id = trials.packet_id AND answer.session_id = trials.session_id
      AND answer.sender_role = 'sentinel' AND answer.verdict = 'accepted'
      AND ((said.packet #>> '{payload,confidence_post}')::double precision >= 0.5
           OR abs((said.packet #>> '{payload,metric_set,outcome}')::double precision - trials.outcome) < 1e-6)
)
ORDER BY run_id, recipe_hash
"""

BEGINNING = Position(-1, 0)
"""Before every packet of every shard."""


@reads(of_given)
async def run_packets(
    pool: asyncpg.Pool, run_id: str, packet_types: Sequence[str], after: Position = BEGINNING
) -> Sequence[asyncpg.Record]:
    """Return the packets of these types behind a position, in the order of the log.

    Columns: `shard`, `seq`, `packet_id`, `packet_type`, `run_phase`, `session_id`, `round`, `sender_agent_id`,
    `sender_swarm_id`, `generation`, `verdict`; `refusal` and `body` as JSON texts.
    """
    return await pool.fetch(_PACKETS, run_id, packet_types, *after)


@reads(of_given)
async def count_run_packets(pool: asyncpg.Pool, run_id: str) -> dict[tuple[str, str], int]:
    """Return how many packets a run has, by packet type and verdict on arrival."""
    return {(row["packet_type"], row["verdict"]): row["packets"] for row in await pool.fetch(_COUNTS, run_id)}


async def run_transfer_ends(pool: asyncpg.Pool, run_id: str) -> dict[UUID, tuple[str, str | None]]:
    """Return the last hop of each TRANSFER as a whole: packet_id -> state and metadata as a JSON text.

    A held TRANSFER stays SCHEMA_VALIDATED until its barrier.
    """
    return {row["packet_id"]: (row["to_state"], row["metadata"]) for row in await pool.fetch(_TRANSFER_ENDS, run_id)}


@reads(of_given)
async def run_moves(pool: asyncpg.Pool, run_id: str) -> Sequence[asyncpg.Record]:
    """Return `event`, `to_state`, `round`, `generation` and `facts` (JSON text) of the transitions and barriers."""
    return await pool.fetch(_MOVES, run_id)


async def has_run_ended(pool: asyncpg.Pool, run_id: str) -> bool:
    """Return whether the run has sessions and all of them have ended."""
    return bool(await pool.fetchval(_HAS_ENDED, run_id))


def _of_trials(given: Given) -> Reach:
    return Reach() if given["only"] is None else Reach(runs=[given["only"]])


@reads(_of_trials)
async def past_trials(
    connection: asyncpg.Connection, but_not: str, most_runs: int, only: str | None = None
) -> Sequence[asyncpg.Record]:
    """Return the outcomes that earlier runs have measured, verification passed and the sentinel reproduced.

    Columns: `run_id`, `profile` (of the table, from the librarian's brief), `outcome`, `family`, `recipe_hash`.

    Args:
        but_not: a run that does not count.
        most_runs: look at this many of the newest runs whose brief has a profile.
        only: look at this run alone; None = at all of them.
    """
    return await connection.fetch(_PAST_TRIALS, but_not, most_runs, only)
