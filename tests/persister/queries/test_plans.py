"""Statements that name a session read its range of the log alone: other partitions of a divided log are passed over."""

import importlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest
from msgspec.structs import replace
from tests.persister.database.test_statements import _statements
from tests.support.log import LogBench, ScriptedGate, coordination, divide, hop, lifecycle, packet_entry, session_row
from tests.support.log.answers import comparable

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_contracts.contract.contract import load_contract
from apc_log.heads import LogRange, bounded, read_range
from apc_log.queries import (
    Position,
    list_agent_packets,
    list_conflicts,
    list_held_packets,
    replay,
    session_effects,
    trace,
)
from apc_log.queries.agents import list_invocations
from apc_log.queries.arbitrations import candidate_origins
from apc_log.queries.dead import delivery_history, list_dead, packet_places
from apc_log.queries.failures import failures_of
from apc_log.queries.outcomes import find_done, list_answers, list_reviews, states_entered
from apc_log.queries.packet_pages import lines_at, page_of_packets
from apc_log.queries.packets import PacketRow, to_row, traced
from apc_log.queries.questions import list_answered, read_verdicts
from apc_log.queries.session_pages import count_ranges, extent_of, last_entry, page_of_moves, session_figures
from apc_log.queries.surroundings import count_refusals, read_log_doubts
from apc_persister.follower import Follower

PARTITIONED = (
    "agent_packets",
    "packet_events",
    "packet_lineage",
    "coordination_events",
    "packet_conflicts",
    "packet_ids",
)
PARTS = 4
SEGMENT = 256
_ANY = f"(?:{'|'.join(PARTITIONED)})"
READ = re.compile(rf"apc_log\.({_ANY}|packets|packet_transitions|packet_stale|packet_states?)\b")
NAMES_A_SESSION = re.compile(r"session_id")
VALUES = {
    "text": "session-2",
    "uuid": None,
    "int4": 0,
    "int8": 1,
    "timestamptz": datetime.now(UTC),
    "bool": True,
    "float8": 0.5,
    "interval": None,
    "jsonb": "{}",
    "bytea": b"",
}


async def fill(bench: LogBench, steps: int = 5) -> None:
    """Write four sessions, one behind the other, of eight entries a step; what is refused and held is among them."""
    await bench.gate.open()
    for number in range(4):
        name = f"session-{number}"
        for step in range(1, steps + 1):
            packet = packet_entry(session_id=name, run_id=f"run-{number}", recipients=("a", "b"))
            refused = packet_entry(session_id=name, run_id=f"run-{number}", refusal_code="QUOTA_EXCEEDED")
            moved = coordination(packet, step, "research_briefs_dispatched", "SESSION_OPEN", "DISCOVERY")
            claim = (
                b'{"effect": {"key": "k", "claim": "%s", "entry": "claimed", "attempt": 1}}'
                % str(packet.packet_id).encode()
            )
            effect = hop(packet, ["effect"], "", "", "a", -1, claim)
            died = hop(packet, ["delivery_fail"], "APPLIED", "DEAD_LETTERED", "b", 2, b'{"error": "handler_error"}')
            await bench.gate.log(
                [packet, *lifecycle(packet), effect, died, refused, moved],
                [replace(session_row(name, step=step), run_id=f"run-{number}")],
            )
    await bench.write()
    await Follower(bench.pool).catch_up()


