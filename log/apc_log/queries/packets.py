"""Packets of the log: their states, transitions and effects; and the inputs that became none (`apc packet trace`).

Other queries share what stands here: the rows that are returned, their columns in SQL, and bodies that are opened.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

import asyncpg
import orjson
from asyncpg import Record

from apc_bus.settings import EncryptionSettings
from apc_contracts.session.session import ReportedEffects
from apc_contracts.wire.receipts import EffectEntry
from apc_log.body_encryption import KeyRing, SubjectKey, is_sealed, key_id_of
from apc_log.heads import (
    LAST,
    Given,
    LogRange,
    Reach,
    bounded,
    of_given,
    of_page,
    of_places,
    range_of,
    read_range,
    reads,
    windowed,
)

# What the queries return: frozen rows, times in UTC, JSON columns as Python values.

JsonObject = dict[str, Any]


class Position(NamedTuple):
    """A place in the log; pages go on behind one. Within a shard the order of `seq` is the order of
    causes."""

    shard: int
    seq: int


@dataclass(frozen=True, slots=True)
class PacketHead:
    """A packet without its body and facts: what lists and trees have of it."""

    shard: int
    seq: int
    session_id: str
    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    recipients: list[str]
    run_phase: str
    generation: int
    verdict: str
    refusal_code: str | None
    judged_at: datetime


@dataclass(frozen=True, slots=True)
class PacketRow:
    """A packet as it was admitted, refused or held. `body` are the exact bytes that were received."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    judged_at: datetime
    packet_id: UUID
    packet_type: str
    channel: str
    run_phase: str
    session_id: str
    run_id: str
    task_id: str
    root_packet_id: UUID
    parent_packet_id: UUID | None
    cause_packet_id: UUID | None
    sender_agent_id: str
    sender_role: str
    sender_swarm_id: str
    recipients: tuple[str, ...]
    generation: int
    round: int
    step: int
    confidence: float
    created_at: datetime
    expires_at: datetime
    verdict: str
    """On arrival: accepted, refused or held."""
    refusal_code: str | None
    refusal: JsonObject | None
    contract_hash: bytes
    facts: JsonObject
    body: bytes
    packet_hash: bytes
    user_id: str
    signature: str | None

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One transition of a packet's lifecycle; `recipient` '' is the whole packet, `ordinal` its place in the
    hop."""

    shard: int
    seq: int
    ordinal: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str
    packet_id: UUID
    recipient: str
    attempt: int
    event: str
    from_state: str
    to_state: str
    occurred_at: datetime
    actor: str
    metadata: JsonObject | None

    @property
    def position(self) -> Position:
        """Its hop's place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class CoordinationRow:
    """A transition or a barrier of a session."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str
    round: int
    generation: int
    step: int
    cause_packet_id: UUID
    event: str
    from_state: str
    to_state: str
    facts: JsonObject

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class ConflictRow:
    """An input that takes no packet id: refused for its id, unreadable, or dropped by the persister."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str | None
    packet_id: UUID | None
    conflict: str
    """The column `kind` of packet_conflicts."""
    code: str | None
    reason: str
    user_id: str | None

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


LogRow = ConflictRow | PacketRow | TransitionRow | CoordinationRow


