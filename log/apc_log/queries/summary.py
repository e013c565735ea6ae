"""How protocols do: `apc packet lineage-summary`, and `apc protocol list` with their blocks."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.effectiveness import DecayDecision, EvalTally, ProtocolTally, measure
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_log.heads import AnyConnection, Reach, released_in, released_until
from apc_log.protocol_evidence import read_ledger

# What the persister keeps (migrations/sql/0105_analytics.sql): over the whole log counts by protocol, of a run its
# verdicts. Of counted TRANSFERs alone (apc_contracts.protocol.effectiveness.is_counted).
RANKED_OF_ALL = """
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
RANKED = """
SELECT protocol_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case
FROM apc_log.transfer_rulings
WHERE (is_accepted OR refusal_code = ANY ($1::text[])) AND run_id = $2 AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-count(*), protocol_id) > (-$4, $5::text)
ORDER BY count(*) DESC, protocol_id
LIMIT $6
"""
# The tasks that a protocol was used in, with their EVALs. Of the whole log from the sums of runs at rest; what has
# changed since, and one run, from the counts (docs/decisions/0019-sums-of-runs-at-rest.md).
USED = """
WITH live AS (SELECT run_id FROM apc_log.unsummed_runs WHERE $3::text IS NULL UNION ALL SELECT $3 WHERE $3 IS NOT NULL),
used AS (
    SELECT DISTINCT protocol_id, run_id, task_id FROM apc_log.protocol_tasks
    WHERE protocol_id = ANY ($1::text[]) AND refusal_code = ANY ($2::text[])
      AND run_id = ANY (ARRAY(SELECT run_id FROM live))
), own AS (
    SELECT run_id, task_id, sum(evals) AS evals, sum(outcome_billionths) AS outcome, sum(drift_evals) AS drift_evals,
           sum(drift_billionths) AS drift
    FROM apc_log.task_tallies WHERE run_id = ANY (ARRAY(SELECT run_id FROM live)) GROUP BY run_id, task_id
), parts AS (
    SELECT protocol_id, 1 AS tasks, evals, outcome, drift_evals, drift
    FROM used JOIN own USING (run_id, task_id)
    UNION ALL
    SELECT protocol_id, tasks, evals, outcome_billionths, drift_evals, drift_billionths
    FROM apc_log.protocol_sums
    WHERE $3 IS NULL AND protocol_id = ANY ($1) AND refusal_codes && $2
    UNION ALL
    SELECT protocol_id, -1, -evals, -outcome_billionths, -drift_evals, -drift_billionths
    FROM apc_log.summed_uses
    WHERE $3 IS NULL AND run_id = ANY (ARRAY(SELECT run_id FROM live)) AND protocol_id = ANY ($1)
      AND refusal_codes && $2
)
SELECT protocol_id, sum(tasks)::bigint AS tasks, coalesce(sum(evals), 0)::bigint AS evals,
       coalesce(sum(outcome), 0)::bigint AS outcome_billionths, coalesce(sum(drift_evals), 0)::bigint AS drift_evals,
       coalesce(sum(drift), 0)::bigint AS drift_billionths
FROM parts GROUP BY protocol_id
"""
# The admitted EVALs whose lineage names one of the protocols, or a protocol that was made of it (`is_child`).
MEASURED = """
SELECT source.protocol_id, source.is_child, packet.run_id, packet.task_id, packet.session_id, packet.judged_at,
       packet.sender_swarm_id, read.metrics[1] AS outcome, read.metrics[2] AS drift
FROM (
    SELECT session_id, packet_id, protocol_id, false AS is_child FROM apc_log.packet_lineage
    WHERE transfer_mode = '' AND protocol_id = ANY ($1::text[])
    UNION ALL
    SELECT session_id, packet_id, parent, true FROM apc_log.packet_lineage
    CROSS JOIN LATERAL unnest(parent_protocol_ids) AS parent
    WHERE transfer_mode = '' AND parent_protocol_ids && $1 AND parent = ANY ($1)
) AS source
JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
CROSS JOIN LATERAL apc_log.metrics_in(packet.body_stored) AS read(metrics)
WHERE packet.packet_type = 'EVAL' AND read.metrics[1] IS NOT NULL AND ($2::text IS NULL OR packet.run_id = $2)
  AND (packet.verdict = 'accepted' OR EXISTS (
      SELECT FROM apc_log.packet_events AS hop
      WHERE hop.session_id = source.session_id AND hop.packet_id = source.packet_id AND hop.recipient = ''
        AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.to_state = 'ROUTED'))
"""
# A protocol's own EVALs beside all of the same task in all runs; a task in which nothing else was measured shows
# nothing.
LIFT = f"""
WITH measured AS ({MEASURED}), own AS (
    SELECT protocol_id, task_id, count(outcome) AS evals, sum(apc_log.billionths(outcome)) AS outcome,
           count(drift) AS drift_evals, sum(apc_log.billionths(drift)) AS drift
    FROM measured WHERE NOT is_child GROUP BY protocol_id, task_id
), usual AS (
    SELECT task_id, sum(evals) AS evals, sum(outcome_billionths) AS outcome, sum(drift_evals) AS drift_evals,
           sum(drift_billionths) AS drift
    FROM apc_log.task_tallies WHERE task_id = ANY (ARRAY(SELECT task_id FROM own)) GROUP BY task_id
)
SELECT protocol_id, coalesce(sum(own.evals) FILTER (WHERE usual.evals > own.evals), 0)::bigint AS evals,
       (sum(own.outcome - own.evals * usual.outcome / usual.evals) FILTER (WHERE usual.evals > own.evals)
        / sum(own.evals) FILTER (WHERE usual.evals > own.evals) / 1e9)::double precision AS outcome_lift,
       (sum(own.drift - own.drift_evals * usual.drift / nullif(usual.drift_evals, 0))
            FILTER (WHERE own.drift_evals > 0 AND usual.drift_evals > own.drift_evals)
        / sum(own.drift_evals) FILTER (WHERE own.drift_evals > 0 AND usual.drift_evals > own.drift_evals)
        / 1e9)::double precision AS drift_delta
FROM own JOIN usual USING (task_id) GROUP BY protocol_id
"""
# What the receiver of an accepted TRANSFER reached after it with the protocol, or with what it made of it, against its
# best outcome before.
IMPORTED = f"""
WITH measured AS ({MEASURED}), reached AS (
    SELECT transfer.protocol_id, transfer.receiver_score AS before, max(measured.outcome) AS after
    FROM apc_log.transfer_rulings AS transfer
    JOIN measured ON measured.protocol_id = transfer.protocol_id AND measured.session_id = transfer.session_id
        AND measured.sender_swarm_id = transfer.to_swarm AND measured.judged_at > transfer.judged_at
    WHERE transfer.is_accepted AND transfer.receiver_score IS NOT NULL AND transfer.protocol_id = ANY ($1)
      AND ($2 IS NULL OR transfer.run_id = $2)
    GROUP BY transfer.shard, transfer.seq, transfer.protocol_id, transfer.receiver_score
)
SELECT protocol_id, count(*) AS imports, avg(after - before) AS import_lift FROM reached GROUP BY protocol_id
"""
SEEN = """
SELECT protocol_id, count(DISTINCT run_id) AS runs_in_log,
       count(DISTINCT run_id) FILTER (WHERE $3::text IS NULL OR run_id = $3) AS runs,
       max(last_judged_at) FILTER (WHERE $3::text IS NULL OR run_id = $3) AS last_seen_at
FROM apc_log.protocol_runs
WHERE protocol_id = ANY ($1::text[]) AND refusal_code = ANY ($2::text[])
GROUP BY protocol_id
"""
# Sums over tens of thousands of tasks: in memory, by hash, compiled by nobody. The planner expects too few rows to hash
# them, sorts or spills them, and would compile what runs for a tenth of a second.
IN_MEMORY = """
SET LOCAL enable_mergejoin = off; SET LOCAL work_mem = '32MB';
SET LOCAL plan_cache_mode = force_custom_plan
"""
QUALITY_OF_ALL = """
SELECT transfer_mode, sum(transfers)::bigint AS transfers,
       coalesce(sum(transfers) FILTER (WHERE refusal_code = ''), 0)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case,
       (sum(sender_billionths) / nullif(sum(sender_scores), 0) / 1e9)::double precision AS average_sender_score,
       (sum(receiver_billionths) / nullif(sum(receiver_scores), 0) / 1e9)::double precision AS average_receiver_score
FROM apc_log.protocol_tallies
WHERE $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY sum(transfers) DESC, transfer_mode
"""
QUALITY = """
SELECT transfer_mode, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case,
       avg(sender_score) AS average_sender_score, avg(receiver_score) AS average_receiver_score
FROM apc_log.transfer_rulings
WHERE run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY count(*) DESC, transfer_mode
"""
# As view transfer_eval_correlation says it, each task read once for both kinds.
CORRELATION = """
WITH summed AS (
    SELECT sum(outcome_billionths::double precision) / nullif(sum(evals::double precision), 0) / 1e9 AS outcome,
           sum(drift_billionths::double precision) / nullif(sum(drift_evals::double precision), 0) / 1e9 AS drift,
           sum(transfers::double precision) AS transfers, sum(accepted::double precision) AS accepted,
           sum(cross_transfers::double precision) AS crossing, sum(cross_accepted::double precision) AS cross_accepted
    FROM apc_log.task_tallies WHERE $1::text IS NULL OR run_id = $1
    GROUP BY run_id, task_id
), figures AS (
    SELECT count(*) FILTER (WHERE transfers > crossing) AS tasks, sum(transfers - crossing) AS transfers,
           sum(accepted - cross_accepted) AS accepted,
           avg(outcome) FILTER (WHERE transfers > crossing) AS outcome,
           avg(drift) FILTER (WHERE transfers > crossing) AS drift,
           corr(outcome, accepted - cross_accepted) FILTER (WHERE transfers > crossing) AS outcome_correlation,
           corr(drift, accepted - cross_accepted) FILTER (WHERE transfers > crossing) AS drift_correlation,
           count(*) FILTER (WHERE crossing > 0) AS cross_tasks, sum(crossing) AS crossing,
           sum(cross_accepted) AS cross_accepted,
           avg(outcome) FILTER (WHERE crossing > 0) AS cross_outcome,
           avg(drift) FILTER (WHERE crossing > 0) AS cross_drift,
           corr(outcome, cross_accepted) FILTER (WHERE crossing > 0) AS cross_outcome_correlation,
           corr(drift, cross_accepted) FILTER (WHERE crossing > 0) AS cross_drift_correlation
    FROM summed
)
SELECT kind.cross_use_case, kind.tasks, kind.transfers::bigint AS transfers, kind.accepted::bigint AS accepted,
       kind.average_outcome, kind.average_drift_risk, kind.outcome_correlation, kind.drift_correlation
FROM figures CROSS JOIN LATERAL (VALUES
    (false, tasks, transfers, accepted, outcome, drift, outcome_correlation, drift_correlation),
    (true, cross_tasks, crossing, cross_accepted, cross_outcome, cross_drift, cross_outcome_correlation,
     cross_drift_correlation)
) AS kind(cross_use_case, tasks, transfers, accepted, average_outcome, average_drift_risk, outcome_correlation,
          drift_correlation)
WHERE kind.tasks > 0 ORDER BY kind.cross_use_case
"""
PROPAGATION = """
SELECT shard, seq, judged_at, run_id, task_id, session_id, packet_id, protocol_id, parent_protocol_ids, from_swarm,
       to_swarm, transfer_mode, cross_use_case, sender_score, receiver_score, refusal_code
FROM apc_log.transfer_rulings
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR protocol_id = $2)
  AND ($3::timestamptz IS NULL OR (judged_at, shard, seq) < ($3, $4::integer, $5::bigint))
ORDER BY judged_at DESC, shard DESC, seq DESC LIMIT $6
"""
REFUSALS_OF_ALL = """
SELECT refusal_code, sum(transfers)::bigint AS transfers FROM apc_log.protocol_tallies
WHERE refusal_code <> '' AND $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY sum(transfers) DESC, refusal_code
"""
REFUSALS = """
SELECT refusal_code, count(*) AS transfers FROM apc_log.transfer_rulings
WHERE NOT is_accepted AND run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY count(*) DESC, refusal_code
"""
ARBITRATIONS = """
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
DECAY = """
SELECT shard, seq, judged_at, run_id, session_id, packet_id, decay ->> 'kind' AS kind, decay ->> 'scope' AS scope,
       decay ->> 'protocol_id' AS protocol_id, (decay ->> 'blocked_until')::timestamptz AS blocked_until
