"""Handlers over FastStream, in the one form that was measured to be safe (docs/specification/architecture.md section
9).

Nothing is declared (passive only), nothing is decoded before the handler, and every way a handler can end is
decided here: under manual acknowledgement FastStream swallows an exception and the consumer starves silently.
This module costs half a second to import; only `RabbitBus.handle` imports it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiormq
import structlog
from aio_pika import Channel as PikaChannel
from aiormq.exceptions import AMQPError
from faststream.middlewares import AckPolicy
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage
from faststream.rabbit.subscriber import RabbitSubscriber
from pamqp.commands import Basic
from yarl import URL

from apc_bus.concurrency import cancelled
from apc_bus.errors import BusUnavailable, DeadLetter, GiveBack
from apc_bus.port import Delivery, Handler
from apc_bus.rabbit.codec import incoming_delivery
from apc_bus.rabbit.connections import Nodes
from apc_bus.rabbit.health import Consumes
from apc_bus.rabbit.watchdog import watch

_GRACE_SECONDS = 30.0
"""So long a handler in flight may take after the context is left; then it is cancelled, its message comes again."""
_LOOK_SECONDS = 0.2
_GONE = (AMQPError, OSError, RuntimeError, TimeoutError)

_log = structlog.get_logger("apc_bus")


@asynccontextmanager
async def run_handler(
    nodes: Nodes, queue: str, handler: Handler, *, prefetch: int, purpose: str
) -> AsyncIterator[Consumes]:
    """Consume a queue with a handler, on a connection of its own; gives the consumer.

    Raises:
        BusUnavailable: no node takes the consumer.
    """
    consumer = _HandlerConsumer(nodes, queue, handler, prefetch, purpose)
    await consumer.repair()
    watchdog = asyncio.create_task(watch(queue, consumer), name=f"watch {queue}")
    try:
        yield consumer
    finally:
        await cancelled(watchdog)
        await consumer.stop()


class _HandlerConsumer:
    def __init__(self, nodes: Nodes, queue: str, handler: Handler, prefetch: int, purpose: str) -> None:
        self._nodes = nodes
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._purpose = purpose
        self._live: tuple[RabbitBroker, RabbitSubscriber] | None = None
        self._is_cancelled = False
        self._was_live = False
        self._retired: set[asyncio.Task[None]] = set()
        self._received = 0
        self._running = 0
        self._left = 0
        """Deliveries that a handler gave back: the broker has them again when this connection is closed."""

    @property
    def is_live(self) -> bool:
        """Whether it was live when the watchdog looked last, and nothing has ended it since."""
        return self._was_live and not self._is_cancelled

    @property
    def received(self) -> int:
        """Deliveries since the connection was opened."""
        return self._received

    @property
    def is_idle(self) -> bool:
        """Whether no handler runs, and none has given a delivery back."""
        return self._running == self._left == 0

    def end(self, reason: str) -> None:
        """Give the connection up: the watchdog opens another."""
        _log.warning("handler_given_up", queue=self._queue, reason=reason)
        self._is_cancelled = True

    async def check(self) -> bool:
        """Return whether the channel is open and the broker has never cancelled the consumer on it."""
        self._was_live = await self._is_consuming()
        return self.is_live

    async def _is_consuming(self) -> bool:
        channel = await self._channel()
        if self._live is None or channel is None or channel.is_closed:
            return False
        # The callbacks belong to one channel, and the library replaces it when it reconnects: set again.
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)
        return self._live[1]._consumer_tag in channel.consumers

    async def _channel(self) -> aiormq.Channel | None:
        queue = self._live[1]._queue_obj if self._live is not None else None
        if queue is None or not isinstance(queue.channel, PikaChannel) or queue.channel.is_closed:
            return None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):  # while it reconnects there is none
                channel = await queue.channel.get_underlay_channel()
        except _GONE:
            return None
        return channel if isinstance(channel, aiormq.Channel) else None

    def _on_cancelled(self, frame: Basic.Cancel) -> None:
        # aio-pika consumes again on the same channel. Measured with 3.10: when the queue was deleted and made
        # again, that channel takes messages of the new queue for old ones, and they stay unacknowledged. So
        # this connection is given up.
        self._is_cancelled = True

    async def repair(self) -> None:
        """Start on the first node that takes the consumer; the connection before is closed beside it."""
        old, self._live = self._live, None
        self._was_live, self._received, self._left = False, 0, 0
        if old is not None:
            task = asyncio.create_task(_stop(old[0]), name=f"retire {self._queue}")
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
        problems = []
        for url in self._nodes.shuffled():
            broker, subscriber = self._prepare(url)
            try:
                async with asyncio.timeout(self._nodes.timing.connect):
                    await broker.start()
            except _GONE as error:
                problems.append(f"{url.host}:{url.port} {error!r}")
                await _stop(broker)
            else:
                self._live, self._is_cancelled = (broker, subscriber), False
                await self.check()
                return
        raise BusUnavailable(f"no node takes the consumer of {self._queue}: {'; '.join(problems)}")

    async def stop(self) -> None:
        """Stop consuming and wait for the handlers in flight."""
        if self._live is not None:
            await _stop(self._live[0])
        await asyncio.gather(*self._retired)

    def _prepare(self, url: URL) -> tuple[RabbitBroker, RabbitSubscriber]:
        broker = RabbitBroker(
            str(url.update_query(name=self._purpose)),
            apply_types=False,
            decoder=_undecoded,
            graceful_timeout=_GRACE_SECONDS,
            reconnect_interval=0.5,
            logger=None,
            log_level=logging.CRITICAL,
            timeout=self._nodes.timing.connect,
        )
        subscriber = broker.subscriber(
            RabbitQueue(self._queue, queue_type=QueueType.QUORUM, durable=True, declare=False),
            ack_policy=AckPolicy.MANUAL,
            channel=Channel(prefetch_count=self._prefetch),
            no_reply=True,
        )
        subscriber(self._on_message)
        return broker, subscriber

    async def _on_message(self, message: RabbitMessage) -> None:
        self._received += 1
        self._running += 1
        try:
            await self._run(message, incoming_delivery(message.raw_message))
        finally:
            self._running -= 1

    async def _run(self, message: RabbitMessage, delivery: Delivery) -> None:
        try:
            await self._handler(delivery)
        except DeadLetter:
            await self._settle(message, delivery, is_done=False, requeue=False)
        except GiveBack:
            self._left += 1  # unsettled: it goes back when the connection is closed
        except Exception:
            _log.exception("handler_failed", queue=self._queue, packet_id=delivery.message.message_id)
            await self._settle(message, delivery, is_done=False, requeue=True)
        else:
            await self._settle(message, delivery, is_done=True)

    async def _settle(
        self, message: RabbitMessage, delivery: Delivery, *, is_done: bool, requeue: bool = False
    ) -> None:
        try:
            async with asyncio.timeout(self._nodes.timing.answer):
                if is_done:
                    await message.ack()
                else:
                    await message.nack(requeue=requeue)
        except _GONE as error:
            # The channel is gone and with it the delivery: it comes again, and the id tells that it was done.
            packet_id = delivery.message.message_id
            _log.warning("acknowledge_failed", queue=self._queue, packet_id=packet_id, reason=repr(error))


async def _undecoded(message: RabbitMessage) -> RabbitMessage:
    return message


async def _stop(broker: RabbitBroker) -> None:
    try:
        async with asyncio.timeout(2 * _GRACE_SECONDS):
            connection = broker._connection
            if connection is not None and not connection.connected.is_set():
                # It would go on trying, twice a second, until the handlers in flight have ended.
                await connection.close()
            await broker.stop()
    except (*_GONE, ExceptionGroup) as error:  # FastStream groups what its subscribers raise
        _log.info("handler_connection_close_failed", reason=repr(error))
