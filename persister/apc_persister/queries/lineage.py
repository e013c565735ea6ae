"""Lineage analytics: how protocols spread, by which verdicts, and how the tasks did that they were sent to."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from apc_contracts.contract import Contract
from apc_contracts.effectiveness import EvalTally, ProtocolTally, RunTask, compare, measure
from apc_persister.queries.rows import Position

BEGINNING = Position(-1, 0)

# Of counted TRANSFERs alone (apc_contracts.effectiveness.is_counted). `tasks` are [run_id, task_id] pairs.
_TALLIES = """
SELECT protocol_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(DISTINCT run_id) AS runs, count(*) FILTER (WHERE cross_use_case) AS cross_use_case,
       array_agg(DISTINCT ARRAY[run_id, task_id]) AS tasks
FROM apc_log.judged_transfers
WHERE (is_accepted OR refusal_code = ANY ($1::text[])) AND ($2::text IS NULL OR run_id = $2)
  AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-count(*), protocol_id) > (-$4, $5::text)
ORDER BY count(*) DESC, protocol_id
LIMIT $6
"""
# The baseline of a task is over all runs: those without a transfer are what the others are compared with.
_SCORES = """
SELECT run_id, task_id, evals, outcome_billionths, drift_evals, drift_billionths FROM apc_log.task_scores
WHERE task_id = ANY ($1::text[])
"""
_QUALITY = """
SELECT transfer_mode, sum(transfers)::bigint AS transfers, sum(accepted)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case,
       sum(average_sender_score * transfers) / sum(transfers) AS average_sender_score,
       sum(average_receiver_score * transfers) / sum(transfers) AS average_receiver_score
FROM apc_log.transfer_quality
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY transfers DESC, transfer_mode
"""
_CORRELATION = """
SELECT cross_use_case, count(*) AS tasks, sum(transfers)::bigint AS transfers, sum(accepted)::bigint AS accepted,
       avg(average_outcome) AS average_outcome, avg(average_drift_risk) AS average_drift_risk,
       corr(average_outcome, accepted) AS outcome_correlation, corr(average_drift_risk, accepted) AS drift_correlation
FROM apc_log.transfer_eval_correlation
WHERE $1::text IS NULL OR run_id = $1
GROUP BY cross_use_case ORDER BY cross_use_case
"""
_PROPAGATION = """
SELECT shard, seq, judged_at, run_id, task_id, session_id, packet_id, protocol_id, parent_protocol_ids, from_swarm,
       to_swarm, transfer_mode, cross_use_case, sender_score, receiver_score, refusal_code
FROM apc_log.judged_transfers
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR protocol_id = $2) AND (shard, seq) > ($3, $4)
ORDER BY shard, seq LIMIT $5
"""
_ARBITRATIONS = """
SELECT packet.shard, packet.seq, packet.judged_at, packet.run_id, packet.session_id, packet.packet_id,
       content.packet #>> '{payload,arbitration_id}' AS arbitration_id,
       content.packet #>> '{payload,winner_candidate_id}' AS winner_candidate_id
FROM apc_log.agent_packets AS packet JOIN apc_log.packets AS content USING (shard, seq)
WHERE packet.packet_type = 'ARBITRATION' AND packet.verdict = 'accepted' AND ($1::text IS NULL OR packet.run_id = $1)
ORDER BY packet.judged_at DESC, packet.shard, packet.seq DESC LIMIT $2
"""
_DECAY = """
SELECT shard, seq, judged_at, run_id, session_id, packet_id, decay ->> 'kind' AS kind, decay ->> 'scope' AS scope,
       decay ->> 'protocol_id' AS protocol_id, (decay ->> 'blocked_until')::timestamptz AS blocked_until
FROM apc_log.decay_decisions
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR decay ->> 'protocol_id' = $2)
ORDER BY judged_at DESC, shard, seq DESC LIMIT $3
"""


class AfterProtocol(NamedTuple):
    """The last protocol of a page; the next one goes on behind it."""

    transfers: int
    protocol_id: str


@dataclass(frozen=True, slots=True)
class ProtocolEffectiveness:
    """The figures of contract.md section 6 of one protocol."""

    protocol_id: str
    transfers: int
    accepted: int
    runs: int
    tasks: int
    cross_use_case: int
    acceptance_rate: float
    average_outcome: float
    average_drift_risk: float
    effectiveness: float
    outcome_lift: float
    drift_delta: float


@dataclass(frozen=True, slots=True)
class TransferQuality:
    """The TRANSFERs of one mode, whatever they were refused for."""

    transfer_mode: str
    transfers: int
    accepted: int
    cross_use_case: int
    average_sender_score: float | None
    average_receiver_score: float | None
    share: float
    """Of all TRANSFERs."""
    acceptance_rate: float


@dataclass(frozen=True, slots=True)
class TransferCorrelation:
    """Tasks with TRANSFERs of one kind. Averages are over tasks; correlations (Pearson) between the number of
    accepted TRANSFERs and the task's average, None where nothing varies."""

    cross_use_case: bool
    tasks: int
    transfers: int
    accepted: int
    average_outcome: float | None
    average_drift_risk: float | None
    outcome_correlation: float | None
    drift_correlation: float | None


