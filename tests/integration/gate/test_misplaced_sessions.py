"""Sessions in another shard than their id has now: an operator still reaches them, and nothing of them is lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from tests.integration.conftest import House
from tests.support.traffic import SESSION, ScriptedAgents, until

from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import build_topology
from apc_cli.commands.dead_letter import Filter, settle_dead
from apc_cli.commands.session_control import signal_session
from apc_cli.errors import InputUnusable
from apc_contracts.identity.ids import shard_of
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_orchestrator import service

PLACES = "SELECT DISTINCT shard FROM apc_log.agent_packets WHERE session_id = $1"
ANY = Filter()


@pytest.fixture
def shards() -> int:
    """The later number."""
    return 4


@pytest.fixture
async def moved(house: House, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """A house whose number of shards was 1 when its session was opened, as release 0.1.0 let it change."""
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setattr(service, "check_places", lambda sessions, shards: [])
    assert shard_of(SESSION, 4) != shard_of(SESSION, 1)
    yield house
    assert [row["shard"] for row in await house.pool.fetch(PLACES, SESSION)] == [0], "all of it is in one shard"


@asynccontextmanager
async def served(house: House, shards: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Everything at work with this number."""
    house.shards, house.agents = shards, ScriptedAgents(house.agents.bus, shards=shards)
    monkeypatch.setenv("APC_SHARDS", str(shards))
    await apply_rabbit(house.settings.amqp_url.get_secret_value(), build_topology(shards))
    async with house.persister(), house.gate():
        yield


@pytest.mark.long
async def test_a_paused_one_resumes_and_stops(moved: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline ends it while it is paused."""
    async with served(moved, 1, monkeypatch):
        await moved.open_session()
    async with served(moved, 4, monkeypatch):
        assert (await signal_session(SESSION, Signal.PAUSE, None, None)).startswith("paused in ")
        assert not (await signal_session(SESSION, Signal.RESUME, None, None)).startswith("paused in ")
        assert await signal_session(SESSION, Signal.STOP, None, None) in ("CLOSED", "HALTED")


@pytest.mark.long
async def test_its_dead_letters_are_requeued_and_discarded(moved: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(moved, 1, monkeypatch):
        await moved.open_session()
        first, second = await moved.dead_letter("blue-1"), await moved.dead_letter("sentinel")
    async with served(moved, 4, monkeypatch):
        (again,) = await settle_dead(ReceiptKind.REQUEUE, [str(first.packet_id)], ANY)
        assert (again["state"], again["attempt"]) == ("ROUTED", 2)
        (delivery,) = await moved.agents.receive("blue-1")
        assert UUID(delivery.message.message_id) == first.packet_id
        (rested,) = await settle_dead(ReceiptKind.DISCARD, [str(second.packet_id)], ANY)
        assert rested["state"] == "ARCHIVED"


async def test_a_dead_letter_in_a_shard_that_is_no_more_is_named(
    house: House, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    async with house.persister(), house.gate():
        await house.open_session()
        dead = await house.dead_letter("blue-1")
        monkeypatch.setenv("APC_SHARDS", "2")
        for kind in (ReceiptKind.REQUEUE, ReceiptKind.DISCARD):
            with pytest.raises(InputUnusable, match="in shard 2 of the log, which nobody serves with APC_SHARDS=2"):
                await settle_dead(kind, [str(dead.packet_id)], ANY)
            assert await settle_dead(kind, [], ANY, is_all=True) == []
        monkeypatch.setenv("APC_SHARDS", "4")
        await settle_dead(ReceiptKind.DISCARD, [str(dead.packet_id)], ANY)
        await until(house.has_come_to("ARCHIVED", dead.packet_id, "blue-1"))
