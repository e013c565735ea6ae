"""What `apc doctor` says of sessions that a change of the number of shards has torn apart, and of open ones."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log import LogBench, ScriptedGate, packet_entry, session_row

from apc_bus.database import open_pool
from apc_bus.errors import ShardsDiffer
from apc_bus.memory import MemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_console.doctor.finding import Status
from apc_console.doctor.shards import look_at_places
from apc_contracts.identity.ids import shard_of
from apc_log.sessions.placement import check_places, misplaced, number_of

names = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30, unique=True)


@given(names, st.integers(1, 12), st.integers(1, 12))
def test_open_sessions_tell_the_number_that_placed_them(sessions: list[str], opened: int, now: int) -> None:
    places = {session_id: shard_of(session_id, opened) for session_id in sessions}
    fitting = number_of(places)
    assert fitting is not None and misplaced(places, fitting) == [] and fitting <= opened
    if misplaced(places, now):
        with pytest.raises(ShardsDiffer, match=rf"such as APC_SHARDS={fitting}\. Set it back"):
            check_places(places, now)
    else:
        assert check_places(places, now) == []


def test_what_no_number_fits_is_no_reason_to_stop() -> None:
    """Else a log that an earlier release has torn apart could never be served again."""
    here, there = shard_of("a", 2), shard_of("a", 2) + 2
    places = {"a": here, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1, "g": 1, "h": there}
    places |= {str(number): number % 2 for number in range(40)}
    assert number_of(places) is None
    assert check_places(places, 2) == misplaced(places, 2) != []


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    opened = await open_pool(postgres_url, max_size=4)
    yield opened
    await opened.close()


async def test_torn_sessions_are_named(pool: asyncpg.Pool) -> None:
    broker = MemoryBroker(build_topology(2))
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
