"""What `apc doctor` says of sessions that a change of the number of shards has torn apart, and of open ones."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, ScriptedGate, packet_entry, session_row

from apc_bus.database import open_pool
from apc_bus.errors import ShardsDiffer
from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_cli.doctor.finding import Status
from apc_cli.doctor.log import look_at_places
from apc_contracts.identity.ids import shard_of
from apc_log.placement import check_places, misplaced, move_shard, number_of, objection_to

names = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30, unique=True)


numbers = st.sampled_from([1, 2, 4, 8, 16])


@given(names, numbers, numbers)
def test_open_sessions_tell_the_number_that_placed_them(sessions: list[str], opened: int, now: int) -> None:
    places = {session_id: shard_of(session_id, opened) for session_id in sessions}
    fitting = number_of(places)
    assert fitting is not None and misplaced(places, fitting) == [] and fitting <= opened
    if misplaced(places, now):
        with pytest.raises(ShardsDiffer, match=rf"such as APC_SHARDS={fitting}\. Set it back"):
            check_places(places, now)
    else:
        assert check_places(places, now) == []


def torn(*numbers: int) -> dict[str, int]:
    """Sessions that were opened by several numbers of shards, so that no number fits them."""
    places = {
        f"s-{number}-{index}": shard_of(f"s-{number}-{index}", number) for number in numbers for index in range(30)
    }
    assert number_of(places) is None
    return places


def test_what_no_number_fits_is_no_reason_to_stop() -> None:
    """Else a log that an earlier release has torn apart could never be served again."""
    places = torn(4, 3)
    assert check_places(places, 4) == misplaced(places, 4) != []


@pytest.mark.parametrize("shards", [1, 2])
def test_a_number_that_leaves_open_sessions_without_a_gate_is_refused(shards: int) -> None:
    """Nobody would fire their timers, so nothing would ever end them."""
    places = torn(4, 3)
    lost = sum(shard >= shards for shard in places.values())
    with pytest.raises(ShardsDiffer, match=rf"{lost} open sessions, .* without a gate.*at least APC_SHARDS=4 until"):
        check_places(places, shards)


def is_served(places: dict[str, int], shards: int) -> bool:
    """Whether gates start with this number; 0 = there is none."""
    try:
        return shards > 0 and check_places(places, shards) is not None
    except ShardsDiffer:
        return False


@given(names, st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from([0, 1, 2, 4, 8]))
def test_there_is_always_a_number_that_serves_open_sessions_and_may_be_set(
    sessions: list[str], opened: list[int], now: int
) -> None:
    places = {name: shard_of(name, opened[index % len(opened)]) for index, name in enumerate(sessions)}
    tried = {1, 2, 4, 8, number_of(places) or 1}
    allowed = [shards for shards in tried if objection_to(places, now, shards) is None]
    assert all(is_served(places, shards) for shards in allowed), "what may be set can be served"
    if is_served(places, now):
        assert not any(misplaced(places, shards) for shards in allowed), "nothing gets worse"
    else:
        assert allowed, "there is a way out"


def test_an_objection_names_the_way_out() -> None:
    places = {"a": shard_of("a", 4), "b": shard_of("b", 4), "c": shard_of("c", 4), "d": shard_of("d", 4)}
    fitting = number_of(places)
    assert fitting is not None and fitting > 1
    for now in (0, 1):
        assert f"set APC_SHARDS={fitting} until" in str(objection_to(places, now, fitting // 2))
    assert "`apc session stop`" in str(objection_to(places, fitting, 1))
    assert "set at least APC_SHARDS=4 until" in str(objection_to(torn(4, 3), 0, 2))


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    opened = await open_pool(postgres_url, max_size=4)
    yield opened
    await opened.close()


async def test_torn_sessions_are_named(pool: asyncpg.Pool) -> None:
    broker = InMemoryBroker(build_topology(2))
    bus = broker.connect("orchestrator")
    bench = LogBench(ScriptedGate(bus), broker.connect("persister"), pool, PersisterSettings(shards=2))
    other = ScriptedGate(bus, 1)
    whole, torn = packet_entry(session_id="whole"), packet_entry(session_id="torn")
    refused = packet_entry(session_id="whole", refusal_code="UNKNOWN_SESSION")
    await bench.gate.open()
    await other.open()
    await bench.gate.log([whole, torn], [session_row("whole", state="CLOSED"), session_row("torn")])
    await bench.write()
    findings = await look_at_places(pool, 2)
    assert all("two shards" not in one.finding for one in findings), "nothing is torn yet"
    await other.log([packet_entry(session_id="torn"), refused], [session_row("torn")])
    await bench.write()
    [found] = [one for one in await look_at_places(pool, 2) if "two shards" in one.finding]
    assert found.status is Status.WRONG
    assert found.finding.startswith("1 session with entries in two shards, 1 of them open (torn): the number")
    assert "apc session stop" in found.fix and "apc log verify" in found.fix


async def test_misplaced_sessions_are_named_with_the_way_out(pool: asyncpg.Pool) -> None:
    """A paused one has no deadline that ends it."""
    broker = InMemoryBroker(build_topology(2))
    bus = broker.connect("orchestrator")
    bench = LogBench(ScriptedGate(bus), broker.connect("persister"), pool, PersisterSettings(shards=2))
    gates = (bench.gate, ScriptedGate(bus, 1))
    for shard, gate in enumerate(gates):
        names = [name for name in map("s-{}".format, range(40)) if shard_of(name, 2) != shard]
        await gate.open()
        await gate.log([packet_entry(session_id=name) for name in names], [session_row(name) for name in names])
        await bench.write()
    [found] = await look_at_places(pool, 2)
    assert found.finding.startswith("no number of shards fits the open sessions; with APC_SHARDS=2 the gates take no")
    assert "`apc session stop`" in found.fix and "a paused one does not have" in found.fix


async def test_a_shard_that_was_given_and_not_taken_is_named(pool: asyncpg.Pool) -> None:
    broker = InMemoryBroker(build_topology())
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    await bench.gate.open()
    await bench.gate.log([packet_entry(session_id="s")], [session_row("s")])
    await bench.write()
    assert [one.status for one in await look_at_places(pool, 1)] == [Status.OK]
    await move_shard(pool, 0, "gate-9")
    [found] = await look_at_places(pool, 1)
    assert found.status is Status.WARNING and "given to gate-9 and not taken" in found.finding
    assert "start gate-9" in found.fix and "`apc shard free 0`" in found.fix
    await move_shard(pool, 0, None)
    assert [one.status for one in await look_at_places(pool, 1)] == [Status.OK]


def test_moving_a_shard_without_a_broker_says_why_there_is_nothing_to_move(tmp_path: Path) -> None:
    done = ApcCommand(tmp_path)("shard", "move", "0", "--to", "gate-1", given={"APC_DATABASE_URL": "postgresql:///x"})
    assert done.returncode == 2 and "set APC_AMQP_URL" in done.stderr
    assert "one process, which has every shard" in " ".join(done.stderr.split())
