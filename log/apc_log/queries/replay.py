"""`apc packet replay`: a run in the order of the log, or played again (`--verify`, `--what-if`)."""

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import asyncpg
import orjson

from apc_contracts.contract.contract import Contract, contract_from_bytes
from apc_contracts.replay.entries import (
    ENVELOPE_COLUMNS,
    Entry,
    RecordedHop,
    RecordedPacket,
    RecordedTransition,
    ReplayDiffers,
    ReplayImpossible,
)
from apc_contracts.replay.session_replay import SessionReplay
from apc_contracts.replay.what_if import Change, Trial, WhatIf
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.body_encryption import is_sealed
from apc_log.heads import (
    AnyConnection,
    Given,
    LogRange,
    Reach,
    bounded,
    of_given,
    read_ends,
    read_range,
    reads,
    thawed,
)
from apc_log.queries.packets import (
    BEGINNING,
    ConflictRow,
    CoordinationRow,
    LogRow,
    Position,
    TransitionRow,
    columns,
    list_agent_packets,
    opened_bodies,
    to_row,
)

_PLACE = "shard, seq, epoch, batch_no"
_PACKETS = f"""
SELECT {_PLACE}, packet_id, judged_at, recipients, cause_packet_id, round, step, verdict, refusal::text AS refusal,
       contract_hash, facts::text AS facts, user_id, packet_hash, body_stored AS body, {", ".join(ENVELOPE_COLUMNS)}
FROM apc_log.agent_packets WHERE session_id = $1 /*within agent_packets*/ ORDER BY shard, seq
"""
_HOPS_OF_SESSION = f"""
SELECT {_PLACE}, packet_id, recipient, attempt, from_state, to_state, events, occurred_at, actor,
       metadata::text AS metadata
FROM apc_log.packet_events WHERE session_id = $1 /*within packet_events*/ ORDER BY shard, seq
"""
_TRANSITIONS = f"""
SELECT {_PLACE}, event, from_state, to_state, round, generation, step, cause_packet_id AS cause, facts::text AS facts
FROM apc_log.coordination_events WHERE session_id = $1 /*within coordination_events*/ ORDER BY shard, seq
"""
_SESSIONS_OF_RUN = """
SELECT session_id FROM apc_log.agent_packets WHERE run_id = $1 AND session_id <> $2
GROUP BY session_id ORDER BY min(shard), min(seq)
"""
_SESSIONS_SINCE = """
SELECT session_id FROM apc_log.sessions
WHERE (document->>'opened_at')::timestamptz >= $1 AND session_id <> $2 ORDER BY (document->>'opened_at')::timestamptz
"""
_DOCUMENT = "SELECT document::text FROM apc_log.sessions WHERE session_id = $1"
_CONTRACT = "SELECT document FROM apc_log.contracts WHERE contract_hash = $1"
_PREFETCH = 500


@asynccontextmanager
async def read_recorded(pool: asyncpg.Pool) -> AsyncIterator["PostgresRecords"]:
    """Read the log as it is now, for a replay: one snapshot, whatever is written meanwhile.

    What was released is read from the archive of the pool, a session at a time, on a second connection.
    """
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield PostgresRecords(connection, pool=pool)


