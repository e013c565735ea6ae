"""Bulk consumption: what the broker has handed over is taken at once, and acknowledged in one frame."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
)
from pamqp.commands import Basic

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import (
    BusError,
    BusUnavailable,
    PublishRefused,
    PublishUnknown,
    QueueMissing,
    SubscriptionLost,
)
from apc_bus.port import Delivery, Publication
from apc_bus.rabbit.bundles import unbundled
from apc_bus.rabbit.channel import BulkChannel, open_channel
from apc_bus.rabbit.connections import Link, Timing
from apc_bus.rabbit.consuming.acknowledging import AckBuffer
from apc_bus.rabbit.consuming.unsettled import Unsettled
from apc_bus.rabbit.transport import Silence

_OFFSET = "x-stream-offset"
_log = structlog.get_logger("apc_bus")
CHANNEL_GONE = (AMQPError, OSError, RuntimeError, TimeoutError)
"""What aiormq raises when a channel or its connection is gone."""


class RabbitSubscription:
    """One consumer on its own channel (`apc_bus.port.Subscription`)."""

    def __init__(
        self,
        queue: str,
        channel: BulkChannel,
        silence: Silence,
        timing: Timing,
        prefetch: int,
        first_offset: int | None,
        is_stream: bool = False,
    ) -> None:
        self._queue = queue
        self._channel = channel
        self._silence = silence
        self._timing = timing
        self._first_offset = first_offset
        self._is_stream = is_stream
        self._acknowledgements = AckBuffer(channel, prefetch)
        self._inbox: deque[Delivery] = deque()
        self._received = 0
        self._unsettled = Unsettled()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        channel.on_delivery = self._take
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)
        channel.closing.add_done_callback(self._on_closed)

    @property
    def is_live(self) -> bool:
        """Whether its channel stands and the broker has not told of its end."""
        return self._lost is None and not self._channel.is_closed

    @property
    def received(self) -> int:
        """Deliveries so far."""
        return self._received

    @property
    def is_idle(self) -> bool:
        """Whether everything delivered was acknowledged or given back."""
        return not self._unsettled

    @property
    def oldest_sent_at(self) -> float | None:
        """CLOCK_BOOTTIME, in seconds, of the publish on this channel that waits for its confirm; None = none does."""
        return self._channel.oldest_sent_at

    @property
    def last_read(self) -> float:
        """CLOCK_BOOTTIME, in seconds, of the last read from the broker."""
        return self._silence.last_read

    @property
    def longest_silence(self) -> float:
        """Longest time in seconds between two successive reads since the subscription began."""
        return self._silence.longest

    async def receive(self, max_messages: int = 256, max_bytes: int = 1 << 20) -> list[Delivery]:
        """Return what is there, at least one message."""
        while not self._inbox:
            self._check()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._check()
        batch = [self._inbox.popleft()]
        size = len(batch[0].message.body)
        while self._inbox and len(batch) < max_messages:
            size += len(self._inbox[0].message.body)
            if size > max_bytes:
                break
            batch.append(self._inbox.popleft())
        return batch

    async def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Acknowledge one delivery, or it and all earlier ones."""
        self._check_open(delivery)
        tag = self._unsettled.settle_up_to(delivery.tag) if multiple else self._unsettled.settle(delivery.tag)
        if tag is not None:
            self._acknowledgements.add(tag, multiple=multiple)

    async def nack(self, delivery: Delivery, *, requeue: bool) -> None:
        """Give one delivery back, or to the dead-letter exchange, with all that came in the same bundle."""
        if delivery.offset is not None:
            # The broker would close the whole connection (measured: 540).
            raise BusError("a stream takes nothing back: acknowledge the message")
        self._check_open(delivery)
        tag = self._unsettled.give_back(delivery.tag)
        if tag is not None:  # else it went with another part of its message
            self._acknowledgements.refuse(tag, requeue=requeue)

    async def publish(self, publication: Publication) -> None:
        """Publish on this very channel and wait for the confirm.

        Raises:
            SubscriptionLost: the channel was gone before; nothing was sent.
            PublishUnroutable, PublishRefused, PublishUnknown: as `Bus.publish`.
        """
        self._check()
        window = await self._channel.publish_window([publication], self._timing.answer)
        if window.unanswered:
            if self._channel.refusal is not None and self._channel.culprit(window) == 0:
                raise PublishRefused(f"the broker refuses the publish: {self._channel.refusal}")
            raise PublishUnknown("no confirm: the message may be stored; publishing it again is safe")
        if (error := window.results[0]) is not None:
            raise error

    def leave(self) -> None:
        """Finish the acknowledgements, then end."""
        self._acknowledgements.finish()
        self.end("it was closed")

    def end(self, reason: str) -> None:
        """End deliveries and acknowledgements; idempotent."""
        if self._lost is None:
            self._lost = reason
            self._inbox.clear()
            self._wake()

    def _take(self, delivery: Delivery) -> None:
        first, offset = self._first_offset, self._offset_of(delivery)
        if self._lost is None and (first is None or offset is None or offset >= first):
            messages = unbundled(delivery.message)
            for tag, message in zip(self._unsettled.add(delivery.tag, len(messages)), messages, strict=True):
                part = Delivery(message, tag, delivery.routing_key, delivery.is_redelivered, offset)
                self._inbox.append(part)
            self._received += 1
            self._wake()

    def _offset_of(self, delivery: Delivery) -> int | None:
        """Return where a message stands in a stream. In one of a queue that header is its sender's own."""
        offset = delivery.message.headers.get(_OFFSET) if self._is_stream else None
        return offset if isinstance(offset, int) else None

    def _on_cancelled(self, frame: Basic.Cancel) -> None:
        self.end(f"queue {self._queue} was deleted, or its node is gone")

    def _on_closed(self, closing: asyncio.Future[None]) -> None:
        cause = None if closing.cancelled() else closing.exception()
        self.end(f"the channel was closed: {self._channel.refusal or _words_of(cause) or 'connection lost'}")

    def _check(self) -> None:
        if self._lost is not None:
            raise SubscriptionLost(f"the subscription is gone: {self._lost}")

    def _check_open(self, delivery: Delivery) -> None:
        """Raise SubscriptionLost for a delivery that is settled already; the broker would close the channel."""
        self._check()
        if delivery.tag not in self._unsettled:
            self.end(f"delivery {delivery.message.message_id!r} was settled twice")
            self._check()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@asynccontextmanager
