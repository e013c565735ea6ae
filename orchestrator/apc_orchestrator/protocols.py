"""The account of all protocols in the gate's memory: read from the log when a shard is taken, then kept verdict by
verdict; what other shards judge follows from the log, beside the gate."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import asyncpg
import orjson
import structlog

from apc_contracts.contract import Contract
from apc_contracts.decay import DecayDecision, DecayKind, read_decision
from apc_contracts.effectiveness import BILLION, EvalTally
from apc_contracts.protocol_ledger import JudgedTransfer, ProtocolLedger

HEADS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards"
# EVALs matter in runs with transfers, and in those that may still have some.
SCORES = f"""
SELECT run_id, task_id, count(*) AS evals, sum(round(outcome * {BILLION})::bigint) AS outcome,
       count(drift_risk) AS drift_evals, coalesce(sum(round(drift_risk * {BILLION})::bigint), 0) AS drift
FROM apc_log.eval_metrics
WHERE run_id IN (SELECT run_id FROM apc_log.transfer_verdicts UNION SELECT run_id FROM apc_log.sessions WHERE is_open)
GROUP BY run_id, task_id
"""
TRANSFERS = """
SELECT judged_at, shard, seq, protocol_id, parent_protocol_ids, run_id, task_id, refusal_code
FROM apc_log.transfer_verdicts
"""
DECISIONS = "SELECT judged_at, shard, seq, decay::text AS decay FROM apc_log.decay_decisions"
EVALS = "SELECT run_id, task_id, outcome, drift_risk FROM apc_log.eval_metrics"
LATER = " WHERE shard = $1 AND seq > $2 AND seq <= $3"

_log = structlog.get_logger("apc_orchestrator")
_UNAVAILABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

Positions = dict[int, int]
"""shard -> the last seq that was read."""


async def load_protocols(pool: asyncpg.Pool, contract: Contract) -> tuple[ProtocolLedger, Positions]:
    """The account as the log of all shards left it."""
    ledger = ProtocolLedger(contract.effectiveness)
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        positions = {row["shard"]: row["last"] for row in await connection.fetch(HEADS)}
        for row in await connection.fetch(SCORES):
            scores = EvalTally(row["evals"], int(row["outcome"]), row["drift_evals"], int(row["drift"]))
            ledger.recall_scores((row["run_id"], row["task_id"]), scores)
        _recall(ledger, await connection.fetch(TRANSFERS), await connection.fetch(DECISIONS))
    return ledger, positions


class OtherShards:
    """Follows what the other shards judge. A block there holds here as soon as it was read."""

    def __init__(self, pool: asyncpg.Pool, shard: int, ledger: ProtocolLedger, positions: Positions) -> None:
        self._pool = pool
        self._shard = shard
        self._ledger = ledger
        self._positions = positions

    async def follow(self, pause_seconds: float) -> None:
        """Read what is new again and again; a database that is away only postpones it. Ends when cancelled."""
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await self.read()
            except _UNAVAILABLE as error:
                _log.warning("other_shards_unread", shard=self._shard, reason=str(error))

    async def read(self) -> None:
        """Read what is new. Raises OSError or asyncpg's errors when the database is away."""
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            for head in await connection.fetch(HEADS):
                shard, last = head["shard"], head["last"]
                first = self._positions.get(shard, 0)
                if shard == self._shard or last <= first:
                    continue
                evals = await connection.fetch(EVALS + LATER, shard, first, last)
                transfers = await connection.fetch(TRANSFERS + LATER, shard, first, last)
                decisions = await connection.fetch(DECISIONS + LATER, shard, first, last)
                for row in evals:
                    self._ledger.recall_eval((row["run_id"], row["task_id"]), row["outcome"], row["drift_risk"])
                _recall(self._ledger, transfers, decisions)
                self._positions[shard] = last


Event = tuple[tuple[datetime, int, int, int], JudgedTransfer | DecayDecision]


def _recall(ledger: ProtocolLedger, transfers: Iterable[Any], decisions: Iterable[Any]) -> None:
    events: list[Event] = [((row["judged_at"], 1, row["shard"], row["seq"]), _transfer(row)) for row in transfers]
    for row in decisions:
        decision = read_decision(orjson.loads(row["decay"]))
        # A recovery is logged after the TRANSFER that touched the protocol, but that one counts after it already.
        place = 0 if decision.kind is DecayKind.RECOVERED else 2
        events.append(((row["judged_at"], place, row["shard"], row["seq"]), decision))
    for _, event in sorted(events, key=lambda event: event[0]):
        if isinstance(event, JudgedTransfer):
            ledger.recall_transfer(event)
        else:
            ledger.apply(event)


def _transfer(row: Any) -> JudgedTransfer:
    task = (row["run_id"], row["task_id"])
    return JudgedTransfer(row["protocol_id"], tuple(row["parent_protocol_ids"]), task, row["refusal_code"])