@dataclass(frozen=True, slots=True)
class PostgresRecords:
    """A run's sessions and their entries, from the database.

    `trusts_ranges`: read of a session the range of the log that stands beside the entries, not the whole log. `pool`:
    whose archive has what was released; without one that is an error.
    """

    connection: AnyConnection
    trusts_ranges: bool = True
    pool: asyncpg.Pool | None = None

    async def sessions(self, run_id: str) -> list[str]:
        """Return the sessions that have a packet of the run, in the order in which they began."""
        async with thawed(self.connection, self.pool, Reach(runs=[run_id])) as source:
            rows = await source.fetch(_SESSIONS_OF_RUN, run_id, PRESENCE_SESSION)
        return [row["session_id"] for row in rows]

    async def sessions_since(self, since: datetime) -> list[str]:
        """Return the sessions that began at this time or later, the earliest first."""
        rows = await self.connection.fetch(_SESSIONS_SINCE, since, PRESENCE_SESSION)
        return [row["session_id"] for row in rows]

    async def document(self, session_id: str) -> dict[str, Any] | None:
        """Return the session's state by the projection; None when it never began."""
        text = await self.connection.fetchval(_DOCUMENT, session_id)
        return None if text is None else orjson.loads(text)

    async def contract(self, contract_hash: bytes) -> bytes | None:
        """Return the contract file with this hash, which the orchestrator brought along when it took the shard."""
        body: bytes | None = await self.connection.fetchval(_CONTRACT, contract_hash)
        return body

    async def batches(self, session_id: str) -> AsyncGenerator[list[Entry]]:
        """Yield the entries of a session, those of one log batch at a time."""
        batch: list[Entry] = []
        async with aclosing(self._entries(session_id)) as entries:
            async for entry in entries:
                if batch and batch[-1].batch != entry.batch:
                    yield batch
                    batch = []
                batch.append(entry)
        if batch:
            yield batch

    async def _entries(self, session_id: str) -> AsyncGenerator[Entry]:
        """Yield the entries of a session from three cursors, merged by seq: a session is in one shard."""
        async with thawed(self.connection, self.pool, Reach(sessions=[session_id])) as source:
            bounds = await read_range(self.connection, [session_id]) if self.trusts_ranges else None
            statements = [bounded(query, bounds, session_id) for query, _ in _READERS]
            cursors = [aiter(source.cursor(*statement, prefetch=_PREFETCH)) for statement in statements]
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
    (_HOPS_OF_SESSION, _hop),
    (_TRANSITIONS, _transition),
)


# `apc packet replay`: everything that happened in a run, in the order of the log.

PAGE = 500

_SESSIONS = (
    "SELECT DISTINCT session_id FROM apc_log.agent_packets WHERE run_id = $1 AND ($2::text IS NULL OR task_id = $2)"
)
# The hops of each session stand in the order of the log (index packet_events_session): a page reads no more of them
# than it shows. A hop is of the run when its packet is.
_HOPS = f"""
SELECT {columns(TransitionRow, "step")} FROM (
    SELECT page.shard, page.seq FROM unnest($1::text[]) AS one(session_id)
    CROSS JOIN LATERAL (
        SELECT hop.shard, hop.seq FROM apc_log.packet_events AS hop
        WHERE hop.session_id = one.session_id AND (hop.shard, hop.seq) > ($2, $3) AND hop.to_state <> ''
          /*within hop*/ AND EXISTS (
            SELECT FROM apc_log.packet_ids AS named
            JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
            WHERE named.session_id = hop.session_id AND named.packet_id = hop.packet_id
              AND packet.run_id = $5 AND ($6::text IS NULL OR packet.task_id = $6) /*within named*/ /*within packet*/)
        ORDER BY hop.shard, hop.seq LIMIT $4
    ) AS page
    ORDER BY page.shard, page.seq LIMIT $4
) AS hop
JOIN apc_log.packet_transitions AS step ON step.shard = hop.shard AND step.seq = hop.seq /*within step*/
ORDER BY step.shard, step.seq, step.ordinal
"""
_COORDINATION = f"""
SELECT {columns(CoordinationRow, "moved")} FROM apc_log.coordination_events AS moved
WHERE moved.session_id IN (SELECT session_id FROM apc_log.sessions WHERE run_id = $1)
  AND (moved.shard, moved.seq) > ($2, $3) /*within moved*/
ORDER BY moved.shard, moved.seq LIMIT $4
"""

_CONFLICTS = f"""
SELECT {columns(ConflictRow, "one")} FROM apc_log.packet_conflicts AS one
WHERE one.session_id = ANY ($1) AND (one.shard, one.seq) > ($2, $3) /*within one*/ ORDER BY one.shard, one.seq LIMIT $4
"""


@dataclass(frozen=True, slots=True)
class ReplayPage:
    """Entries of a run in the order of the log, and where the next page begins; None at the end."""

    rows: tuple[LogRow, ...]
    after: Position | None