@dataclass(frozen=True, slots=True)
class PropagationRow:
    """One TRANSFER with its final verdict; (shard, seq) is where that verdict stands."""

    shard: int
    seq: int
    judged_at: datetime
    run_id: str
    task_id: str
    session_id: str
    packet_id: UUID
    protocol_id: str
    parent_protocol_ids: list[str]
    from_swarm: str | None
    to_swarm: str | None
    transfer_mode: str
    cross_use_case: bool
    sender_score: float | None
    receiver_score: float | None
    refusal_code: str | None
    """None: accepted."""

    @property
    def position(self) -> Position:
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class LineageSummary:
    """What `apc packet lineage-summary` prints. `after` leads to the next protocols; None at the end."""

    protocols: tuple[ProtocolEffectiveness, ...]
    modes: tuple[TransferQuality, ...]
    correlation: tuple[TransferCorrelation, ...]
    propagation: tuple[PropagationRow, ...]
    """The first TRANSFERs; `list_protocol_propagation` has all."""
    arbitrations: tuple[Mapping[str, Any], ...]
    """The latest."""
    decay_decisions: tuple[Mapping[str, Any], ...]
    """The latest."""
    after: AfterProtocol | None


async def get_packet_lineage_summary(
    pool: asyncpg.Pool,
    contract: Contract,
    *,
    run_id: str | None = None,
    protocol_id: str | None = None,
    limit: int = 20,
    after: AfterProtocol | None = None,
) -> LineageSummary:
    """Everything about protocols at a glance, of the log, a run or a protocol; at most `limit` rows of each kind."""
    found, modes, correlation, propagation, arbitrations, decay = await asyncio.gather(
        get_protocol_effectiveness(pool, contract, run_id=run_id, protocol_id=protocol_id, limit=limit, after=after),
        get_transfer_quality_rollup(pool, run_id=run_id, protocol_id=protocol_id),
        get_transfer_eval_correlation(pool, run_id=run_id),
        list_protocol_propagation(pool, run_id=run_id, protocol_id=protocol_id, limit=limit),
        pool.fetch(_ARBITRATIONS, run_id, limit),
        pool.fetch(_DECAY, run_id, protocol_id, limit),
    )
    last = found[-1] if len(found) == limit else None
    return LineageSummary(
        tuple(found),
        tuple(modes),
        tuple(correlation),
        tuple(propagation),
        tuple(dict(row) for row in arbitrations),
        tuple(dict(row) for row in decay),
        None if last is None else AfterProtocol(last.transfers, last.protocol_id),
    )


async def get_protocol_effectiveness(
    pool: asyncpg.Pool,
    contract: Contract,
    *,
    run_id: str | None = None,
    protocol_id: str | None = None,
    limit: int = 100,
    after: AfterProtocol | None = None,
) -> list[ProtocolEffectiveness]:
    """Protocols with the most transfers first, under the weights of this contract."""
    rules = contract.effectiveness
    rows = await pool.fetch(
        _TALLIES, list(rules.counted_refusals), run_id, protocol_id, *(after or (None, None)), limit
    )
    tasks = {row["protocol_id"]: {(run, task) for run, task in row["tasks"]} for row in rows}
    scores = await _scores(pool, {task for pairs in tasks.values() for _, task in pairs})
    return [_effectiveness(row, tasks[row["protocol_id"]], scores, contract) for row in rows]


async def get_transfer_quality_rollup(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> list[TransferQuality]:
    """How TRANSFERs are distributed over the modes, and how each mode is accepted."""
    rows = await pool.fetch(_QUALITY, run_id, protocol_id)
    total = sum(row["transfers"] for row in rows)
    return [
        TransferQuality(**row, share=row["transfers"] / total, acceptance_rate=row["accepted"] / row["transfers"])
        for row in rows
    ]


async def get_transfer_eval_correlation(pool: asyncpg.Pool, *, run_id: str | None = None) -> list[TransferCorrelation]:
    """Outcome and drift of tasks against what was transferred in them, with and without crossing use cases."""
    return [TransferCorrelation(**row) for row in await pool.fetch(_CORRELATION, run_id)]


async def list_protocol_propagation(
    pool: asyncpg.Pool,
    *,
    run_id: str | None = None,
    protocol_id: str | None = None,
    limit: int = 100,
    after: Position | None = None,
) -> list[PropagationRow]:
    """TRANSFERs with their final verdicts, in the order of the verdicts, behind `after`."""
    rows = await pool.fetch(_PROPAGATION, run_id, protocol_id, *(after or BEGINNING), limit)
    return [PropagationRow(**row) for row in rows]


async def _scores(pool: asyncpg.Pool, task_ids: Iterable[str]) -> dict[RunTask, EvalTally]:
    rows = await pool.fetch(_SCORES, sorted(task_ids))
    return {
        (row["run_id"], row["task_id"]): EvalTally(
            row["evals"], row["outcome_billionths"], row["drift_evals"], row["drift_billionths"]
        )
        for row in rows
    }


def _effectiveness(
    row: asyncpg.Record, tasks: set[RunTask], scores: Mapping[RunTask, EvalTally], contract: Contract
) -> ProtocolEffectiveness:
    own = EvalTally()
    for task in tasks:
        own.add(scores.get(task, EvalTally()))
    tally = ProtocolTally(row["transfers"], row["accepted"], tasks, own)
    figures, lift = measure(tally, contract.effectiveness), compare(tasks, scores)
    return ProtocolEffectiveness(
        protocol_id=row["protocol_id"],
        transfers=figures.transfers,
        accepted=figures.accepted,
        runs=row["runs"],
        tasks=len(tasks),
        cross_use_case=row["cross_use_case"],
        acceptance_rate=figures.acceptance_rate,
        average_outcome=figures.average_outcome,
        average_drift_risk=figures.average_drift_risk,
        effectiveness=figures.effectiveness,
        outcome_lift=lift.outcome_lift,
        drift_delta=lift.drift_delta,
    )
