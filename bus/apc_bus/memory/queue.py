"""A queue of the in-process broker, with the semantics of a RabbitMQ quorum queue."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from apc_bus.errors import PublishRefused
from apc_bus.memory.subscription import MemorySubscription, Stored
from apc_bus.port import Message
from apc_bus.topology import Queue

DeadLetter = Callable[[Queue, Stored, str], None]
"""(queue, message, reason): publishes it to the queue's dead-letter exchange."""


class MemoryQueue:
    """Ready messages in order, and consumers. A full queue refuses; expiry works at the head only."""

    is_stream = False

    def __init__(self, description: Queue, dead_letter: DeadLetter) -> None:
        self.description = description
        self._dead_letter = dead_letter
        self._ready: deque[Stored] = deque()
        self._ready_bytes = 0
        self._consumers: deque[MemorySubscription] = deque()
        self._sequence = 0
        self._expiry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def consumers(self) -> tuple[MemorySubscription, ...]:
        """The consumers; of a single-active queue the first is active."""
        return tuple(self._consumers)

    def check_room(self, *messages: Message) -> None:
        """Check for room. Raises PublishRefused when the queue is full."""
        limit, limit_bytes = self.description.max_messages, self.description.max_bytes
        size = sum(len(message.body) for message in messages)
        if (limit is not None and len(self._ready) + len(messages) > limit) or (
            limit_bytes is not None and self._ready_bytes + size > limit_bytes
        ):
            raise PublishRefused(f"queue {self.description.name} is full")

    def append(self, message: Message, routing_key: str) -> None:
        """Store a message at the tail, and hand it over if somebody has credit."""
        self._sequence += 1
        expires_at = None
        lives = [ttl for ttl in (message.expiration_ms, self.description.ttl_ms) if ttl is not None]
        if lives:
            expires_at = asyncio.get_running_loop().time() + min(lives) / 1000
        self._ready.append(Stored(message, routing_key, self._sequence, expires_at))
        self._ready_bytes += len(message.body)
        self._dispatch()

    def attach(self, subscription: MemorySubscription) -> None:
        """Add a consumer."""
        self._consumers.append(subscription)
        self._dispatch()

    def detach(self, subscription: MemorySubscription, unacked: Iterable[Stored]) -> None:
        """Remove a consumer: the next one of a single-active queue takes over."""
        if subscription in self._consumers:
            self._consumers.remove(subscription)
        for stored in unacked:
            self._requeue(stored)
        self._dispatch()

    def refill(self, subscription: MemorySubscription) -> None:
        """Hand over messages to a consumer that has credit again."""
        self._dispatch()

    def give_back(self, stored: Stored) -> None:
        """Requeue a message at its place."""
        self._requeue(stored)

    def discard(self, stored: Stored) -> None:
        """Take a message that a consumer rejected."""
        self._dead_letter(self.description, stored, "rejected")

    def _requeue(self, stored: Stored) -> None:
        stored.returns += 1
        limit = self.description.delivery_limit
        if limit is not None and stored.returns > limit:
            self._dead_letter(self.description, stored, "delivery_limit")
            return
        self._ready_bytes += len(stored.message.body)
        is_first = not self._ready or self._ready[0].sequence > stored.sequence
        self._ready.appendleft(stored)
        if not is_first:
            self._ready = deque(sorted(self._ready, key=attrgetter("sequence")))

    def _dispatch(self) -> None:
        while self._ready:
            head = self._ready[0]
            if head.expires_at is not None and head.expires_at <= asyncio.get_running_loop().time():
                self._pop()
                self._dead_letter(self.description, head, "expired")
                continue
            consumer = self._next_consumer()
            if consumer is None:
                self._watch_expiry(head)
                return
            consumer.push(self._pop())

    def _pop(self) -> Stored:
        stored = self._ready.popleft()
        self._ready_bytes -= len(stored.message.body)
        return stored

    def _next_consumer(self) -> MemorySubscription | None:
        if self.description.is_single_active:
            return self._consumers[0] if self._consumers and self._consumers[0].has_credit else None
        for _ in range(len(self._consumers)):
            consumer = self._consumers[0]
            self._consumers.rotate(-1)
            if consumer.has_credit:
                return consumer
        return None

    def _watch_expiry(self, head: Stored) -> None:
        if head.expires_at is None:
            return
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_at(head.expires_at, self._dispatch)