@dataclass(frozen=True, slots=True)
class _ReplayRun:
    """What is read of the log, and how far it went when the reading began: an entry that is logged between two queries
    of a page would come without those before it."""

    run_id: str
    task_id: str | None
    sessions: list[str]
    ends: Mapping[int, int]
    """shard -> its last seq."""
    bounds: LogRange | None
    """Of all its sessions."""


@reads(of_given)
async def replay_page(
    pool: asyncpg.Pool, run_id: str, task_id: str | None = None, *, limit: int = 100, after: Position | None = None
) -> ReplayPage:
    """Return at most `limit` entries of a run after `after`; a hop is one entry with all its transitions.

    Bodies as `opened_bodies` gives them.
    """
    return await _page(pool, await _find(pool, run_id, task_id), limit, after or BEGINNING)


async def replay(
    pool: asyncpg.Pool, run_id: str, task_id: str | None = None, *, after: Position | None = None
) -> AsyncIterator[LogRow]:
    """Yield packets, transitions, conflicts and coordination events of a run in causal order.

    Causal order is (shard, seq): a session lives in one shard, and what follows from an entry comes behind
    it. With `task_id` only the packets of that task and their transitions; coordination events are the
    sessions' own and stay. The log as it is when the replay begins: it only grows, so no transaction is held
    open while the caller reads.
    """
    run = await _find(pool, run_id, task_id)
    page = await _page(pool, run, PAGE, after or BEGINNING)
    while True:
        for row in page.rows:
            yield row
        if page.after is None:
            return
        page = await _page(pool, run, PAGE, page.after)


def _of_replay(given: Given) -> Reach:
    run: _ReplayRun = given["run"]
    return Reach(sessions=run.sessions, runs=[run.run_id])


@reads(of_given)
async def _find(pool: asyncpg.Pool, run_id: str, task_id: str | None) -> _ReplayRun:
    ends = await read_ends(pool)
    sessions = [record["session_id"] for record in await pool.fetch(_SESSIONS, run_id, task_id)]
    return _ReplayRun(run_id, task_id, sessions, ends, await read_range(pool, sessions))


@reads(_of_replay)
async def _page(pool: asyncpg.Pool, run: _ReplayRun, limit: int, after: Position) -> ReplayPage:
    packets = await list_agent_packets(pool, run_id=run.run_id, task_id=run.task_id, limit=limit, after=after)
    hops = await pool.fetch(*bounded(_HOPS, run.bounds, run.sessions, *after, limit, run.run_id, run.task_id))
    of_run = run.bounds if run.task_id is None else None  # transitions are those of every session of the run
    moves = await pool.fetch(*bounded(_COORDINATION, of_run, run.run_id, *after, limit))
    conflicts = await pool.fetch(*bounded(_CONFLICTS, run.bounds, run.sessions, *after, limit))
    read: list[LogRow] = [
        *await opened_bodies(pool, packets),
        *(to_row(TransitionRow, record) for record in hops),
        *(to_row(CoordinationRow, record) for record in moves),
        *(to_row(ConflictRow, record) for record in conflicts),
    ]
    rows = sorted((row for row in read if row.seq <= run.ends.get(row.shard, 0)), key=_key)
    places = sorted({row.position for row in rows})
    if len(places) < limit:
        return ReplayPage(tuple(rows), None)
    last = places[limit - 1]
    return ReplayPage(tuple(row for row in rows if row.position <= last), last)


def _key(row: LogRow) -> tuple[Position, int]:
    return (row.position, getattr(row, "ordinal", 0))


# `apc packet replay --verify` and `--what-if`: a run played again, from whatever holds its entries.


class Records(Protocol):
    """Where the entries of a run come from: the database, or an exported bundle."""

    async def sessions(self, run_id: str) -> list[str]:
        """Return the sessions of the run, in the order in which they began."""
        ...

    async def document(self, session_id: str) -> Mapping[str, Any] | None:
        """Return the session's last state document; None when there is none to compare with."""
        ...

    def batches(self, session_id: str) -> AsyncGenerator[list[Entry]]:
        """Yield the entries of a session in the order of the log, those of one log batch at a time.

        Close it: it may hold a connection.
        """
        ...

    async def contract(self, contract_hash: bytes) -> bytes | None:
        """Return the contract file with this hash; None when it is not held."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found. `problem` is the first difference, or what the replay could not do without."""

    run_id: str
    sessions: int
    packets: int
    hops: int
    transitions: int
    problem: ReplayDiffers | ReplayImpossible | None
    decisions: int = 0
    """Decisions that were looked at under the other contract."""
    changes: tuple[Change, ...] = ()