FROM apc_log.decay_decisions
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR decay ->> 'protocol_id' = $2)
ORDER BY judged_at DESC, shard, seq DESC LIMIT $3
"""


# Lineage analytics: how protocols spread, by which verdicts, and how the tasks did that they were sent to.


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
    outcome_lift: float | None
    """Its own EVALs against all of their tasks; None where there is nothing to compare."""
    drift_delta: float | None
    """The same of drift_risk."""
    compared_evals: int
    """The EVALs behind outcome_lift."""
    import_lift: float | None
    """What receivers reached with it against their best before it arrived; None without such an EVAL."""
    imports: int
    """The accepted TRANSFERs behind import_lift."""


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
    archived_until: datetime | None = None
    """Arbitrations up to this time are in the archive, and not among these; None = none are."""


async def get_packet_lineage_summary(
    pool: asyncpg.Pool,
    contract: Contract,
    *,
    run_id: str | None = None,
    protocol_id: str | None = None,
    limit: int = 20,
    after: AfterProtocol | None = None,
) -> LineageSummary:
    """Return a summary of protocols for the log, a run or a protocol; at most `limit` rows of each kind."""
    figures = asyncio.gather(
        get_protocol_effectiveness(pool, contract, run_id=run_id, protocol_id=protocol_id, limit=limit, after=after),
        get_transfer_quality_rollup(pool, run_id=run_id, protocol_id=protocol_id),
        get_transfer_eval_correlation(pool, run_id=run_id),
        get_transfer_refusals(pool, run_id=run_id, protocol_id=protocol_id),
    )
    latest = asyncio.gather(
        list_protocol_propagation(pool, run_id=run_id, protocol_id=protocol_id, limit=limit),
        pool.fetch(ARBITRATIONS, run_id, limit),
        pool.fetch(DECAY, run_id, protocol_id, limit),
    )
    (found, modes, correlation, refusals), (propagation, arbitrations, decay) = await asyncio.gather(figures, latest)
    last = found[-1] if len(found) == limit else None
    gone = await released_in(pool, Reach() if run_id is None else Reach(runs=[run_id]))
    return LineageSummary(
        tuple(found),
        tuple(modes),
        tuple(correlation),
        refusals,
        tuple(propagation),
        tuple(dict(row) for row in arbitrations),
        tuple(dict(row) for row in decay),
        None if last is None else AfterProtocol(last.transfers, last.protocol_id),
        await released_until(pool) if gone else None,
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
    """Return protocols, those with the most transfers first, under the weights of this contract."""
    counted = list(contract.effectiveness.counted_refusals)
    ranked = RANKED_OF_ALL if run_id is None else RANKED
    rows = await pool.fetch(ranked, counted, run_id, protocol_id, *(after or (None, None)), limit)
    names = [row["protocol_id"] for row in rows]
    wanted = (names, ["", *counted], run_id)
    async with _summing(pool) as connection:
        used = {record["protocol_id"]: record for record in await connection.fetch(USED, *wanted)}
        seen = {record["protocol_id"]: record for record in await connection.fetch(SEEN, *wanted)}
        lift = {record["protocol_id"]: record for record in await connection.fetch(LIFT, names, run_id)}
        imported = {record["protocol_id"]: record for record in await connection.fetch(IMPORTED, names, run_id)}
    return [
        _effectiveness(row, contract, used[name], seen[name], lift.get(name), imported.get(name))
        for row, name in zip(rows, names, strict=True)
    ]


async def get_transfer_quality_rollup(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> list[TransferQuality]:
    """Return how TRANSFERs are distributed over the modes, and how each mode is accepted."""
    rows = await pool.fetch(QUALITY_OF_ALL if run_id is None else QUALITY, run_id, protocol_id)
    total = sum(row["transfers"] for row in rows)
    return [
        TransferQuality(**row, share=row["transfers"] / total, acceptance_rate=row["accepted"] / row["transfers"])
        for row in rows
    ]


async def get_transfer_eval_correlation(pool: asyncpg.Pool, *, run_id: str | None = None) -> list[TransferCorrelation]:
    """Return how outcome and drift of tasks correlate with their transfers, with and without crossing use cases."""
    async with _summing(pool) as connection:
        return [TransferCorrelation(**row) for row in await connection.fetch(CORRELATION, run_id)]


async def get_transfer_refusals(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> dict[str, int]:
    """Return how many TRANSFERs each refusal code met, the most frequent first."""
    rows = await pool.fetch(REFUSALS_OF_ALL if run_id is None else REFUSALS, run_id, protocol_id)
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
    rows = await pool.fetch(PROPAGATION, run_id, protocol_id, *(before or (None, None, None)), limit)
    return [PropagationRow(**row) for row in rows]


@asynccontextmanager
async def _summing(pool: asyncpg.Pool) -> AsyncIterator[AnyConnection]:
    """Lend a connection whose transaction has the memory to sum over the tasks of a long log."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(IN_MEMORY)
        yield connection


