"""`apc arbitration list`: what the orchestrator weighed, who was selected, and where the candidates come from.

Source: docs/specification/contract.md sections 5, 10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Unpack
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.payloads.by_type import ArbitrationPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_log.body_encryption import is_sealed
from apc_log.heads import Reach, bounded, is_newest_page, of_given, read_range, reads
from apc_log.queries.packets import FILTERS, ScopeFilters, narrowed

SELECTED = "selected:"
"""Prefix of the keys of `scoring` in an arbitration of TRANSFERs; the value is the rank, from 1."""

_ARBITRATIONS = f"""
SELECT packet.judged_at, packet.shard, packet.seq, packet.packet_id, packet.session_id, packet.run_id, packet.task_id,
       packet.round, packet.generation, packet.step, packet.body_stored
FROM apc_log.agent_packets AS packet
WHERE packet.packet_type = '{PacketType.ARBITRATION}' AND packet.sender_agent_id = '{ORCHESTRATOR}'
  AND packet.verdict = 'accepted' AND {{}}
ORDER BY packet.judged_at DESC, packet.shard DESC, packet.seq DESC LIMIT {{}}
"""


class ArbitrationFilters(ScopeFilters, total=False):
    """Which arbitrations are looked at; None = any."""

    since: datetime | None
    """Judged at this time or later."""
    until: datetime | None
    """Judged before this time."""


_FILTERS = {name: FILTERS[name] for name in ScopeFilters.__annotations__} | {
    "since": "packet.judged_at >= {}",
    "until": "packet.judged_at < {}",
}


@dataclass(frozen=True, slots=True)
class ArbitrationCandidate:
    """One of those weighed: a TRANSFER or a swarm's EVAL, the candidate `none`, or the trivial baseline."""

    candidate_id: str
    packet_ids: tuple[UUID, ...]
    total_score: float
    score_components: Mapping[str, float]
    refused_with: tuple[str, ...]
    """risk_flags: the refusal codes of a TRANSFER that did not go through."""
    rank: int | None
    """Its place, from 1, among the TRANSFERs that went through or among the swarms' candidates; None for the others."""


@dataclass(frozen=True, slots=True)
class ArbitrationRow:
    """A live arbitration. `subject`: TRANSFERs at a barrier, or the candidates for EXECUTION.

    `selected` are the packets that go on: every TRANSFER that went through, best first, or the winner's EVAL.
    """

    judged_at: datetime
    shard: int
    seq: int
    packet_id: UUID
    session_id: str
    run_id: str
    task_id: str
    round: int
    generation: int
    step: int
    arbitration_id: str
    subject: Literal["transfers", "candidates"]
    winner_candidate_id: str
    selected: tuple[UUID, ...]
    candidates: tuple[ArbitrationCandidate, ...]


async def list_arbitrations(
    pool: asyncpg.Pool,
    *,
    before: tuple[datetime, int, int] | None = None,
    limit: int = 100,
    **filters: Unpack[ArbitrationFilters],
) -> list[ArbitrationRow]:
    """Return the newest first, behind `before` (judged_at, shard, seq).

    Those whose bodies are encrypted or erased are left out, so that fewer than `limit` may come.
    """
    rows = await page_of_arbitrations(pool, before=before, limit=limit, **filters)
    return [row for row in rows if isinstance(row, ArbitrationRow)]


@reads(of_given, enough=is_newest_page)
async def page_of_arbitrations(
    pool: asyncpg.Pool,
    *,
    before: tuple[datetime, int, int] | None = None,
    limit: int = 100,
    **filters: Unpack[ArbitrationFilters],
) -> list[ArbitrationRow | tuple[datetime, int, int]]:
    """Return the newest first; of those that cannot be read, only judged_at, shard and seq."""
    clauses, values = narrowed(filters, _FILTERS)
    if before is not None:
        count = len(values)
        clauses.append(f"(packet.judged_at, packet.shard, packet.seq) < (${count + 1}, ${count + 2}, ${count + 3})")
        values += before
    statement = _ARBITRATIONS.format(" AND ".join(clauses) or "true", f"${len(values) + 1}")
    return [_row(record) for record in await pool.fetch(statement, *values, limit)]


def _row(record: asyncpg.Record) -> ArbitrationRow | tuple[datetime, int, int]:
    body = record["body_stored"]
    if not body or is_sealed(body):
        return record["judged_at"], record["shard"], record["seq"]
    payload = ArbitrationPayload.model_validate_json(orjson.dumps(orjson.loads(body)["payload"]))
    is_of_transfers = payload.arbitration_id.startswith("transfers-")
    ranks = {name.removeprefix(SELECTED): int(rank) for name, rank in payload.scoring.items()}
    candidates = tuple(_candidate(row, ranks) for row in payload.candidates)
    return ArbitrationRow(
        **{name: record[name] for name in record.keys() if name != "body_stored"},  # a Record is no dict
        arbitration_id=payload.arbitration_id,
        subject="transfers" if is_of_transfers else "candidates",
        winner_candidate_id=payload.winner_candidate_id,
        selected=_selected(candidates, None if is_of_transfers else payload.winner_candidate_id),
        candidates=candidates,
    )


def _candidate(row: Any, ranks: Mapping[str, int]) -> ArbitrationCandidate:
    return ArbitrationCandidate(
        candidate_id=row.candidate_id,
        packet_ids=row.packet_ref_ids,
        total_score=row.total_score,
        score_components=dict(row.score_components),
        refused_with=row.risk_flags or (),
        rank=ranks.get(row.candidate_id),
    )


def _selected(candidates: tuple[ArbitrationCandidate, ...], winner: str | None) -> tuple[UUID, ...]:
    """Return the packets of the winner, or without one those of every ranked candidate."""
    ranked = sorted((one for one in candidates if one.rank is not None), key=lambda one: one.rank or 0)
    going_on = [one for one in ranked if winner is None or one.candidate_id == winner]
    return tuple(packet_id for one in going_on for packet_id in one.packet_ids)


_ORIGINS = """
SELECT wanted.packet_id, packet.sender_swarm_id, block.protocol_id
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_ids AS ids ON ids.session_id = wanted.session_id AND ids.packet_id = wanted.packet_id
  /*within ids*/
JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq /*within packet*/
LEFT JOIN apc_log.packet_lineage AS block
  ON block.session_id = wanted.session_id AND block.packet_id = wanted.packet_id
  AND block.shard = ids.shard /*within block*/
"""


@dataclass(frozen=True, slots=True)
class CandidateOrigin:
    """Where a candidate comes from."""

    swarm: str
    protocol_id: str | None


@reads(lambda given: Reach(sessions={session for session, _ in given["wanted"]}))
async def candidate_origins(pool: asyncpg.Pool, wanted: Sequence[tuple[str, UUID]]) -> dict[UUID, CandidateOrigin]:
    """Return the origin of each packet, given as (session_id, packet_id); unknown ones are left out."""
    sessions = [session for session, _ in wanted]
    bounds = await read_range(pool, sessions)
    rows = await pool.fetch(*bounded(_ORIGINS, bounds, sessions, [packet for _, packet in wanted]))
    return {row["packet_id"]: CandidateOrigin(row["sender_swarm_id"], row["protocol_id"]) for row in rows}
