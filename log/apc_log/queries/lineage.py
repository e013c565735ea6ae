"""Lineage analytics: how protocols spread, by which verdicts, and how the tasks did that they were sent to."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.effectiveness import EvalTally, ProtocolTally, measure

# What the writer keeps (migrations/sql/0105_analytics.sql): over the whole log counts by protocol, of a run its
# verdicts. Of counted TRANSFERs alone (apc_contracts.protocol.effectiveness.is_counted).
_RANKED_OF_ALL = """
SELECT protocol_id, sum(transfers)::bigint AS transfers,
       coalesce(sum(transfers) FILTER (WHERE refusal_code = ''), 0)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case
FROM apc_log.protocol_tallies
WHERE (refusal_code = '' OR refusal_code = ANY ($1::text[])) AND $2::text IS NULL
  AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-sum(transfers), protocol_id) > (-$4, $5::text)
ORDER BY sum(transfers) DESC, protocol_id
LIMIT $6
"""
_RANKED = """
SELECT protocol_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case
FROM apc_log.transfer_rulings
WHERE (is_accepted OR refusal_code = ANY ($1::text[])) AND run_id = $2 AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-count(*), protocol_id) > (-$4, $5::text)
ORDER BY count(*) DESC, protocol_id
LIMIT $6
"""
# A protocol beside what its tasks show anyway: the baseline of a task is over all runs, those without a transfer are
# what the others are compared with; each task weighs as much as the protocol's own EVALs in it
# (docs/specification/contract.md section 6).
_COMPARED = """
WITH used AS (
    SELECT protocol_id, run_id, task_id, max(judged_at) AS judged_at FROM apc_log.transfer_rulings
    WHERE protocol_id = ANY ($1::text[]) AND (is_accepted OR refusal_code = ANY ($2::text[]))
      AND ($3::text IS NULL OR run_id = $3)
    GROUP BY protocol_id, run_id, task_id
), scores AS MATERIALIZED (
    SELECT run_id, task_id, sum(evals::double precision) AS evals,
           sum(outcome_billionths::double precision) / 1e9 AS outcome,
           sum(drift_evals::double precision) AS drift_evals, sum(drift_billionths::double precision) / 1e9 AS drift
    FROM apc_log.task_tallies
    WHERE $3::text IS NULL OR task_id IN (SELECT task_id FROM apc_log.transfer_rulings WHERE run_id = $3)
    GROUP BY run_id, task_id
), usual AS (
    SELECT task_id, sum(outcome) / nullif(sum(evals), 0) AS outcome, sum(drift) / nullif(sum(drift_evals), 0) AS drift
    FROM scores GROUP BY task_id
), own AS MATERIALIZED (
    SELECT run_id, task_id, scores.evals, scores.outcome, scores.drift_evals, scores.drift,
           scores.outcome - scores.evals * usual.outcome AS lift,
           scores.drift - scores.drift_evals * usual.drift AS delta
    FROM scores JOIN usual USING (task_id)
), by_run AS (
    SELECT used.protocol_id, used.run_id, max(judged_at) AS judged_at, count(*) AS tasks, sum(evals) AS evals,
           sum(outcome) AS outcome, sum(drift_evals) AS drift_evals, sum(drift) AS drift, sum(lift) AS lift,
           sum(delta) AS delta
    FROM used LEFT JOIN own USING (run_id, task_id)
    GROUP BY used.protocol_id, used.run_id
)
SELECT protocol_id, count(*) AS runs, max(judged_at) AS last_seen_at, sum(tasks)::bigint AS tasks,
       coalesce(sum(evals), 0)::bigint AS evals,
       coalesce(round(sum(outcome) * 1e9), 0)::bigint AS outcome_billionths,
       coalesce(sum(drift_evals), 0)::bigint AS drift_evals,
       coalesce(round(sum(drift) * 1e9), 0)::bigint AS drift_billionths,
       coalesce(sum(lift) / nullif(sum(evals), 0), 0) AS outcome_lift,
       coalesce(sum(delta) / nullif(sum(drift_evals), 0), 0) AS drift_delta