async def consume(
    link: Link,
    queue: str,
    *,
    prefetch: int,
    timing: Timing,
    arguments: Mapping[str, str | int] | None = None,
    first_offset: int | None = None,
) -> AsyncIterator[RabbitSubscription]:
    """Consume a queue on a new channel of a live connection.

    Raises:
        QueueMissing: no such queue.
        BusUnavailable: the user may not read it, or the connection was lost.
    """
    silence = link.watch()
    try:
        try:
            with unasked_cancel_fails():
                channel = await open_channel(link, timing.answer)
                is_stream = _OFFSET in (arguments or {})
                subscription = RabbitSubscription(queue, channel, silence, timing, prefetch, first_offset, is_stream)
                await channel.basic_qos(prefetch_count=prefetch, timeout=timing.answer)
                await channel.basic_consume(
                    queue, _delivered_elsewhere, arguments=dict(arguments or {}), timeout=timing.answer
                )
        except CHANNEL_GONE as error:
            link.is_suspect |= isinstance(error, TimeoutError)
            raise _start_error(queue, error) from error
        try:
            yield subscription
        finally:
            subscription.leave()
            await _close(link, channel, timing)
    finally:
        link.unwatch(silence)


async def _delivered_elsewhere(message: object) -> None:
    """Do nothing: the channel hands deliveries over itself."""


async def _close(link: Link, channel: BulkChannel, timing: Timing) -> None:
    """Close the channel; the broker takes back what was not acknowledged, and keeps its order.

    No basic.cancel before it: that alone makes the next consumer active, which gets newer messages before those that
    only the close gives back (measured: one clean hand-over in three was out of order). Acknowledgements have ended
    by now: one that follows Channel.Close would kill the connection (504).
    """
    try:
        with unasked_cancel_fails():
            async with asyncio.timeout(timing.answer):
                await channel.close()
    except CHANNEL_GONE as error:
        # It may still hold what it handed over, until its connection goes.
        link.is_suspect |= isinstance(error, TimeoutError)
        _log.info("channel_close_failed", reason=repr(error))


def _words_of(cause: BaseException | None) -> str:
    """Return what a cause says; nothing for a CancelledError, with which aiormq ends a connection that was silent."""
    return "" if cause is None else str(cause)


def _start_error(queue: str, error: BaseException) -> BusError:
    if isinstance(error, ChannelNotFoundEntity):
        return QueueMissing(f"no queue {queue}: run `apc topology apply`")
    if isinstance(error, ChannelAccessRefused):
        return BusUnavailable(f"the broker user may not read queue {queue}: check its permissions")
    return BusUnavailable(f"cannot consume queue {queue}: {error!r}")