@dataclass(frozen=True, slots=True)
class Staleness:
    """A packet rests on one that was retracted."""

    because_packet_id: UUID
    """What it rests on: retracted, or stale itself."""
    retraction_packet_id: UUID | None
    """None: it came after the retraction."""
    marked_at: datetime


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One entry about an effect. `actor`: the agent itself, or the operator who settled it."""

    shard: int
    seq: int
    session_id: str
    packet_id: UUID
    agent_id: str
    actor: str
    at: datetime
    key: str
    claim: UUID
    entry: str
    attempt: int
    digest: str | None
    reference: str | None
    note: str | None


@dataclass(slots=True)
class LoggedEffect:
    """An effect of one agent for one packet, with its entries in the order of the log."""

    packet_id: UUID
    agent_id: str
    key: str
    entries: list[EffectRow] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Where it stands: absent, claimed, made, unknown or settled."""
        effects = ReportedEffects()
        for one in self.entries:
            effects.note(one.packet_id, one.agent_id, one.key, one.claim, EffectEntry(one.entry))
        return effects.state_of(self.key)

    @property
    def words(self) -> str:
        """The effect in one line: who, what, where it stands, how it came there."""
        last = self.entries[-1]
        by = "" if last.actor == self.agent_id else f" by {last.actor}"
        found = [*(one.reference for one in self.entries if one.reference), *([last.note] if last.note else [])]
        said = f" ({'; '.join(found)})" if found else ""
        return f"effect {self.key} of {self.agent_id}: {', '.join(one.entry for one in self.entries)}{by}{said}"


@dataclass(frozen=True, slots=True)
class PacketTimeline:
    """A packet, the state it is in over all its recipients, and how it came there."""

    packet: PacketRow
    state: str
    transitions: tuple[TransitionRow, ...]
    """In the order of the log; empty when they were not asked for."""
    stale: Staleness | None = None
    effects: tuple[LoggedEffect, ...] = ()
    """What its recipients have made outside the bus; empty when the transitions were not asked for."""


@dataclass(frozen=True, slots=True)
class TracePage:
    """Packets in the order of the log, and where the next page begins; None at the end."""

    packets: tuple[PacketTimeline, ...]
    after: Position | None


# The SQL of the queries: one select a row type, and the clauses that narrow it down; values are parameters.

RowT = TypeVar("RowT", ConflictRow, PacketRow, TransitionRow, CoordinationRow)

_AS_TEXT = frozenset({"facts", "refusal", "metadata"})
"""JSON columns are read as text, whatever codec the pool has."""


def columns(row_type: type[Any], table: str) -> str:
    """Return the select list of a row type."""

    def column(name: str) -> str:
        if name == "body":
            return f"{table}.body_stored AS body"
        if name == "conflict":
            return f"{table}.kind AS conflict"
        return f"{table}.{name}::text AS {name}" if name in _AS_TEXT else f"{table}.{name}"

    return ", ".join(column(field.name) for field in fields(row_type))


