"""The bus of one user on the in-process broker."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Protocol

from apc_bus.errors import BusError, BusUnavailable
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.memory.queue import MemoryQueue
from apc_bus.memory.stream import MemoryStream
from apc_bus.memory.subscription import MemorySubscription
from apc_bus.port import Publication, QueueDepth, Subscription
from apc_bus.topology import SUBSTRATE_STREAM


class Exchanges(Protocol):
    """What a bus asks of its broker."""

    def publish(self, publication: Publication, user: str) -> None:
        """Route a message. Raises PublishRefused, PublishUnroutable."""
        ...

    def queue(self, name: str) -> MemoryQueue | MemoryStream:
        """Return a queue by name. Raises QueueMissing."""
        ...


class MemoryBus:
    """`apc_bus.port.Bus` inside one process. Made by `MemoryBroker.connect`."""

    def __init__(self, broker: Exchanges, user: str) -> None:
        self._broker = broker
        self._user = user
        self._subscriptions: set[MemorySubscription] = set()
        self._is_closed = False

    @property
    def user(self) -> str:
        """The broker user."""
        return self._user

    @property
    def scope(self) -> str | None:
        """None: the broker ends with this process."""
        return None

    @property
    def problems(self) -> list[str]:
        """That it is closed; nothing else can befall it."""
        return ["this bus is closed"] if self._is_closed else []

    async def publish(self, publication: Publication) -> None:
        """Publish; other tasks run before it returns, as over a network."""
        self._check()
        self._broker.publish(publication, self._user)
        await asyncio.sleep(0)

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish many; one result each, in order."""
        results: list[BusError | None] = []
        for publication in publications:
            try:
                self._check()
                self._broker.publish(publication, self._user)
            except BusError as error:
                results.append(error)
            else:
                results.append(None)
        await asyncio.sleep(0)
        return results

    @asynccontextmanager
    async def subscribe(
        self, queue: str, *, prefetch: int = 1000, watch: RedeliveryWatch | None = None
    ) -> AsyncIterator[Subscription]:
        """Consume a queue in bulk."""
        self._check()
        source = self._broker.queue(queue)
        if isinstance(source, MemoryStream):
            raise BusError(f"{queue} is a stream: use read_substrate")
        subscription = MemorySubscription(source, prefetch, self.publish, watch)
        source.attach(subscription)
        with self._owned(subscription), nullcontext() if watch is None else watch.until_end():
            yield subscription

    @asynccontextmanager
    async def read_substrate(self, offset: int | str = "next") -> AsyncIterator[Subscription]:
        """Read the substrate stream."""
        self._check()
        stream = self._broker.queue(SUBSTRATE_STREAM)
        assert isinstance(stream, MemoryStream)
        subscription = MemorySubscription(stream, 100, self.publish)
        stream.attach(subscription, offset)
        with self._owned(subscription):
            yield subscription

    async def depth(self, queue: str) -> QueueDepth:
        """Return the depth of a queue."""
        self._check()
        source = self._broker.queue(queue)
        return QueueDepth(len(source), len(source.consumers))

    async def close(self) -> None:
        """End every subscription; idempotent."""
        self._is_closed = True
        for subscription in tuple(self._subscriptions):
            subscription.end("the bus was closed")

    @contextmanager
    def _owned(self, subscription: MemorySubscription) -> Iterator[None]:
        self._subscriptions.add(subscription)
        try:
            yield
        finally:
            self._subscriptions.discard(subscription)
            subscription.end("it was closed")

    def _check(self) -> None:
        if self._is_closed:
            raise BusUnavailable("this bus is closed")