def _effectiveness(
    row: asyncpg.Record,
    contract: Contract,
    used: asyncpg.Record,
    seen: asyncpg.Record,
    lift: asyncpg.Record | None,
    imported: asyncpg.Record | None,
) -> ProtocolEffectiveness:
    scores = EvalTally(used["evals"], used["outcome_billionths"], used["drift_evals"], used["drift_billionths"])
    figures = measure(ProtocolTally(row["transfers"], row["accepted"], scores=scores), contract.effectiveness)
    return ProtocolEffectiveness(
        protocol_id=row["protocol_id"],
        transfers=figures.transfers,
        accepted=figures.accepted,
        runs=seen["runs"],
        runs_in_log=seen["runs_in_log"],
        last_seen_at=seen["last_seen_at"],
        tasks=used["tasks"],
        cross_use_case=row["cross_use_case"],
        acceptance_rate=figures.acceptance_rate,
        average_outcome=figures.average_outcome,
        average_drift_risk=figures.average_drift_risk,
        effectiveness=figures.effectiveness,
        outcome_lift=None if lift is None else lift["outcome_lift"],
        drift_delta=None if lift is None else lift["drift_delta"],
        compared_evals=0 if lift is None else lift["evals"],
        import_lift=None if imported is None else imported["import_lift"],
        imports=0 if imported is None else imported["imports"],
    )


