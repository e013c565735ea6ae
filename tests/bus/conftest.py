"""One broker of each kind with the same topology: the suite of the port runs over each."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import aio_pika
import pytest
from pydantic import SecretStr

from apc_bus.chaos import ChaosBus, ChaosProfile
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Bus, Message
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import AgentQueues, Topology, build_topology
from apc_contracts.vocabulary import PacketType

USER = "guest"


class Place(Protocol):
    """A broker with a topology."""

    topology: Topology

    async def connect(self) -> Bus:
        """Return a new bus; closed after the test."""
        ...

    async def delete_queue(self, name: str) -> None:
        """Delete a queue under its consumers."""
        ...


class MemoryPlace:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._broker = InMemoryBroker(topology)

    async def connect(self) -> Bus:
        return self._broker.connect(USER)

    async def delete_queue(self, name: str) -> None:
        self._broker.delete_queue(name)


class CalmChaosPlace(MemoryPlace):
    """The in-process broker behind a chaos bus whose profile strikes nobody: it must change nothing."""

    async def connect(self) -> Bus:
        return ChaosBus(await super().connect(), ChaosProfile(), "calm")


class RabbitPlace:
    def __init__(self, topology: Topology, url: str, resources: AsyncExitStack) -> None:
        self.topology = topology
        self._url = url
        self._resources = resources

    async def connect(self) -> Bus:
        bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(self._url)))
        self._resources.push_async_callback(bus.close)
        return bus

    async def delete_queue(self, name: str) -> None:
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            await channel.queue_delete(name)


@pytest.fixture
def topology() -> Topology:
    """Two agents of two swarms; an inbox holds 10 messages."""
    return build_topology(
        1,
        [
            AgentQueues("alpha-1", "red", frozenset({PacketType.IDEA, PacketType.CLAIM})),
            AgentQueues("Beta.2", "blue", frozenset({PacketType.IDEA})),
        ],
        bound=5,
    )


@pytest.fixture(params=["memory", "calm chaos", pytest.param("rabbit", marks=pytest.mark.broker)])
async def place(request: pytest.FixtureRequest, topology: Topology) -> AsyncIterator[Place]:
    """A broker of each kind."""
    async with AsyncExitStack() as resources:
        if request.param == "memory":
            yield MemoryPlace(topology)
        elif request.param == "calm chaos":
            yield CalmChaosPlace(topology)
        else:
            url = request.getfixturevalue("amqp_vhost_url")
            await apply_rabbit(url, topology)
            yield RabbitPlace(topology, url, resources)


@pytest.fixture
def connect(place: Place) -> Callable[[], Awaitable[Bus]]:
    """Connects one more bus."""
    return place.connect


@pytest.fixture
def delete_queue(place: Place) -> Callable[[str], Awaitable[None]]:
    """Deletes a queue under its consumers."""
    return place.delete_queue


@pytest.fixture
async def bus(place: Place) -> Bus:
    """A connected bus."""
    return await place.connect()


MakeMessage = Callable[..., Message]


@pytest.fixture
def message() -> MakeMessage:
    """Makes messages with ids 0, 1, 2, …"""
    count = 0

    def make(body: bytes = b"{}", **properties: object) -> Message:
        nonlocal count
        count += 1
        return Message(**{"body": body, "message_id": f"m-{count - 1}", "user_id": USER} | properties)  # type: ignore[arg-type]

    return make