FROM by_run GROUP BY protocol_id
"""
# The planner expects too few rows to hash them, and sorts tens of thousands.
_HASH_JOINS = "SET LOCAL enable_mergejoin = off"
_RUNS_IN_LOG = """
SELECT protocol_id, count(DISTINCT run_id) AS runs FROM apc_log.transfer_rulings
WHERE protocol_id = ANY ($1::text[]) AND (is_accepted OR refusal_code = ANY ($2::text[]))
GROUP BY protocol_id
"""
_QUALITY_OF_ALL = """
SELECT transfer_mode, sum(transfers)::bigint AS transfers,
       coalesce(sum(transfers) FILTER (WHERE refusal_code = ''), 0)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case,
       (sum(sender_billionths) / nullif(sum(sender_scores), 0) / 1e9)::double precision AS average_sender_score,
       (sum(receiver_billionths) / nullif(sum(receiver_scores), 0) / 1e9)::double precision AS average_receiver_score
FROM apc_log.protocol_tallies
WHERE $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY sum(transfers) DESC, transfer_mode
"""
_QUALITY = """
SELECT transfer_mode, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case,
       avg(sender_score) AS average_sender_score, avg(receiver_score) AS average_receiver_score
FROM apc_log.transfer_rulings
WHERE run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY count(*) DESC, transfer_mode
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
FROM apc_log.transfer_rulings
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR protocol_id = $2)
  AND ($3::timestamptz IS NULL OR (judged_at, shard, seq) < ($3, $4::integer, $5::bigint))
ORDER BY judged_at DESC, shard DESC, seq DESC LIMIT $6
"""
_REFUSALS_OF_ALL = """
SELECT refusal_code, sum(transfers)::bigint AS transfers FROM apc_log.protocol_tallies
WHERE refusal_code <> '' AND $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY sum(transfers) DESC, refusal_code
"""
_REFUSALS = """
SELECT refusal_code, count(*) AS transfers FROM apc_log.transfer_rulings
WHERE NOT is_accepted AND run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY count(*) DESC, refusal_code
"""
_ARBITRATIONS = """
SELECT latest.*, content.packet #>> '{payload,arbitration_id}' AS arbitration_id,
       content.packet #>> '{payload,winner_candidate_id}' AS winner_candidate_id
FROM (
    SELECT shard, seq, judged_at, run_id, session_id, packet_id FROM apc_log.agent_packets
    WHERE packet_type = 'ARBITRATION' AND verdict = 'accepted' AND ($1::text IS NULL OR run_id = $1)
    ORDER BY judged_at DESC, shard, seq DESC LIMIT $2
) AS latest
JOIN apc_log.packets AS content USING (shard, seq)
ORDER BY latest.judged_at DESC, latest.shard, latest.seq DESC
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


class BeforeTransfer(NamedTuple):
    """The oldest TRANSFER of a page; the next one goes on before it."""

    judged_at: datetime
    shard: int
    seq: int