# How protocols do and which are blocked: their figures beside the account that the orchestrator keeps.


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One protocol. Its figures count every TRANSFER of the log (or run), those before a recovery too.

    blocked_at and blocked_until are those of the block that covers it, which may be an ancestor's; None without one.
    A block that is over stands until a TRANSFER touches the protocol and its recovery is recorded.
    """

    figures: ProtocolEffectiveness
    roots: tuple[str, ...]
    blocked_at: datetime | None
    blocked_until: datetime | None
    blocked_by: str | None
    """`protocol:ID` or `cluster:ID`: whose figures led to the block."""


async def list_protocols(
    pool: asyncpg.Pool, contract: Contract, *, run_id: str | None = None, limit: int = 100
) -> list[ProtocolRow]:
    """Return the protocols with the most transfers first; with `run_id` those of a run, by the evidence of that run."""
    ledger = ProtocolLedger(contract.effectiveness)
    await read_ledger(pool, ledger)
    protocols = await get_protocol_effectiveness(pool, contract, run_id=run_id, limit=limit)
    blocks = _blocks_over([figures.protocol_id for figures in protocols], ledger)
    return [_row(figures, ledger, blocks.get(figures.protocol_id)) for figures in protocols]


def _blocks_over(names: Iterable[str], ledger: ProtocolLedger) -> dict[str, DecayDecision]:
    """Return the block over each of these that ends last."""
    block_of: dict[str, DecayDecision] = {}
    for block in sorted(ledger.blocks().values(), key=lambda block: block.blocked_until):
        covered = ledger.family(block.subject.protocol_id)
        block_of.update({name: block for name in names if name in covered})
    return block_of


def _row(figures: ProtocolEffectiveness, ledger: ProtocolLedger, block: DecayDecision | None) -> ProtocolRow:
    roots = tuple(sorted(ledger.roots(figures.protocol_id)))
    if block is None:
        return ProtocolRow(figures, roots, None, None, None)
    by = f"{block.subject.scope}:{block.subject.protocol_id}"
    return ProtocolRow(figures, roots, block.blocked_at, block.blocked_until, by)
