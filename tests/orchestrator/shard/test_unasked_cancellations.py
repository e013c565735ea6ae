"""A library that cancels a gate's calls ends no gate: the shard is taken again, or the process ends with an error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.orchestrator.conftest import House

from apc_bus.errors import BusError, CallAborted, TaskEnded
from apc_bus.in_memory import InMemoryBus, InMemorySubscription
from apc_bus.topology import DEAD_QUEUE, gate_queue, log_queue
from apc_contracts import Packet
from apc_orchestrator import Orchestrator, OrchestratorSettings
from apc_orchestrator import service as orchestrator_service
from apc_orchestrator.gate import Gate
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.shard.shard_server import ShardServer
from apc_orchestrator.verification import Verifier


class Strike:
    """Replaces a coroutine method by one whose first two calls end as aiormq ends them."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, method: str, user: str | None = None) -> None:
        self._call = getattr(owner, method)
        self._user = user
        self.calls = 0
        patch.setattr(owner, method, lambda *given, **named: self._strike(*given, **named))

    async def _strike(self, *given: Any, **named: Any) -> Any:
        if self._user is None or given[0].user == self._user:
            self.calls += 1
            if self.calls <= 2:
                raise asyncio.CancelledError
        return await self._call(*given, **named)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (InMemoryBus, "depth"),
        (InMemoryBus, "publish"),
        (InMemoryBus, "publish_all"),
        (InMemorySubscription, "receive"),
        (InMemorySubscription, "publish"),
        (InMemorySubscription, "ack"),
        (Registry, "load"),
        (ShardServer, "serve"),
        (Verifier, "run"),
    ],
)
async def test_a_gate_whose_calls_are_cancelled_takes_its_shard_again(
    house: House, start: Callable[..., Packet], monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    strike = Strike(monkeypatch, owner, method, "orchestrator" if owner is InMemoryBus else None)
    async with house.persister(), house.gate() as gate:
        await house.open(start())
        await house.until(lambda: _is_ready(gate))
    assert strike.calls > 2, "not exercised"


async def test_a_subscription_that_is_cancelled_is_opened_again(
    house: House, start: Callable[..., Packet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For gate, log writer and dead letters alike."""
    subscribe, calls = InMemoryBus.subscribe, list[str]()

    @asynccontextmanager
    async def cancelled(bus: InMemoryBus, queue: str, **given: Any) -> AsyncIterator[Any]:
        calls.append(queue)
        if calls.count(queue) <= 2:
            raise asyncio.CancelledError
        async with subscribe(bus, queue, **given) as subscription:
            yield subscription

    monkeypatch.setattr(InMemoryBus, "subscribe", cancelled)
    async with house.persister(), house.gate() as gate:
        await house.open(start())
        await house.until(lambda: _is_ready(gate))
    assert min(calls.count(queue) for queue in (gate_queue(0), log_queue(0), DEAD_QUEUE)) > 2, calls


async def _is_ready(gate: Orchestrator) -> bool:
    return gate.is_ready


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled by others", "returned"])
async def test_a_process_whose_gate_has_ended_ends_with_an_error(
    house: House, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    run = Gate.run

    async def end(gate: Gate, stop: asyncio.Event) -> None:
        if gate.state.shard == 0:
            return await run(gate, stop)
        if is_cancelled:
            raise asyncio.CancelledError

    monkeypatch.setattr(Gate, "run", end)
    with pytest.raises(CallAborted if is_cancelled else TaskEnded):
        await _orchestrator(house, shards=2).run(asyncio.Event())


async def test_a_process_whose_reader_of_dead_letters_has_ended_ends_with_an_error(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(orchestrator_service, "read_dead_letters", end)
    with pytest.raises(BusError):
        await _orchestrator(house).run(asyncio.Event())


def _orchestrator(house: House, shards: int = 1) -> Orchestrator:
    return Orchestrator(OrchestratorSettings(shards=shards), house.client("orchestrator"), house.pool, house.artifacts)
