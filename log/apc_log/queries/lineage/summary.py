"""Lineage analytics: how protocols spread, by which verdicts, and how the tasks did that they were sent to."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.effectiveness import EvalTally, ProtocolTally, measure
from apc_log.connection import AnyConnection
from apc_log.queries.lineage import summary_statements as statements


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
    """Return a summary of protocols for the log, a run or a protocol; at most `limit` rows of each kind."""
    figures = asyncio.gather(
        get_protocol_effectiveness(pool, contract, run_id=run_id, protocol_id=protocol_id, limit=limit, after=after),
        get_transfer_quality_rollup(pool, run_id=run_id, protocol_id=protocol_id),
        get_transfer_eval_correlation(pool, run_id=run_id),
        get_transfer_refusals(pool, run_id=run_id, protocol_id=protocol_id),
    )
    latest = asyncio.gather(
        list_protocol_propagation(pool, run_id=run_id, protocol_id=protocol_id, limit=limit),
        pool.fetch(statements.ARBITRATIONS, run_id, limit),
        pool.fetch(statements.DECAY, run_id, protocol_id, limit),
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
    """Return protocols, those with the most transfers first, under the weights of this contract."""
    counted = list(contract.effectiveness.counted_refusals)
    ranked = statements.RANKED_OF_ALL if run_id is None else statements.RANKED
    rows = await pool.fetch(ranked, counted, run_id, protocol_id, *(after or (None, None)), limit)
    names = [row["protocol_id"] for row in rows]
    wanted = (names, ["", *counted], run_id)
    async with _summing(pool) as connection:
        compared = {found["protocol_id"]: found for found in await connection.fetch(statements.COMPARED, *wanted)}
        seen = {found["protocol_id"]: found for found in await connection.fetch(statements.SEEN, *wanted)}
    return [_effectiveness(row, compared[row["protocol_id"]], seen[row["protocol_id"]], contract) for row in rows]


async def get_transfer_quality_rollup(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> list[TransferQuality]:
    """Return how TRANSFERs are distributed over the modes, and how each mode is accepted."""
    rows = await pool.fetch(statements.QUALITY_OF_ALL if run_id is None else statements.QUALITY, run_id, protocol_id)
    total = sum(row["transfers"] for row in rows)
    return [
        TransferQuality(**row, share=row["transfers"] / total, acceptance_rate=row["accepted"] / row["transfers"])
        for row in rows
    ]


async def get_transfer_eval_correlation(pool: asyncpg.Pool, *, run_id: str | None = None) -> list[TransferCorrelation]:
    """Return how outcome and drift of tasks correlate with their transfers, with and without crossing use cases."""
    async with _summing(pool) as connection:
        return [TransferCorrelation(**row) for row in await connection.fetch(statements.CORRELATION, run_id)]


async def get_transfer_refusals(
    pool: asyncpg.Pool, *, run_id: str | None = None, protocol_id: str | None = None
) -> dict[str, int]:
    """Return how many TRANSFERs each refusal code met, the most frequent first."""
    rows = await pool.fetch(statements.REFUSALS_OF_ALL if run_id is None else statements.REFUSALS, run_id, protocol_id)
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
    rows = await pool.fetch(statements.PROPAGATION, run_id, protocol_id, *(before or (None, None, None)), limit)
    return [PropagationRow(**row) for row in rows]


@asynccontextmanager
async def _summing(pool: asyncpg.Pool) -> AsyncIterator[AnyConnection]:
    """Lend a connection whose transaction has the memory to sum over the tasks of a long log."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(statements.IN_MEMORY)
        yield connection


def _effectiveness(
    row: asyncpg.Record, compared: asyncpg.Record, seen: asyncpg.Record, contract: Contract
) -> ProtocolEffectiveness:
    scores = EvalTally(
        compared["evals"], compared["outcome_billionths"], compared["drift_evals"], compared["drift_billionths"]
    )
    figures = measure(ProtocolTally(row["transfers"], row["accepted"], scores=scores), contract.effectiveness)
    return ProtocolEffectiveness(
        protocol_id=row["protocol_id"],
        transfers=figures.transfers,
        accepted=figures.accepted,
        runs=seen["runs"],
        runs_in_log=seen["runs_in_log"],
        last_seen_at=seen["last_seen_at"],
        tasks=compared["tasks"],
        cross_use_case=row["cross_use_case"],
        acceptance_rate=figures.acceptance_rate,
        average_outcome=figures.average_outcome,
        average_drift_risk=figures.average_drift_risk,
        effectiveness=figures.effectiveness,
        outcome_lift=compared["outcome_lift"],
        drift_delta=compared["drift_delta"],
    )