@pytest.fixture
async def divided(bench: LogBench, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A log of four sessions in four segments of one shard."""
    connection = await asyncpg.connect(postgres_url)
    await divide(connection, entries=SEGMENT, segments=PARTS)
    await fill(bench, steps=SEGMENT // 8)
    await connection.execute("ANALYZE")
    yield connection
    await connection.close()


def value(parameter: asyncpg.Type, packet_id: Any) -> Any:
    """Return some value of a parameter's type: a plan is wanted, no result."""
    name = parameter.name.removesuffix("[]").removeprefix("_")
    one = packet_id if name == "uuid" else VALUES[name]
    return [one] if parameter.kind == "array" else one


async def partitions(connection: asyncpg.Connection, statement: str, bounds: LogRange | None) -> set[int]:
    """Return the partitions that the plan of a statement reads."""
    filled = await connection.prepare(statement)
    packet_id = await connection.fetchval(
        "SELECT packet_id FROM apc_log.packet_ids WHERE session_id = 'session-2' LIMIT 1"
    )
    given = [value(parameter, packet_id) for parameter in filled.get_parameters()]
    text, *values = bounded(statement, bounds, *given)
    plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {text}", *values)
    return {int(first) // SEGMENT for first in re.findall(rf'"Relation Name": "{_ANY}_0_(\d+)"', plan)}


PASSED_ON = {f"apc_log.queries.replay.{name}" for name in ("_PACKETS", "_HOPS_OF_SESSION", "_TRANSITIONS")}
"""Their bounds are given where they are read, under another name."""


def _is_given_bounds(name: str) -> bool:
    module, constant = name.rsplit(".", 1)
    source = inspect.getsource(importlib.import_module(module))
    return re.search(rf"bounded\(\s*{constant}\b", source) is not None or name in PASSED_ON


BOUNDED = {
    name: statement for name, statement in _statements() if "/*within " in statement and _is_given_bounds(name)
} | {"traced by session": traced({"session_id": "session-2"})[0]}


async def test_plans_read_the_partitions_of_the_session_alone(divided: asyncpg.Connection) -> None:
    bounds = await read_range(divided, ["session-2"])
    assert bounds is not None
    own = {(seq - 1) // SEGMENT for seq in (bounds.first, bounds.last)}
    assert len(own) < PARTS
    beyond = {}
    for name, statement in BOUNDED.items():
        # What a packet at a place rests on begins at that place, whose partition the values above name.
        if (
            read := await partitions(divided, statement, bounds)
            - own
            - ({0} if "packet.seq = $2" in statement else set())
        ):
            beyond[name] = read
    assert beyond == {}


async def test_without_bounds_every_partition_is_read(divided: asyncpg.Connection) -> None:
    """What the test above would miss if plans passed over partitions anyway."""
    everywhere = [name for name, text in BOUNDED.items() if await partitions(divided, text, None) >= set(range(PARTS))]
    assert len(everywhere) > len(BOUNDED) // 2


def test_each_statement_that_names_a_session_has_bounds() -> None:
    """A new one needs them, or a line in `UNBOUNDED`."""
    found = {
        name
        for name, statement in _statements()
        if READ.search(statement) and NAMES_A_SESSION.search(statement) and name not in BOUNDED
    }
    assert found - UNBOUNDED - LATER == set(), "give it bounds (apc_log.heads.bounded)"
    assert (UNBOUNDED | LATER) - found == set(), "it has bounds now, or is no more"


async def readings(pool: asyncpg.Pool) -> list[Any]:
    """What is read of a session, by everything that reads bounds."""
    place: Any = SimpleNamespace(session_id="session-2", shard=0)  # the scripted gate writes no documents
    dead = await list_dead(pool, session_id="session-2")
    assert len(dead) == 5
    places = list((await packet_places(pool, [one.id for one in dead])).values())
    origins = [("session-2", one.packet_id) for one in dead]
    return [
        await trace(pool, session_id="session-2"),
        await trace(pool, run_id="run-2", limit=3),
        [row async for row in replay(pool, "run-2")],
        await list_conflicts(pool, session_id="session-2", packet_id=None, limit=10),
        await list_held_packets(pool, "session-2"),
        await session_effects(pool, "session-2"),
        await extent_of(pool, "session-2", 0),
        await last_entry(pool, "session-2", 0),
        await page_of_moves(pool, "session-2"),
        await session_figures(pool, place),
        await count_refusals(pool, "session-2"),
        await read_log_doubts(pool, "session-2"),
        dead,
        places,
        await delivery_history(pool, dead[0].id),
        await failures_of(pool, dead, looks_back=True),
        await lines_at(pool, places),
        await candidate_origins(pool, origins),
        await states_entered(pool, "session-2"),
        await find_done(pool, "session-2", None),
        await list_reviews(pool, "session-2", dead[0].packet_id),
        await list_answers(pool, "session-2"),
        await list_answered(pool, session_id="session-2"),
        await read_verdicts(pool, "session-2", dead[0].packet_id, "sender-1", "nobody"),
        await list_invocations(pool, load_contract(), "receiver-1"),
        await count_ranges(pool, "session-2", 0, after=0, last=10_000, width=7),
    ]


async def test_bounds_change_no_result(bench: LogBench) -> None:
    await fill(bench)
    assert await read_range(bench.pool, ["session-2"]) is not None
    within = await readings(bench.pool)
    await bench.pool.execute("UPDATE apc_log.shards SET bounded_seq = 0")
    assert await read_range(bench.pool, ["session-2"]) is None
    assert [*map(comparable, within)] == [*map(comparable, await readings(bench.pool))]
    assert len(within[0].packets) == 10
    # As if entries of another shard named them.
    await bench.pool.execute("UPDATE apc_log.sessions SET first_seq = 0")
    assert [*map(comparable, within)] == [*map(comparable, await readings(bench.pool))]


_LOCKED = """
SELECT DISTINCT class.relname FROM pg_locks JOIN pg_class AS class ON class.oid = relation
WHERE pid = pg_backend_pid() AND class.relkind = 'r' AND class.relname ~ '^agent_packets_0_'
"""


async def segments_of(connection: asyncpg.Connection, reading: Callable[[asyncpg.Pool], Awaitable[object]]) -> set[int]:
    """Return the segments whose packets a reading has planned or read: it holds a lock on each."""
    async with connection.transaction(readonly=True):
        assert await reading(cast(asyncpg.Pool, connection))
        return {int(row["relname"].rpartition("_")[2]) // SEGMENT for row in await connection.fetch(_LOCKED)}


async def test_pages_read_the_segments_that_they_need(divided: asyncpg.Connection) -> None:
    """A page looks at one segment, then at two more, and stops where it is full; an id leads to its packet."""
    own = await read_range(divided, ["session-2"])
    assert own is not None
    last = (own.last - 1) // SEGMENT
    row = await divided.fetchrow("SELECT packet_id, seq FROM apc_log.packet_ids WHERE session_id = 'session-2' LIMIT 1")
    middle = Position(0, 2 * SEGMENT)
    plain = traced({})[0]
    assert await segments_of(divided, lambda one: one.fetch(plain, -1, 0, 10)) >= set(range(PARTS))
    assert await segments_of(divided, lambda one: list_agent_packets(one, limit=10)) == {0}
    assert await segments_of(divided, lambda one: list_agent_packets(one, limit=10, after=middle)) == {2}
    assert await segments_of(divided, lambda one: list_agent_packets(one, packet_id=row["packet_id"])) == {
        (row["seq"] - 1) // SEGMENT
    }
    assert await segments_of(divided, lambda one: trace(one, limit=10)) == {0}
    assert await segments_of(divided, lambda one: trace(one, run_id="run-2", limit=10)) <= set(range(last + 1))
    for given in ({}, {"sender": "sender-1", "run_id": "run-3"}):
        page = partial(page_of_packets, given=given, newest=True, after=None, limit=10)
        assert await segments_of(divided, page) <= {PARTS - 2, PARTS - 1, PARTS}  # few entries are in the last one


async def test_a_page_of_a_run_passes_over_the_shards_of_others(pool: asyncpg.Pool, postgres_url: str) -> None:
    broker = InMemoryBroker(build_topology(2))
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    bench.settings = PersisterSettings(shards=2)
    for shard in range(2):
        gate = ScriptedGate(bench.gate.bus, shard)
        await gate.open()
        await gate.log([packet_entry(session_id=f"s-{shard}", run_id=f"run-{shard}") for _ in range(5)])
    await bench.write()
    page = partial(list_agent_packets, run_id="run-1", limit=3)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DELETE FROM apc_log.followed; DELETE FROM apc_log.run_blocks")
    assert await segments_of(connection, page) == {0}, "what is not looked through yet is read"
    before = await page(pool)
    await Follower(pool).catch_up()
    assert await segments_of(connection, page) == set()
    assert await page(pool) == before and len(before) == 3
    await connection.close()


async def test_pages_find_the_same_in_many_ranges_as_in_one(divided: asyncpg.Connection) -> None:
    pool = cast(asyncpg.Pool, divided)
    everything = [to_row(PacketRow, row) for row in await divided.fetch(traced({})[0], -1, 0, 1000)]
    assert len(everything) > 200
    assert await list_agent_packets(pool, limit=1000) == everything
    for newest, rows in ((False, everything), (True, everything[::-1])):
        for given in ({}, {"run_id": "run-2"}, {"verdict": "refused"}, {"packet_type": "IDEA", "run_id": "run-1"}):
            fitting = [
                (row.shard, row.seq)
                for row in rows
                if all(getattr(row, name) == wanted for name, wanted in given.items())
            ]
            found: list[tuple[int, int]] = []
            after = None
            while page := await page_of_packets(pool, given, newest=newest, after=after, limit=37):
                after = Position(page[-1].shard, page[-1].seq)
                found += [(row.shard, row.seq) for row in page]
            assert found == fitting, (given, newest)


UNBOUNDED = {
    f"apc_{name}"
    for name in """
log.heads._OF_SESSIONS log.heads._PACKETS_AT log.heads._RUN_PACKETS log.heads._SESSIONS_OF_PACKETS
log.placement._SPLIT log.queries.activity._LATEST log.queries.agents.OPEN log.queries.agents._CAUSES
log.queries.agents._LEFT_BEHIND
log.queries.dead.STATES log.queries.health._BY_REASON log.queries.lineage._ROOT log.queries.news._LATE_HEARTBEATS
log.queries.news._REFUSED log.queries.packet_pages._AT log.queries.packet_pages._SESSIONS_OF
log.queries.packets.CONFLICTS_OF_PACKET log.queries.packets.EFFECTS_OF_PACKET log.queries.replay._SESSIONS
log.queries.replay._SESSIONS_OF_RUN log.queries.session_pages._MOVED log.queries.session_pages._MOVING
log.queries.session_pages._PACKETS log.queries.sessions._MOVES log.queries.sessions._PACKETS
log.queries.sessions._PAST_TRIALS log.queries.sessions._TRANSFER_ENDS log.queries.summary.ARBITRATIONS
log.queries.summary.IMPORTED log.queries.summary.LIFT log.queries.summary.MEASURED log.queries.troubles._OCCURRENCES
log.session_loading.DENIED persister.archiving._IDS persister.encryption._FORGET persister.evidence.documents._OF_A_RUN
persister.transaction._HOPS
persister.transaction._IDS persister.transaction._LINEAGE persister.transaction._TRANSITIONS
persister.evidence.documents._PLACES persister.rebuild._ADD_ID persister.rebuild._MISSING_IDS
""".split()
}
"""They name a place, a part of a shard, a run, packets of any session, or everything."""
LATER = {
    f"apc_{name}"
    for name in """
log.session_loading.PRESENCE_IDENTITIES log.session_loading.UNKNOWN_SESSION_IDENTITIES
""".split()
}
"""They name sessions that have no range, or packets of many sessions, and read every partition still."""
