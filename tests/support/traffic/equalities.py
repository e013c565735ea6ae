"""The equalities S1 to S6 of a drained system, and the gap-free numbers of its log.

Counters as in the Jepsen tests of RabbitMQ, all sets of packet ids: A accepted by the sender's bus (confirmed), U of
unknown outcome, L rows in the log, D handled, E expired, X dead-lettered. S8 (all queues empty) is checked on the
broker.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import asyncpg

from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT

PACKETS = "SELECT packet_id, sender_agent_id, verdict, recipients FROM apc_log.agent_packets"
BEGINNINGS = """
SELECT packet_id, count(*) AS verdicts FROM apc_log.packet_events
WHERE recipient = '' AND from_state = 'DRAFT' GROUP BY packet_id
"""
ENDS = """
SELECT packet_id, recipient, state FROM apc_log.packet_recipient_state
WHERE recipient <> '' AND recipient <> ALL($1::text[])
"""
NUMBERS = """
SELECT shard, count(*) AS entries, count(DISTINCT seq) AS numbers, min(seq) AS first, max(seq) AS last FROM (
    SELECT shard, seq FROM apc_log.agent_packets UNION ALL SELECT shard, seq FROM apc_log.packet_events
    UNION ALL SELECT shard, seq FROM apc_log.packet_lineage UNION ALL SELECT shard, seq FROM apc_log.coordination_events
    UNION ALL SELECT shard, seq FROM apc_log.packet_conflicts UNION ALL SELECT shard, seq FROM apc_log.registry_events
    UNION ALL SELECT shard, seq FROM apc_log.log_events
) AS log GROUP BY shard
"""
OPEN = "SELECT coalesce(sum(open_deliveries), 0) FROM apc_log.sessions"
IN_THE_GATE = [ORCHESTRATOR, SUBSTRATE_RECIPIENT]

Pair = tuple[UUID, str]
"""A packet and one recipient."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The senders' record."""

    confirmed: set[UUID] = field(default_factory=set)
    unknown: set[UUID] = field(default_factory=set)


class Handled(Protocol):
    """A recipient, and how often its handler ran for each packet."""

    @property
    def agent(self) -> str: ...

    @property
    def effects(self) -> Counter[UUID]: ...


async def violated_equalities(pool: asyncpg.Pool, sent: Sent, workers: Iterable[Handled]) -> list[str]:
    """Return a line for each equality that does not hold; empty when all do."""
    workers = list(workers)
    rows = await pool.fetch(PACKETS)
    logged = [row["packet_id"] for row in rows if row["sender_agent_id"] != ORCHESTRATOR]
    found = [
        _holds("S1 confirmed and not in the log", sent.confirmed - set(logged)),
        _holds("S2 in the log and never sent", set(logged) - sent.confirmed - sent.unknown),
        _holds("S3 more than one row", [one for one, rows_of in Counter(logged).items() if rows_of > 1]),
        _holds("S4 not exactly one verdict", await _verdicts(pool, rows)),
        *await _ends(pool, rows, workers),
        *(
            _holds(f"S6 more than one effect at {worker.agent}", [one for one, n in worker.effects.items() if n != 1])
            for worker in workers
        ),
        *await _numbers(pool),
    ]
    return [line for line in found if line]


async def open_deliveries(pool: asyncpg.Pool) -> int:
    """Return the number of unfinished deliveries in the projection."""
    return int(await pool.fetchval(OPEN))


async def _verdicts(pool: asyncpg.Pool, rows: Sequence[asyncpg.Record]) -> set[UUID]:
    counted = {row["packet_id"]: row["verdicts"] for row in await pool.fetch(BEGINNINGS)}
    return {row["packet_id"] for row in rows if counted.get(row["packet_id"]) != 1}


async def _ends(pool: asyncpg.Pool, rows: Sequence[asyncpg.Record], workers: Sequence[Handled]) -> list[str]:
    """Return violations of S5: accepted = D, E and X, which are disjoint; nothing refused is in D."""
    handled = {(packet_id, worker.agent) for worker in workers for packet_id in worker.effects}
    states = {(row["packet_id"], row["recipient"]): row["state"] for row in await pool.fetch(ENDS, IN_THE_GATE)}
    expired = {pair for pair, state in states.items() if state == "EXPIRED"}
    dead = {pair for pair, state in states.items() if state == "DEAD_LETTERED"}
    accepted = {
        (row["packet_id"], recipient)
        for row in rows
        if row["verdict"] != "refused"
        for recipient in row["recipients"]
        if recipient not in IN_THE_GATE
    }
    refused = {row["packet_id"] for row in rows if row["verdict"] == "refused"}
    return [
        _holds("S5 accepted, and neither handled, expired nor dead-lettered", accepted - handled - expired - dead),
        _holds("S5 handled, expired or dead-lettered, and not accepted", (handled | expired | dead) - accepted),
        _holds("S5 more than one of handled, expired and dead-lettered", _overlap(handled, expired, dead)),
        _holds("S5 refused and handled", {pair for pair in handled if pair[0] in refused}),
        _holds("S5 handled, and the log does not say so", {one for one in handled if states.get(one) == "ROUTED"}),
    ]


def _overlap(first: set[Pair], second: set[Pair], third: set[Pair]) -> set[Pair]:
    return first & second | first & third | second & third


async def _numbers(pool: asyncpg.Pool) -> list[str]:
    return [
        f"the numbers of shard {row['shard']} have gaps or doubles: {dict(row)}"
        for row in await pool.fetch(NUMBERS)
        if not row["entries"] == row["numbers"] == row["last"] or row["first"] != 1
    ]


def _holds(statement: str, exceptions: Iterable[object]) -> str:
    found = list(exceptions)
    return f"{statement}: {len(found)}, such as {found[0]}" if found else ""