@cache
def _names_of(row_type: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the columns of a row, those of JSON among them, and whether it has recipients."""
    names = tuple(field.name for field in fields(row_type))
    return names, tuple(name for name in names if name in _AS_TEXT), "recipients" in names


def to_row(row_type: type[RowT], record: Record) -> RowT:
    """Return a record as a row: JSON columns read, recipients as a tuple."""
    names, as_text, has_recipients = _names_of(cast(Hashable, row_type))
    values: dict[str, Any] = {name: record[name] for name in names}
    for name in as_text:
        if values[name] is not None:
            values[name] = orjson.loads(values[name])
    if has_recipients:
        values["recipients"] = tuple(values["recipients"])
    return row_type(**values)


class ScopeFilters(TypedDict, total=False):
    """Which part of the log is looked at; None = any."""

    run_id: str | None
    session_id: str | None
    task_id: str | None


class TraceFilters(ScopeFilters, total=False):
    """What a packet must match to be traced; None = anything."""

    packet_id: UUID | None
    packet_type: str | None
    run_phase: str | None
    trace_id: UUID | None
    """The id of the root packet."""


FILTERS: Mapping[str, str] = {
    "run_id": "packet.run_id = {}",
    "session_id": "packet.session_id = {}",
    "task_id": "packet.task_id = {}",
    "packet_id": "(packet.shard, packet.seq) IN (SELECT shard, seq FROM apc_log.packet_ids WHERE packet_id = {})",
    "packet_type": "packet.packet_type = {}",
    "run_phase": "packet.run_phase = {}",
    "trace_id": "packet.root_packet_id = {}",
}
"""Filter -> clause. Only the given ones are in the statement: a plan for all of them uses no index."""


def narrowed(given: Mapping[str, Any], filters: Mapping[str, str] = FILTERS) -> tuple[list[str], list[Any]]:
    """Return the clauses of the filters that are given, in the order of `filters`, and their values from $1 on.

    Raises TypeError for a name that is no filter: it must not let everything through.
    """
    if unknown := given.keys() - filters.keys():
        raise TypeError(f"no such filter: {', '.join(sorted(unknown))}")
    names = [name for name in filters if given.get(name) is not None]
    return [filters[name].format(f"${at}") for at, name in enumerate(names, 1)], [given[name] for name in names]


def traced(given: TraceFilters) -> tuple[str, list[Any]]:
    """Return a page of agent_packets behind a position.

    The parameters shard, seq and limit follow those of the filters.
    """
    clauses, values = narrowed(given)
    count = len(clauses)
    # The planner passes over shards by the plain comparison alone.
    clauses.append(f"(packet.shard, packet.seq) > (${count + 1}, ${count + 2}) AND packet.shard >= ${count + 1}")
    statement = (
        f"SELECT {columns(PacketRow, 'packet')} FROM apc_log.agent_packets AS packet "
        f"WHERE {' AND '.join(clauses)} /*within packet*/ /*window packet*/ "
        f"ORDER BY packet.shard, packet.seq LIMIT ${count + 3}"
    )
    return statement, values


STATES = """
SELECT now.state FROM apc_log.agent_packets AS packet
CROSS JOIN LATERAL apc_log.packet_states(packet.session_id, packet.packet_id, packet.recipients/*range*/) AS now
WHERE packet.shard = $1 AND packet.seq = ANY($2::bigint[]) /*within packet*/ /*window packet*/ ORDER BY packet.seq
"""

TRANSITIONS = f"""
SELECT {columns(TransitionRow, "step")}
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_transitions AS step USING (session_id, packet_id)
WHERE step.seq >= 1 /*within step*/
ORDER BY step.shard, step.seq, step.ordinal
"""

_IDS = """
SELECT shard, seq FROM apc_log.packet_ids WHERE packet_id = $1 AND ($2::text IS NULL OR session_id = $2)
  AND (shard, seq) > ($3, $4) /*within packet_ids*/ ORDER BY shard, seq
"""
_REFERS_TO = "SELECT refers_to FROM apc_log.agent_packets WHERE shard = $1 AND seq = $2"
STALE = """
SELECT stale.session_id, stale.packet_id, stale.because_packet_id, stale.retraction_packet_id, stale.marked_at
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_stale AS stale USING (session_id, packet_id)
WHERE stale.seq >= 1 /*within stale*/
"""

CONFLICTS_OF_SESSION = f"""
SELECT {columns(ConflictRow, "one")} FROM apc_log.packet_conflicts AS one
WHERE one.session_id = $1 AND ($2::uuid IS NULL OR one.packet_id = $2) /*within one*/
ORDER BY one.shard, one.seq LIMIT $3
"""
CONFLICTS_OF_PACKET = f"""
SELECT {columns(ConflictRow, "one")} FROM apc_log.packet_conflicts AS one
WHERE one.packet_id = $1 ORDER BY one.shard, one.seq LIMIT $2
"""


# Bodies of packets as they were received: those that the log holds encrypted are opened while their key exists.


async def opened_bodies(
    pool: asyncpg.Pool, rows: Sequence[PacketRow], ring: KeyRing | None = None
) -> tuple[PacketRow, ...]:
    """Read of these packets what was received: body, packet_hash, signature and refusal of each whose key exists.

    A body whose key was destroyed stays sealed, and so do all of them without a master key (`ring`, by default that of
    the settings). Raises BodyUnreadable when the keys were wrapped by another master key, or a body was altered.
    """
    sealed = {row.position: key_id_of(row.body) for row in rows if is_sealed(row.body)}
    if not sealed:
        return tuple(rows)
    ring = ring or KeyRing.of(EncryptionSettings())
    if ring is None:
        return tuple(rows)
    async with pool.acquire() as connection:
        keys = await ring.by_id(connection, sealed.values())
    return tuple(_opened(row, keys.get(sealed[row.position])) if row.position in sealed else row for row in rows)


def _opened(row: PacketRow, key: SubjectKey | None) -> PacketRow:
    if key is None:
        return row
    content = key.unseal_packet(row.body)
    refusal = None if content.refusal is None else orjson.loads(content.refusal)
    return replace(
        row, body=content.body, packet_hash=content.packet_hash, signature=content.signature, refusal=refusal
    )


BEGINNING = Position(-1, 0)
"""Before the first entry of the log."""

# Pages in the order of the log: they look at a few segments after the other, so that the planner opens no more.

_BEHIND = """
SELECT segment.shard, segment.first_seq, segment.last_seq
FROM apc_log.segments AS segment JOIN apc_log.shards AS head ON head.shard = segment.shard
WHERE (segment.shard, segment.last_seq) > ($1, $2) AND segment.first_seq < head.next_seq
  AND ($3::integer IS NULL OR segment.shard = $3 AND segment.first_seq <= $5 AND segment.last_seq >= $4)
  {of_run}
ORDER BY segment.shard, segment.first_seq LIMIT $6
"""
_BEFORE = """
SELECT segment.shard, segment.first_seq, segment.last_seq
FROM apc_log.segments AS segment JOIN apc_log.shards AS head ON head.shard = segment.shard
WHERE (segment.shard, segment.first_seq) < ($1, $2) AND segment.first_seq < head.next_seq
  AND ($3::integer IS NULL OR segment.shard = $3 AND segment.first_seq <= $5 AND segment.last_seq >= $4)
  {of_run}
ORDER BY segment.shard DESC, segment.first_seq DESC LIMIT $6
"""
# Segments with packets of a run, and those that are not looked through for them yet.
_OF_RUN = """
  AND (EXISTS (SELECT FROM apc_log.run_blocks AS one WHERE one.run_id = $7 AND one.shard = segment.shard
               AND one.block BETWEEN (segment.first_seq - 1) >> 16 AND (segment.last_seq - 1) >> 16)
       OR NOT EXISTS (SELECT FROM apc_log.followed AS place
                      WHERE place.projection = 'run_blocks' AND place.shard = segment.shard
                        AND place.seq >= least(segment.last_seq, head.next_seq - 1)))
"""
_MOST_WINDOWS, _MOST_OF_RUN = 8, 32
_MOST_IN_WINDOWS = 127
"""Segments: one, then two, four … sixty-four."""
_END = Position((1 << 31) - 1, LAST)
"""After the last entry of the log."""


async def _windows_of(
    pool: asyncpg.Pool, after: tuple[int, int], within: LogRange | None, run_id: str | None, *, newest: bool
) -> list[LogRange | None]:
    """Return where a page is looked for: ever larger ranges of one shard each, and at last the rest, which is `within`.

    None = all of the log. A page that is found early reads one segment; one that few packets fit reads each once. With
    a run those that have none of its packets are passed over.
    """
    given = (None, None, None) if within is None else (within.shard, within.first, within.last)
    of_run = () if run_id is None else (run_id,)
    statement = (_BEFORE if newest else _BEHIND).format(of_run=_OF_RUN if of_run else "")
    rows = await pool.fetch(statement, *after, *given, _MOST_IN_WINDOWS + 1, *of_run)
    found: list[LogRange | None] = []
    at, size = 0, 1
    while at < len(rows) and len(found) < (_MOST_OF_RUN if of_run else _MOST_WINDOWS):
        of_shard = [row for row in rows[at : at + size] if row["shard"] == rows[at]["shard"]]
        first, last = min(row["first_seq"] for row in of_shard), max(row["last_seq"] for row in of_shard)
        if within is not None:
            first, last = max(first, within.first), min(last, within.last)
        found.append(LogRange(of_shard[0]["shard"], first, last))
        at, size = at + len(of_shard), 2 * size
    return found if at == len(rows) else [*found, within]


async def read_page(
    statement: str,
    values: Sequence[Any],
    pool: asyncpg.Pool,
    after: tuple[int, int] | None,
    limit: int,
    *,
    newest: bool = False,
    within: LogRange | None = None,
    run_id: str | None = None,
) -> list[Record]:
    """Return at most `limit` rows of packets behind a place, in the order of the log or against it.

    Args:
        statement: it ends with the parameters shard, seq and limit. `/*window packet*/` stands for the bounds of the
            packets that are looked at, `/*within NAME*/` for those of everything about them.
        values: its other parameters.
        pool: what takes statements.
        after: None = from the beginning, or from the end.
        limit: the largest number of rows.
        newest: against the order of the log.
        within: where all of it stands, if that is known.
        run_id: the run that all of it names, if that is known.
    """
    place = after or (_END if newest else BEGINNING)
    if getattr(pool, "is_thawed", False):
        return list(await pool.fetch(*bounded(statement, within, *values, *place, limit)))
    rows: list[Record] = []
    for window in await _windows_of(pool, place, within, run_id, newest=newest):
        text, *given = bounded(statement, within, *values, *place, limit - len(rows))
        rows += await pool.fetch(*windowed(text, window, *given))
        if len(rows) == limit:
            break
        if window is not None:
            place = (window.shard, window.first if newest else window.last)
    return rows


def _of_rows(given: Given) -> Reach:
    return Reach(sessions={packet.session_id for packet in given["packets"]})


def _of_conflicts(given: Given) -> Reach:
    """Conflicts name packets that no session may have: without a session any segment may hold one."""
    if given["session_id"] is None:
        if given["packet_id"] is None:
            return Reach(sessions=())
        return Reach(packets=[given["packet_id"]], is_everywhere=True)
    return Reach(sessions=[given["session_id"]])


@reads(of_page)
async def trace(
    pool: asyncpg.Pool,
    *,
    limit: int = 100,
    with_events: bool = True,
    after: Position | None = None,
    **filters: Unpack[TraceFilters],
) -> TracePage:
    """Return one page of packets that match every filter, oldest first; `trace_id` is the root packet's id.

    `limit` is the largest number of packets; go on with `after=page.after` until that is None.
    """
    rows = await list_agent_packets(pool, limit=limit, after=after, **filters)
    packets: list[PacketTimeline] = []
    for _, of_shard in groupby(rows, lambda row: row.shard):
        packets += await _timelines(pool, list(of_shard), with_events)
    return TracePage(tuple(packets), rows[-1].position if len(rows) == limit else None)


async def _timelines(pool: asyncpg.Pool, rows: Sequence[PacketRow], with_events: bool) -> list[PacketTimeline]:
    """Return what became of packets of one shard, which are in the order of the log."""
    named = [(row.session_id, row.packet_id) for row in rows]
    bounds = await range_of(pool, [row.position for row in rows], named)
    states = await _states_of(pool, rows, bounds)
    stale = await stale_packets(pool, rows, bounds)
    transitions = await transitions_of(pool, rows, bounds) if with_events else []
    steps: dict[tuple[str, UUID], list[TransitionRow]] = {}
    for row in transitions:
        steps.setdefault((row.session_id, row.packet_id), []).append(row)
    effects = await effects_of(pool, named, bounds) if with_events else {}
    return [
        PacketTimeline(row, state, tuple(steps.get(key, ())), stale.get(key), tuple(effects.get(key, ())))
        for row, state in zip(await opened_bodies(pool, rows), states, strict=True)
        for key in [(row.session_id, row.packet_id)]
    ]


@reads(of_page)
async def list_agent_packets(
    pool: asyncpg.Pool, *, limit: int = 100, after: Position | None = None, **filters: Unpack[TraceFilters]
) -> list[PacketRow]:
    """Return packets that match every filter, in the order of the log, after `after`."""
    session_id, packet_id = filters.get("session_id"), filters.get("packet_id")
    bounds = None if session_id is None else await read_range(pool, [session_id])
    if packet_id is None:
        run_id = filters.get("run_id")
        records = await read_page(*traced(filters), pool, after, limit, within=bounds, run_id=run_id)
        return [to_row(PacketRow, record) for record in records]
    # Ids stand in a narrow table with an index: from there each packet is read where it stands.
    places = await pool.fetch(*bounded(_IDS, bounds, packet_id, session_id, *(after or BEGINNING)))
    statement, values = traced({**filters, "packet_id": None})
    rows: list[PacketRow] = []
    for shard, seq in places:
        if len(rows) < limit:
            records = await pool.fetch(*bounded(statement, LogRange(shard, seq, seq), *values, shard, seq - 1, 1))
            rows += [to_row(PacketRow, record) for record in records]
    return rows


@reads(of_given)
async def list_packet_events(
    pool: asyncpg.Pool, packet_id: UUID, *, session_id: str | None = None
) -> list[TransitionRow]:
    """Return the transitions of one packet, in order; of all sessions that know the id when none is given."""
    packets = await list_agent_packets(pool, packet_id=packet_id, session_id=session_id)
    return await transitions_of(pool, packets)


@reads(of_given)
async def get_packet_timeline(
    pool: asyncpg.Pool, packet_id: UUID, *, session_id: str | None = None
) -> PacketTimeline | None:
    """Return one packet with its state and transitions; None if the log does not have it."""
    page = await trace(pool, packet_id=packet_id, session_id=session_id, limit=1)
    return page.packets[0] if page.packets else None


@reads(_of_rows)
async def transitions_of(
    pool: asyncpg.Pool, packets: Sequence[PacketRow], bounds: LogRange | None = None
) -> list[TransitionRow]:
    """Return the transitions of these packets, in the order of the log."""
    if not packets:
        return []
    sessions = [packet.session_id for packet in packets]
    ids = [packet.packet_id for packet in packets]
    return [to_row(TransitionRow, record) for record in await pool.fetch(*bounded(TRANSITIONS, bounds, sessions, ids))]


@reads(of_places)
async def names_cited(pool: asyncpg.Pool, place: Position) -> Sequence[str]:
    """Return what a packet refers to: `packet:ID`, hashes of artifacts, protocols."""
    return await pool.fetchval(_REFERS_TO, *place) or ()


@reads(_of_rows)
async def stale_packets(
    pool: asyncpg.Pool, packets: Sequence[PacketRow], bounds: LogRange | None = None
) -> dict[tuple[str, UUID], Staleness]:
    """Return why packets are stale, by session and packet; those that are not are left out."""
    sessions, ids = [packet.session_id for packet in packets], [packet.packet_id for packet in packets]
    return {
        (row["session_id"], row["packet_id"]): Staleness(
            row["because_packet_id"], row["retraction_packet_id"], row["marked_at"]
        )
        for row in await pool.fetch(*bounded(STALE, bounds, sessions, ids))
    }


@reads(_of_conflicts)
async def list_conflicts(
    pool: asyncpg.Pool, *, session_id: str | None, packet_id: UUID | None, limit: int
) -> list[ConflictRow]:
    """Return the first conflicts of a session, of a packet id, or of both; nothing when neither is given."""
    if session_id is not None:
        bounds = await read_range(pool, [session_id])
        rows = await pool.fetch(*bounded(CONFLICTS_OF_SESSION, bounds, session_id, packet_id, limit))
    elif packet_id is not None:
        rows = await pool.fetch(CONFLICTS_OF_PACKET, packet_id, limit)
    else:
        rows = []
    return [to_row(ConflictRow, row) for row in rows]


async def _states_of(pool: asyncpg.Pool, packets: Sequence[PacketRow], bounds: LogRange | None) -> list[str]:
    """Return the states of packets of one shard, which are in the order of the log."""
    shard, numbers = packets[0].shard, [packet.seq for packet in packets]
    text, *values = bounded(STATES, bounds, shard, numbers)
    window = LogRange(shard, numbers[0], numbers[-1])
    return [record[0] for record in await pool.fetch(*windowed(text, window, *values))]


# Effects that the handlers of packets made outside the bus: entries of their workers and of operators.

# The packets are looked up one by one, by the unique index of the hops; a session by its own.
_EFFECT_COLUMNS = """
hop.shard, hop.seq, hop.session_id, hop.packet_id, hop.recipient AS agent_id, hop.actor,
       hop.occurred_at[1] AS at, hop.metadata ->> 'effect' AS effect
"""
EFFECTS_OF_PACKETS = f"""
SELECT {_EFFECT_COLUMNS} FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE hop.attempt < 0 /*within hop*/ ORDER BY hop.shard, hop.seq
"""
EFFECTS_OF_SESSION = f"""
SELECT {_EFFECT_COLUMNS} FROM apc_log.packet_events AS hop WHERE hop.session_id = $1 AND hop.attempt < 0 /*within hop*/
ORDER BY hop.shard, hop.seq
"""
EFFECTS_OF_PACKET = f"""
SELECT {_EFFECT_COLUMNS} FROM apc_log.packet_ids AS known
JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE known.packet_id = $1 AND hop.attempt < 0 ORDER BY hop.shard, hop.seq
"""


@reads(of_given)
async def session_effects(pool: asyncpg.Pool, session_id: str) -> list[LoggedEffect]:
    """Return the effects of a session, in the order in which they were first reported."""
    bounds = await read_range(pool, [session_id])
    return _effects_in(map(_effect_row, await pool.fetch(*bounded(EFFECTS_OF_SESSION, bounds, session_id))))


@reads(of_given)
async def packet_effects(pool: asyncpg.Pool, packet_id: UUID) -> list[LoggedEffect]:
    """Return the effects that were made for a packet; of all sessions that know the id."""
    return _effects_in(map(_effect_row, await pool.fetch(EFFECTS_OF_PACKET, packet_id)))


@reads(lambda given: Reach(sessions={session for session, _ in given["packets"]}))
async def effects_of(
    pool: asyncpg.Pool, packets: Collection[tuple[str, UUID]], bounds: LogRange | None = None
) -> dict[tuple[str, UUID], list[LoggedEffect]]:
    """Return the effects that were made for these packets, by session and packet."""
    if not packets:
        return {}
    sessions, ids = zip(*packets, strict=True)
    rows: dict[tuple[str, UUID], list[EffectRow]] = {}
    for row in map(_effect_row, await pool.fetch(*bounded(EFFECTS_OF_PACKETS, bounds, list(sessions), list(ids)))):
        rows.setdefault((row.session_id, row.packet_id), []).append(row)
    return {packet: _effects_in(found) for packet, found in rows.items()}


def _effects_in(rows: Iterable[EffectRow]) -> list[LoggedEffect]:
    found: dict[tuple[UUID, str, str], LoggedEffect] = {}
    for row in rows:
        place = (row.packet_id, row.agent_id, row.key)
        found.setdefault(place, LoggedEffect(*place)).entries.append(row)
    return list(found.values())


def _effect_row(record: asyncpg.Record) -> EffectRow:
    said: dict[str, Any] = orjson.loads(record["effect"])
    names: Sequence[str] = ("shard", "seq", "session_id", "packet_id", "agent_id", "actor", "at")
    return EffectRow(
        **{name: record[name] for name in names},
        key=said["key"],
        claim=UUID(said["claim"]),
        entry=said["entry"],
        attempt=said["attempt"],
        digest=said.get("digest"),
        reference=said.get("reference"),
        note=said.get("note"),
    )