@dataclass(frozen=True, slots=True)
class ProtocolEffectiveness:
    """The figures of docs/specification/contract.md section 6 of one protocol."""

    protocol_id: str
    transfers: int
    accepted: int
    runs: int
    """Of the selection: 1 when one run was asked for."""
    runs_in_log: int
    last_seen_at: datetime
    """When its last counted TRANSFER of the selection was judged."""
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
    def cursor(self) -> "BeforeTransfer":
        """Where the next, older page begins."""
        return BeforeTransfer(self.judged_at, self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class LineageSummary:
    """What `apc packet lineage-summary` prints. `after` leads to the next protocols; None at the end."""

    protocols: tuple[ProtocolEffectiveness, ...]
    modes: tuple[TransferQuality, ...]
    correlation: tuple[TransferCorrelation, ...]
    refusals: Mapping[str, int]
    """Refusal code -> TRANSFERs, the most frequent first."""
    propagation: tuple[PropagationRow, ...]
    """The latest TRANSFERs, newest first; `list_protocol_propagation` has all."""
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
    figures = asyncio.gather(
        get_protocol_effectiveness(pool, contract, run_id=run_id, protocol_id=protocol_id, limit=limit, after=after),
        get_transfer_quality_rollup(pool, run_id=run_id, protocol_id=protocol_id),
        get_transfer_eval_correlation(pool, run_id=run_id),
        get_transfer_refusals(pool, run_id=run_id, protocol_id=protocol_id),
    )
    latest = asyncio.gather(
        list_protocol_propagation(pool, run_id=run_id, protocol_id=protocol_id, limit=limit),
        pool.fetch(_ARBITRATIONS, run_id, limit),
        pool.fetch(_DECAY, run_id, protocol_id, limit),
    )
    (found, modes, correlation, refusals), (propagation, arbitrations, decay) = await asyncio.gather(figures, latest)
    last = found[-1] if len(found) == limit else None
    return LineageSummary(
        tuple(found),
        tuple(modes),
        tuple(correlation),
        refusals,
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
    counted = list(contract.effectiveness.counted_refusals)
    ranked = _RANKED_OF_ALL if run_id is None else _RANKED
    rows = await pool.fetch(ranked, counted, run_id, protocol_id, *(after or (None, None)), limit)
    names = [row["protocol_id"] for row in rows]
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(_HASH_JOINS)
        compared = {row["protocol_id"]: row for row in await connection.fetch(_COMPARED, names, counted, run_id)}
        everywhere = {name: row["runs"] for name, row in compared.items()}
        if run_id is not None:
            everywhere = {name: runs for name, runs in await connection.fetch(_RUNS_IN_LOG, names, counted)}
    return [_effectiveness(row, compared[row["protocol_id"]], everywhere[row["protocol_id"]], contract) for row in rows]


async def get_transfer_quality_rollup(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> list[TransferQuality]:
    """Return how TRANSFERs are distributed over the modes, and how each mode is accepted."""
    rows = await pool.fetch(_QUALITY_OF_ALL if run_id is None else _QUALITY, run_id, protocol_id)
    total = sum(row["transfers"] for row in rows)
    return [
        TransferQuality(**row, share=row["transfers"] / total, acceptance_rate=row["accepted"] / row["transfers"])
        for row in rows
    ]


async def get_transfer_eval_correlation(pool: asyncpg.Pool, *, run_id: str | None = None) -> list[TransferCorrelation]:
    """Outcome and drift of tasks against what was transferred in them, with and without crossing use cases."""
    return [TransferCorrelation(**row) for row in await pool.fetch(_CORRELATION, run_id)]


async def get_transfer_refusals(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> dict[str, int]:
    """Return how many TRANSFERs each refusal code met, the most frequent first."""
    rows = await pool.fetch(_REFUSALS_OF_ALL if run_id is None else _REFUSALS, run_id, protocol_id)
    return {row["refusal_code"]: row["transfers"] for row in rows}


async def list_protocol_propagation(
    pool: asyncpg.Pool,
    *,
    run_id: str | None = None,
    protocol_id: str | None = None,
    limit: int = 100,
    before: BeforeTransfer | None = None,
) -> list[PropagationRow]:
    """Return TRANSFERs with their final verdicts, the newest verdict first; `before` is the cursor of the last page."""
    rows = await pool.fetch(_PROPAGATION, run_id, protocol_id, *(before or (None, None, None)), limit)
    return [PropagationRow(**row) for row in rows]


def _effectiveness(
    row: asyncpg.Record, compared: asyncpg.Record, runs_in_log: int, contract: Contract
) -> ProtocolEffectiveness:
    scores = EvalTally(
        compared["evals"], compared["outcome_billionths"], compared["drift_evals"], compared["drift_billionths"]
    )
    figures = measure(ProtocolTally(row["transfers"], row["accepted"], scores=scores), contract.effectiveness)
    return ProtocolEffectiveness(
        protocol_id=row["protocol_id"],
        transfers=figures.transfers,
        accepted=figures.accepted,
        runs=compared["runs"],
        runs_in_log=runs_in_log,
        last_seen_at=compared["last_seen_at"],
        tasks=compared["tasks"],
        cross_use_case=row["cross_use_case"],
        acceptance_rate=figures.acceptance_rate,
        average_outcome=figures.average_outcome,
        average_drift_risk=figures.average_drift_risk,
        effectiveness=figures.effectiveness,
        outcome_lift=compared["outcome_lift"],
        drift_delta=compared["drift_delta"],
    )
