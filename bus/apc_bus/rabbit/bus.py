"""The bus over RabbitMQ: one connection to publish, one to consume, one for each stream."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil

from apc_bus.concurrency import Health, boottime, cancelled, is_cancelled, keep_running, unasked_cancel_fails
from apc_bus.errors import BusError, BusUnavailable, QueueMissing
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.port import Publication, QueueDepth, Subscription
from apc_bus.rabbit.administration import check_shards, told_of_depth
from apc_bus.rabbit.connections import Nodes, SharedLink, Timing
from apc_bus.rabbit.consumer import RabbitSubscription, subscribed
from apc_bus.rabbit.health import BusHealth, ConsumerHealth, Expected, ExpectedConsumers, follow_bus, forget_bus
from apc_bus.rabbit.publisher import Publisher
from apc_bus.settings import BusSettings
from apc_bus.telemetry import get_logger, quiet_libraries
from apc_bus.topology import SUBSTRATE_STREAM
from apc_contracts.identity.ids import SLOTS

_STREAM_PREFETCH = 100
"""RabbitMQ refuses a consumer of a stream without a prefetch."""

_log = get_logger("apc_bus")


class RabbitBus:
    """`apc_bus.port.Bus` over RabbitMQ 3.10 to 4.x. Made by `connect_rabbit`.

    Publishing and consuming have separate connections: a broker in alarm blocks publishers, and must not
    block acknowledgements with them. Lost connections are opened again, at any node, by the next call.
    """

    def __init__(self, nodes: Nodes, settings: BusSettings, purpose: str, shards: int | None) -> None:
        self._nodes = nodes
        self._settings = settings
        self._purpose = purpose
        self._publish_link = SharedLink(nodes, f"{purpose} publish")
        self._consume_link = SharedLink(nodes, f"{purpose} consume")
        self._publisher = Publisher(self._publish_link, nodes.timing, settings.publish_window, shards or SLOTS)
        self._expected = ExpectedConsumers()
        self._watchdog: asyncio.Task[None] | None = None
        self._tasks = Health()
        self._closing = asyncio.Event()

    @property
    def user(self) -> str:
        """The broker user of the connection."""
        return self._nodes.user

    @property
    def scope(self) -> str | None:
        """The broker and the virtual host."""
        return self._nodes.scope

    @property
    def health(self) -> BusHealth:
        """How this bus is now; from any thread."""
        expected = list(self._expected)
        subscriptions = [one.consumer for one in expected if isinstance(one.consumer, RabbitSubscription)]
        moments = [self._publisher.oldest_sent_at, *(one.oldest_sent_at for one in subscriptions)]
        oldest = min((moment for moment in moments if moment is not None), default=None)
        return BusHealth(
            is_connected=self._publish_link.is_open,
            blocked=self._publish_link.blocked or self._consume_link.blocked,
            oldest_unconfirmed=0.0 if oldest is None else boottime() - oldest,
            consumers=tuple(ConsumerHealth(one.queue, one.is_live, one.lag) for one in expected),
        )

    @property
    def problems(self) -> list[str]:
        """Why this bus cannot be relied on now, a sentence each; empty = it can. From any thread."""
        return self.health.problems + self._tasks.problems

    async def start(self) -> None:
        """Open both connections, so that a wrong address or password shows at once. Raises BusUnavailable."""
        await self._publish_link.get()
        await self._consume_link.get()
        watching = keep_running(self._watch, task="the watchdog", health=self._tasks, stop=self._closing)
        self._watchdog = asyncio.create_task(watching, name=f"watch {self._purpose}")
        follow_bus(self)

    async def _watch(self) -> None:
        """Compare what should consume with what the broker says, and keep a connection to publish on."""
        is_told = False
        while not is_cancelled():
            await asyncio.sleep(self._settings.consumer_check.total_seconds())
            watched = list(self._expected)
            depths = await self._depths([expected.queue for expected in watched])
            for expected in watched:
                self._compare(expected, depths[expected.queue])
            try:
                await self._publish_link.get()
                is_told = False
            except BusError as error:
                if not is_told:
                    _log.warning("broker_away", purpose=self._purpose, reason=str(error))
                is_told = True

    def _compare(self, expected: Expected, depth: QueueDepth | BusError) -> None:
        if isinstance(depth, BusError):
            expected.lag = None
            if not isinstance(depth, BusUnavailable):  # that is told once, of the connection
                _log.warning("queue_not_told", queue=expected.queue, reason=str(depth))
            return
        if expected.compare(depth.messages, depth.consumers):
            _log.warning("consumer_starved", queue=expected.queue)

    async def publish(self, publication: Publication) -> None:
        """Publish one message and wait for its confirm."""
        error = await self._publisher.publish(publication)
        if error is not None:
            raise error

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish many, pipelined; one result each, in order."""
        return await self._publisher.publish_all(publications)

    @asynccontextmanager
    async def subscribe(
        self, queue: str, *, prefetch: int = 1000, watch: RedeliveryWatch | None = None
    ) -> AsyncIterator[Subscription]:
        """Consume a queue in bulk. Raises QueueMissing, BusUnavailable."""
        # A cancellation that nobody asked for is no orderly end: the queue stays expected.
        with self._expected.expect(queue) as expected, unasked_cancel_fails():
            link = await self._consume_link.get()
            timing = self._nodes.timing
            async with subscribed(link, queue, prefetch=prefetch, timing=timing, watch=watch) as subscription:
                expected.consumer = subscription
                yield subscription

    @asynccontextmanager
    async def read_substrate(
        self, offset: int | str = "next", *, since: float | None = None
    ) -> AsyncIterator[Subscription]:
        """Read the substrate stream. Raises QueueMissing, BusUnavailable."""
        # Its own connection: a mistake on a stream closes the whole connection (measured: 540).
        link = await self._nodes.connect(f"{self._purpose} substrate")
        if since is not None:  # in whole seconds, by the broker's clock, which need not be ours
            offset = f"{ceil(boottime() - since) + 1}s"
        try:
            async with subscribed(
                link,
                SUBSTRATE_STREAM,
                prefetch=_STREAM_PREFETCH,
                timing=self._nodes.timing,
                arguments={"x-stream-offset": offset},
                first_offset=offset if isinstance(offset, int) else None,
            ) as subscription:
                yield subscription
        finally:
            await link.close()

    async def depth(self, queue: str) -> QueueDepth:
        """Ask the broker for the depth of a queue. Raises QueueMissing, BusUnavailable."""
        link, patience = await self._consume_link.get(), self._nodes.timing.answer
        # A bulk channel, because the watchdog asks again and again: aio-pika's leave something on their connection.
        with told_of_depth(queue), unasked_cancel_fails():
            channel = await link.bulk_channel(patience)
            declared = await channel.queue_declare(queue, passive=True, timeout=patience)
            await channel.close(timeout=patience)
        return QueueDepth(declared.message_count or 0, declared.consumer_count or 0)

    async def consumers(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Ask the broker, on one channel, how many consumers each queue has; once it fails to answer, no further."""
        found: dict[str, int | None] = {}
        for queue, depth in (await self._depths(queues)).items():
            if isinstance(depth, BusError):
                found[queue] = 0 if isinstance(depth, QueueMissing) else None
            else:
                found[queue] = depth.consumers
        return found

    async def _depths(self, queues: Sequence[str]) -> dict[str, QueueDepth | BusError]:
        """Ask the broker on one channel for the depth of each queue; once it fails to answer, no further."""
        found: dict[str, QueueDepth | BusError] = {}
        patience, channel = self._nodes.timing.answer, None
        try:
            for queue in queues:
                try:
                    link = await self._consume_link.get()
                    with told_of_depth(queue), unasked_cancel_fails():
                        channel = channel or await link.bulk_channel(patience)
                        declared = await channel.queue_declare(queue, passive=True, timeout=patience)
                    found[queue] = QueueDepth(declared.message_count or 0, declared.consumer_count or 0)
                except QueueMissing as error:
                    found[queue], channel = error, None  # the broker has closed the channel
            if channel is not None:
                with told_of_depth(queues[-1]), unasked_cancel_fails():
                    await channel.close(timeout=patience)
        except BusError as error:
            return dict.fromkeys(queues, error) | found
        return found

    async def close(self) -> None:
        """Close the connections; idempotent."""
        forget_bus(self)
        self._closing.set()
        if self._watchdog is not None:
            await cancelled(self._watchdog)
        await asyncio.gather(self._publish_link.close(), self._consume_link.close())


async def connect_rabbit(
    settings: BusSettings, *, purpose: str = "apc", shards: int | None = None, heartbeat: timedelta | None = None
) -> RabbitBus:
    """Return a bus over the nodes of `settings.amqp_nodes`, connected.

    Args:
        purpose: what the connections are called in the broker's listings.
        shards: the number that the broker must have, if it has a topology; None = do not look, and bundle only packets
            of one slot.
        heartbeat: the longest interval of the connections' heartbeats, whatever the settings say; None = theirs.

    Raises:
        ShardsDiffer: the broker has another number of shards.
        BusUnavailable: no node answers within `connect_patience`, or user, password or virtual host is
            refused; the message says which.
    """
    quiet_libraries()
    for warning in settings.warnings(heartbeat):
        _log.warning("setting_unwise", reason=warning)
    timing = Timing(
        heartbeat=min(settings.heartbeat, heartbeat or settings.heartbeat).total_seconds(),
        connect=settings.connect_timeout.total_seconds(),
        patience=settings.connect_patience.total_seconds(),
        answer=settings.broker_timeout.total_seconds(),
    )
    bus = RabbitBus(Nodes(settings.amqp_nodes, timing), settings, purpose, shards)
    try:
        await bus.start()
        if shards is not None:
            await check_shards(bus, shards)
    except BaseException:
        await bus.close()
        raise
    return bus