class ContractBook:
    """Contracts by hash: the available ones first, then the ones that the log holds."""

    def __init__(self, records: Records, available: Iterable[Contract]) -> None:
        self._records = records
        self._known: dict[bytes, Contract | None] = {contract.hash: contract for contract in available}

    async def look_up(self, entries: Iterable[Entry]) -> None:
        """Load the contracts of these entries."""
        for entry in entries:
            if isinstance(entry, RecordedPacket) and entry.contract_hash not in self._known:
                body = await self._records.contract(entry.contract_hash)
                contract = None if body is None else contract_from_bytes(body)
                is_it = contract is not None and contract.hash == entry.contract_hash  # the row may have been changed
                self._known[entry.contract_hash] = contract if is_it else None

    def get(self, contract_hash: bytes) -> Contract | None:
        """Return the contract with this hash, once it was looked up."""
        return self._known.get(contract_hash)


async def verify_run(
    records: Records, run_id: str, contracts: Iterable[Contract], other: Contract | None = None
) -> Replayed:
    """Recompute every verdict, hop and transition of a run from (bytes, facts, contract), up to the first difference.

    `contracts` are available beside those that the log holds; `other` is the contract of a what-if.
    """
    book = ContractBook(records, contracts)
    what_if = None if other is None else WhatIf(other)
    replays: list[SessionReplay] = []
    problem: ReplayDiffers | ReplayImpossible | None = None
    try:
        for session_id in await records.sessions(run_id):
            replay = SessionReplay(session_id, book.get, what_if)
            replays.append(replay)
            await _replay_session(records, book, session_id, replay)
            replay.session = None  # its counts are all that is still needed
    except (ReplayDiffers, ReplayImpossible) as found:
        problem = found
    return Replayed(
        run_id,
        len(replays),
        sum(replay.packets for replay in replays),
        sum(replay.hops for replay in replays),
        sum(replay.transitions for replay in replays),
        problem,
        0 if what_if is None else what_if.decisions,
        () if what_if is None else tuple(what_if.changes),
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a trial: sessions that were read, and why others could not be."""

    sessions: int
    unreadable: Mapping[str, str]


async def try_contract(
    records: Records, session_ids: Iterable[str], contracts: Iterable[Contract], trial: Trial, coordinator: str
) -> Tried:
    """Replay whole sessions from START and judge each packet by the contract of the trial.

    A session that cannot be read, or of another coordinator, is named and left out from there on.
    """
    book, read, unreadable = ContractBook(records, contracts), 0, dict[str, str]()
    for session_id in session_ids:
        replay = SessionReplay(session_id, book.get, trial)
        try:
            async with aclosing(records.batches(session_id)) as batches:
                async for batch in batches:
                    await book.look_up(batch)
                    first = next((one for one in batch if isinstance(one, RecordedPacket)), None)
                    judged_by = None if first is None else book.get(first.contract_hash)
                    if judged_by is not None and judged_by.coordinator != coordinator:
                        unreadable[session_id] = f"its coordinator is {judged_by.coordinator}, not {coordinator}"
                        break
                    replay.take(batch)
                else:
                    read += 1
        except (ReplayDiffers, ReplayImpossible) as found:
            unreadable[session_id] = str(found)
    return Tried(read, unreadable)


async def _replay_session(records: Records, book: ContractBook, session_id: str, replay: SessionReplay) -> None:
    last: Entry | None = None
    async with aclosing(records.batches(session_id)) as batches:
        async for batch in batches:
            await book.look_up(batch)
            replay.take(batch)
            last = batch[-1]
    document = await records.document(session_id)
    if document is not None and last is not None:
        replay.check_document(document, (last.shard, last.seq))
