"""What a replay reads from the database: the sessions of a run, and the entries of each in the order of the log."""

import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson

from apc_contracts.replay import Entry, RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.replay.columns import ENVELOPE_COLUMNS
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.body_encryption import is_sealed
from apc_log.connection import AnyConnection

_PLACE = "shard, seq, epoch, batch_no"
_PACKETS = f"""
SELECT {_PLACE}, packet_id, judged_at, recipients, cause_packet_id, round, step, verdict, refusal::text AS refusal,
       contract_hash, facts::text AS facts, user_id, packet_hash, body_stored AS body, {", ".join(ENVELOPE_COLUMNS)}
FROM apc_log.agent_packets WHERE session_id = $1 ORDER BY shard, seq
"""
_HOPS = f"""
SELECT {_PLACE}, packet_id, recipient, attempt, from_state, to_state, events, occurred_at, actor,
       metadata::text AS metadata
FROM apc_log.packet_events WHERE session_id = $1 ORDER BY shard, seq
"""
_TRANSITIONS = f"""
SELECT {_PLACE}, event, from_state, to_state, round, generation, step, cause_packet_id AS cause, facts::text AS facts
FROM apc_log.coordination_events WHERE session_id = $1 ORDER BY shard, seq
"""
_SESSIONS = """
SELECT session_id FROM apc_log.agent_packets WHERE run_id = $1 AND session_id <> $2
GROUP BY session_id ORDER BY min(shard), min(seq)
"""
_DOCUMENT = "SELECT document::text FROM apc_log.sessions WHERE session_id = $1"
_CONTRACT = "SELECT document FROM apc_log.contracts WHERE contract_hash = $1"
_PREFETCH = 500


@asynccontextmanager
async def read_recorded(pool: asyncpg.Pool) -> AsyncIterator["DatabaseRecords"]:
    """Read the log as it is now, for a replay: one snapshot, whatever is written meanwhile."""
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield DatabaseRecords(connection)


@dataclass(frozen=True, slots=True)
class DatabaseRecords:
    """A run's sessions and their entries, from the database."""

    connection: AnyConnection

    async def sessions(self, run_id: str) -> list[str]:
        """Return the sessions that have a packet of the run, in the order in which they began."""
        rows = await self.connection.fetch(_SESSIONS, run_id, PRESENCE_SESSION)
        return [row["session_id"] for row in rows]

    async def document(self, session_id: str) -> dict[str, Any] | None:
        """Return the session's state by the projection; None when it never began."""
        text = await self.connection.fetchval(_DOCUMENT, session_id)
        return None if text is None else orjson.loads(text)

    async def contract(self, contract_hash: bytes) -> bytes | None:
        """Return the contract file with this hash, which the gate brought along when it took the shard."""
        body: bytes | None = await self.connection.fetchval(_CONTRACT, contract_hash)
        return body

    async def batches(self, session_id: str) -> AsyncIterator[list[Entry]]:
        """Yield the entries of a session, those of one log batch at a time."""
        batch: list[Entry] = []
        async for entry in self._entries(session_id):
            if batch and batch[-1].batch != entry.batch:
                yield batch
                batch = []
            batch.append(entry)
        if batch:
            yield batch

    async def _entries(self, session_id: str) -> AsyncIterator[Entry]:
        """Yield the entries of a session from three cursors, merged by seq: a session is in one shard."""
        cursors = [aiter(self.connection.cursor(query, session_id, prefetch=_PREFETCH)) for query, _ in _READERS]
        heads: list[tuple[tuple[int, int], int, asyncpg.Record]] = []
        for number, cursor in enumerate(cursors):
            await _push(heads, number, cursor)
        while heads:
            _, number, record = heapq.heappop(heads)
            yield _READERS[number][1](record)
            await _push(heads, number, cursors[number])


async def _push(
    heads: list[tuple[tuple[int, int], int, asyncpg.Record]], number: int, cursor: AsyncIterator[asyncpg.Record]
) -> None:
    record = await anext(cursor, None)
    if record is not None:
        heapq.heappush(heads, ((record["shard"], record["seq"]), number, record))


def _packet(record: asyncpg.Record) -> RecordedPacket:
    return RecordedPacket(
        **_taken(record, "packet_id judged_at cause_packet_id round step verdict contract_hash user_id".split()),
        recipients=tuple(record["recipients"]),
        refusal=_json(record["refusal"]),
        facts=orjson.loads(record["facts"]),
        packet_hash=record["packet_hash"],
        body=None if is_sealed(record["body"]) else record["body"],
        envelope={name: record[name] for name in ENVELOPE_COLUMNS},
    )


def _hop(record: asyncpg.Record) -> RecordedHop:
    names = "packet_id recipient attempt from_state to_state events occurred_at actor".split()
    return RecordedHop(**_taken(record, names), metadata=_json(record["metadata"]))


def _transition(record: asyncpg.Record) -> RecordedTransition:
    names = "event from_state to_state round generation step cause".split()
    return RecordedTransition(**_taken(record, names), facts=orjson.loads(record["facts"]))


def _taken(record: asyncpg.Record, names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in ("shard", "seq", "epoch", "batch_no", *names)}


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


_READERS: tuple[tuple[str, Callable[[asyncpg.Record], Entry]], ...] = (
    (_PACKETS, _packet),
    (_HOPS, _hop),
    (_TRANSITIONS, _transition),
)
