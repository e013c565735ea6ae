"""The evidence that protocols are judged by, for the gate and for the queries, in the order of the verdicts.

It is read from the views of migrations/sql/0105_analytics.sql and from what the persister keeps of them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg
import orjson

from apc_contracts.protocol.effectiveness import DecayDecision, DecayKind, EvalTally, RunTask, read_decision
from apc_contracts.protocol.ledger import JudgedTransfer, ProtocolLedger

HEADS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards"
# EVALs matter in runs with transfers, and in those that may still have some.
SCORES = """
SELECT run_id, task_id, sum(evals)::bigint AS evals, sum(outcome_billionths)::bigint AS outcome,
       sum(drift_evals)::bigint AS drift_evals, sum(drift_billionths)::bigint AS drift
FROM apc_log.task_tallies
WHERE ($2 OR run_id IN (
    SELECT run_id FROM apc_log.task_tallies WHERE transfers > 0
    UNION SELECT run_id FROM apc_log.sessions WHERE is_open
))
AND shard <> ALL ($1::integer[])
GROUP BY run_id, task_id
HAVING sum(evals) > 0
"""
TRANSFERS = """
SELECT judged_at, shard, seq, protocol_id, parent_protocol_ids, run_id, task_id, refusal_code
FROM apc_log.transfer_rulings
"""
DECISIONS = "SELECT judged_at, shard, seq, decay::text AS decay FROM apc_log.decay_decisions"
EVALS = "SELECT run_id, task_id, outcome, drift_risk FROM apc_log.eval_metrics"
MEASURED = " AND outcome IS NOT NULL"
"""Open metrics of apc/1.1 say nothing of protocols."""
LATER = " WHERE shard = $1 AND seq > $2 AND seq <= $3"

_TALLIES = ("evals", "outcome_billionths", "drift_evals", "drift_billionths")
Positions = dict[int, int]
"""shard -> the last seq that was read."""


class EvidencePosition(NamedTuple):
    """Where an event stands among those of all shards. `rank` puts a recovery before the verdicts of its moment: it is
    logged after the TRANSFER that touched the protocol, but that one counts after it already."""

    at: datetime
    rank: int
    shard: int
    seq: int


async def read_scores(connection: Any, away: Collection[int] | None = None) -> dict[RunTask, EvalTally]:
    """Return the EVALs of every (run, task) with transfers, and of open runs.

    Args:
        connection: what takes statements.
        away: shards that are left out; given at all, EVALs of all runs: another database may have their transfers.
    """
    return {
        (row["run_id"], row["task_id"]): EvalTally(row["evals"], row["outcome"], row["drift_evals"], row["drift"])
        for row in await connection.fetch(SCORES, sorted(away or ()), away is not None)
    }


async def read_transfers(connection: Any, *, shard: int | None = None, after: int = 0, last: int = 0) -> list[Any]:
    """Read final verdicts on TRANSFERs as (Place, JudgedTransfer): all, or a shard's behind `after` up to `last`."""
    rows = await _rows(connection, TRANSFERS, shard, after, last)
    return [(EvidencePosition(row["judged_at"], 1, row["shard"], row["seq"]), _transfer(row)) for row in rows]


async def read_decisions(connection: Any, *, shard: int | None = None, after: int = 0, last: int = 0) -> list[Any]:
    """Yield blocks and recoveries as (Place, DecayDecision), like `read_transfers`."""
    decisions = []
    for row in await _rows(connection, DECISIONS, shard, after, last):
        decision = read_decision(orjson.loads(row["decay"]))
        rank = 0 if decision.kind is DecayKind.RECOVERED else 2
        decisions.append((EvidencePosition(row["judged_at"], rank, row["shard"], row["seq"]), decision))
    return decisions


def recall(ledger: ProtocolLedger, events: Iterable[tuple[EvidencePosition, JudgedTransfer | DecayDecision]]) -> None:
    """Feed a ledger in order; it decides nothing."""
    for _, event in sorted(events, key=lambda event: event[0]):
        if isinstance(event, JudgedTransfer):
            ledger.recall_transfer(event)
        else:
            ledger.apply(event)


@dataclass(slots=True)
class Evidence:
    """What databases of the log say of protocols, and how far each shard was read."""

    positions: Positions = field(default_factory=dict)
    scores: dict[RunTask, EvalTally] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)

    def feed(self, ledger: ProtocolLedger) -> Positions:
        """Feed an empty ledger all of it; return how far that was."""
        for task, scores in self.scores.items():
            ledger.recall_scores(task, scores)
        recall(ledger, self.events)
        return self.positions


async def read_ledger(pool: asyncpg.Pool, ledger: ProtocolLedger) -> Positions:
    """Feed an empty ledger everything that the log holds; how far that was."""
    evidence = Evidence()
    await read_evidence(pool, evidence)
    return evidence.feed(ledger)


async def read_evidence(pool: asyncpg.Pool, evidence: Evidence, away: Collection[int] | None = None) -> None:
    """Add what a database holds, as `read_scores` without the shards that are `away`: that is out of date."""
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        heads = {row["shard"]: row["last"] for row in await connection.fetch(HEADS)}
        here = {shard: last for shard, last in heads.items() if away is None or shard not in away}
        evidence.positions |= here
        for task, scores in (await read_scores(connection, away)).items():
            known = evidence.scores.setdefault(task, EvalTally())
            evidence.scores[task] = EvalTally(*(getattr(known, one) + getattr(scores, one) for one in _TALLIES))
        events = [*await read_transfers(connection), *await read_decisions(connection)]
        evidence.events += [(place, event) for place, event in events if place.shard in here]


async def read_shard(connection: Any, ledgers: Sequence[ProtocolLedger], shard: int, after: int, last: int) -> None:
    """Feed each of these ledgers what a shard judged behind `after`, up to `last`."""
    evals = await connection.fetch(EVALS + LATER + MEASURED, shard, after, last)
    transfers = await read_transfers(connection, shard=shard, after=after, last=last)
    decisions = await read_decisions(connection, shard=shard, after=after, last=last)
    # Nothing is awaited from here on: anyone who asks a ledger meanwhile finds all of it or nothing.
    for ledger in ledgers:
        for row in evals:
            ledger.recall_eval((row["run_id"], row["task_id"]), row["outcome"], row["drift_risk"])
        recall(ledger, [*transfers, *decisions])


async def _rows(connection: Any, query: str, shard: int | None, after: int, last: int) -> list[Any]:
    rows: list[Any]
    if shard is None:
        rows = await connection.fetch(query)
    else:
        rows = await connection.fetch(query + LATER, shard, after, last)
    return rows


def _transfer(row: Any) -> JudgedTransfer:
    task = (row["run_id"], row["task_id"])
    return JudgedTransfer(row["protocol_id"], tuple(row["parent_protocol_ids"]), task, row["refusal_code"])
