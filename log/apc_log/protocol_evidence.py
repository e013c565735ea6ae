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
# One question for all shards: its plan takes longer than its rows. OFFSET 0: each range is looked up by itself.
NEWS = """
SELECT part.number, news.*
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS part(shard, after, last, number)
CROSS JOIN LATERAL ({query} WHERE shard = part.shard AND seq > part.after AND seq <= part.last OFFSET 0) AS news
"""
MEASURED = "WHERE outcome IS NOT NULL"
"""Open metrics of apc/1.1 say nothing of protocols."""

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


async def read_events(connection: Any, news: Sequence["News"] | None = None) -> list[list[Any]]:
    """Return final verdicts on TRANSFERs, blocks and recoveries as (Place, event): of all the log, or of each range."""
    each: list[list[Any]] = [[] for _ in news or (None,)]
    for number, row in await _rows(connection, TRANSFERS, news):
        each[number].append((EvidencePosition(row["judged_at"], 1, row["shard"], row["seq"]), _transfer(row)))
    for number, row in await _rows(connection, DECISIONS, news):
        decision = read_decision(orjson.loads(row["decay"]))
        rank = 0 if decision.kind is DecayKind.RECOVERED else 2
        each[number].append((EvidencePosition(row["judged_at"], rank, row["shard"], row["seq"]), decision))
    return each


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
        (events,) = await read_events(connection)
        evidence.events += [(place, event) for place, event in events if place.shard in here]


class News(NamedTuple):
    """Entries of a shard that ledgers have not been fed: those behind `after`, up to `last`."""

    shard: int
    after: int
    last: int
    ledgers: Sequence[ProtocolLedger]


async def read_shards(connection: Any, news: Sequence[News]) -> None:
    """Feed each of these ledgers what its shards judged in these ranges, one range after the other."""
    evals = await _rows(connection, EVALS, news, MEASURED)
    events = await read_events(connection, news)
    # Nothing is awaited from here on: anyone who asks a ledger meanwhile finds all of it or nothing.
    for number, one in enumerate(news):
        measured = [row for of, row in evals if of == number]
        for ledger in one.ledgers:
            for row in measured:
                ledger.recall_eval((row["run_id"], row["task_id"]), row["outcome"], row["drift_risk"])
            recall(ledger, events[number])


async def _rows(connection: Any, query: str, news: Sequence[News] | None, condition: str = "") -> list[tuple[int, Any]]:
    """Return the rows of all the log, or those in these ranges, each with the number of its range, from 0."""
    if news is None:
        return [(0, row) for row in await connection.fetch(query)]
    ranges = [list(column) for column in zip(*((one.shard, one.after, one.last) for one in news), strict=True)]
    rows = await connection.fetch(NEWS.format(query=query) + condition, *ranges)
    return [(row["number"] - 1, row) for row in rows]


def _transfer(row: Any) -> JudgedTransfer:
    task = (row["run_id"], row["task_id"])
    return JudgedTransfer(row["protocol_id"], tuple(row["parent_protocol_ids"]), task, row["refusal_code"])
