"""A consumer of the in-process broker: an inbox, and what is not acknowledged yet."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from msgspec.structs import replace

from apc_bus.clock import boottime
from apc_bus.errors import BusError, SubscriptionLost
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.port import Delivery, HeaderValue, Message, Publication


@dataclass(slots=True)
class Stored:
    """A message in a queue or stream."""

    message: Message
    routing_key: str
    sequence: int
    """Position in the queue; in a stream the offset."""
    expires_at: float | None = None
    """Loop time, in seconds."""
    returns: int = 0
    """How often it came back unacknowledged."""


class Source(Protocol):
    """What a subscription consumes: a queue or a stream."""

    is_stream: bool

    def detach(self, subscription: "MemorySubscription", unacked: Iterable[Stored]) -> None:
        """End the subscription; what it holds goes back."""
        ...

    def refill(self, subscription: "MemorySubscription") -> None:
        """Hand over waiting messages: the subscription has credit again."""
        ...

    def give_back(self, stored: Stored) -> None:
        """Requeue one message."""
        ...

    def discard(self, stored: Stored) -> None:
        """Send one message to the dead-letter exchange."""
        ...


class MemorySubscription:
    """One consumer on one queue or stream (`apc_bus.port.Subscription`)."""

    def __init__(
        self,
        source: Source,
        prefetch: int,
        publish: Callable[[Publication], Awaitable[None]],
        watch: RedeliveryWatch | None = None,
    ) -> None:
        self._source = source
        self._prefetch = prefetch
        self._publish = publish
        self._watch = watch
        self._inbox: deque[Delivery] = deque()
        self._unacked: dict[int, Stored] = {}
        self._beyond: set[int] = set()
        """Those that do not count any more: the subscription was extended."""
        self._last_tag = 0
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None

    @property
    def last_read(self) -> float:
        """Now: there is no network to be silent."""
        return boottime()

    @property
    def longest_silence(self) -> float:
        """Always 0: there is no network to be silent."""
        return 0.0

    @property
    def has_credit(self) -> bool:
        """Whether the broker may hand over one more."""
        return len(self._unacked) - len(self._beyond) < self._prefetch

    def push(self, stored: Stored) -> None:
        """Take a message from the broker."""
        self._last_tag += 1
        self._unacked[self._last_tag] = stored
        self._inbox.append(_delivery(stored, self._last_tag, self._source.is_stream))
        self._wake()

    async def receive(self, max_messages: int = 256, max_bytes: int = 1 << 20) -> list[Delivery]:
        """Return what is there, at least one message; lets other tasks run first."""
        await asyncio.sleep(0)
        batch: list[Delivery] = []
        while not batch:
            while not self._inbox or self._has_to_settle:
                self._check()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self._check()
            self._fill(batch, max_messages, max_bytes)
        return batch

    def _fill(self, batch: list[Delivery], max_messages: int, max_bytes: int) -> None:
        size = 0
        while self._inbox and len(batch) < max_messages:
            delivery = self._watched(self._inbox[0])
            size += len(delivery.message.body)
            is_alone = delivery.risk is not None
            if (batch and (is_alone or size > max_bytes)) or (is_alone and self._has_to_settle):
                break
            self._inbox.popleft()
            batch.append(delivery.checked())
            if is_alone:
                break

    @property
    def _has_to_settle(self) -> bool:
        watch = self._watch
        return watch is not None and watch.is_careful and watch.waits and len(self._unacked) > len(self._inbox)

    def _watched(self, delivery: Delivery) -> Delivery:
        """Tell the watch of a delivery that may be handed over next; return it with its risk."""
        watch = self._watch
        if watch is None or (watch.is_calm and not delivery.is_redelivered):
            return delivery
        watch.arrive(delivery.is_redelivered)
        if not delivery.is_redelivered:
            return delivery
        risk = watch.risk(fingerprint_of(delivery)) if watch.is_careful else None
        watch.in_hand[delivery.tag] = risk
        return replace(delivery, risk=risk)

    def _note_settled(self) -> None:
        watch = self._watch
        if watch is None or watch.relaxed.is_set():
            return
        next_is_redelivered = self._inbox[0].is_redelivered if self._inbox else None
        is_idle = len(self._unacked) == len(self._inbox)
        watch.note_settled(watch.settled(self._unacked), next_is_redelivered, is_idle=is_idle)
        self._wake()

    async def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Acknowledge; the broker may hand over as many more."""
        self._take(delivery.tag)
        if multiple:
            for tag in [tag for tag in self._unacked if tag < delivery.tag]:
                del self._unacked[tag]
                self._beyond.discard(tag)
        self._source.refill(self)
        self._note_settled()

    async def nack(self, delivery: Delivery, *, requeue: bool) -> None:
        """Return a delivery to the queue, or to the dead-letter exchange."""
        if self._source.is_stream:
            raise BusError("a stream takes nothing back: acknowledge the message")
        stored = self._take(delivery.tag)
        if requeue:
            self._source.give_back(stored)
        else:
            self._source.discard(stored)
        self._source.refill(self)
        self._note_settled()

    async def extend(self) -> None:
        """Count what is unacknowledged no more."""
        self._check()
        self._beyond.update(self._unacked)
        self._source.refill(self)

    async def publish(self, publication: Publication) -> None:
        """Publish like `Bus.publish`, only while this subscription lives."""
        self._check()
        await self._publish(publication)

    def end(self, reason: str) -> None:
        """End it: everything unacknowledged goes back to its queue; idempotent."""
        if self._lost is not None:
            return
        self._lost = reason
        unacked = list(self._unacked.values())
        self._unacked.clear()
        self._beyond.clear()
        self._inbox.clear()
        self._wake()
        self._source.detach(self, unacked)

    def _take(self, tag: int) -> Stored:
        self._check()
        stored = self._unacked.pop(tag, None)
        self._beyond.discard(tag)
        if stored is None:
            # RabbitMQ closes the channel of a consumer that acknowledges what it does not hold.
            self.end(f"delivery {tag} was acknowledged twice")
            raise SubscriptionLost(f"the subscription is gone: {self._lost}")
        return stored

    def _check(self) -> None:
        if self._lost is not None:
            raise SubscriptionLost(f"the subscription is gone: {self._lost}")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _delivery(stored: Stored, tag: int, is_stream: bool) -> Delivery:
    if is_stream:
        return Delivery(stored.message, tag, stored.routing_key, False, stored.sequence)
    message = stored.message
    if stored.returns:
        headers: dict[str, HeaderValue] = {**message.headers, "x-delivery-count": stored.returns}
        message = replace(message, headers=headers)
    return Delivery(message, tag, stored.routing_key, stored.returns > 0)


def fingerprint_of(delivery: Delivery) -> bytes:
    """Return what tells a message from others, of a broker that hands over no bytes."""
    message = delivery.message
    headers = sorted((name, repr(value)) for name, value in message.headers.items() if name != "x-delivery-count")
    parts = (delivery.routing_key, message.message_id, message.type, message.user_id, headers, message.body)
    return sha256(repr(parts).encode(errors="surrogatepass")).digest()
