"""The substrate stream of the in-process broker: an append-only log that many read from any offset."""

from collections.abc import Iterable

from apc_bus.memory.subscription import MemorySubscription, Stored
from apc_bus.port import Message
from apc_bus.topology import Queue


class MemoryStream:
    """Messages by offset; beyond `max_bytes` the oldest are dropped, as the broker drops segments."""

    is_stream = True

    def __init__(self, description: Queue) -> None:
        self.description = description
        self._log: dict[int, Stored] = {}
        self._first = 0
        self._next = 0
        self._size_bytes = 0
        self._positions: dict[MemorySubscription, int] = {}

    def __len__(self) -> int:
        return len(self._log)

    @property
    def consumers(self) -> tuple[MemorySubscription, ...]:
        """The readers."""
        return tuple(self._positions)

    def check_room(self, *messages: Message) -> None:
        """Find room for everything: a stream is never full."""

    def append(self, message: Message, routing_key: str) -> None:
        """Store a message at the next offset and hand it to the readers that wait there."""
        self._log[self._next] = Stored(message, routing_key, self._next)
        self._next += 1
        self._size_bytes += len(message.body)
        while self._size_bytes > (self.description.max_bytes or self._size_bytes):
            self._size_bytes -= len(self._log.pop(self._first).message.body)
            self._first += 1
        for reader in self._positions:
            self.refill(reader)

    def attach(self, subscription: MemorySubscription, offset: int | str) -> None:
        """Add a reader from `first`, `last`, `next` or an offset."""
        starts = {"first": self._first, "last": max(self._first, self._next - 1), "next": self._next}
        self._positions[subscription] = starts[offset] if isinstance(offset, str) else offset
        self.refill(subscription)

    def detach(self, subscription: MemorySubscription, unacked: Iterable[Stored]) -> None:
        """Remove a reader; the log stays as it is."""
        self._positions.pop(subscription, None)

    def refill(self, subscription: MemorySubscription) -> None:
        """Hand over messages from the reader's position, as far as its credit goes."""
        position = max(self._positions[subscription], self._first)
        while position < self._next and subscription.has_credit:
            subscription.push(self._log[position])
            position += 1
        self._positions[subscription] = position

    def give_back(self, stored: Stored) -> None:
        """Ignore what is given back: a stream takes nothing back."""

    def discard(self, stored: Stored) -> None:
        """Ignore a rejection: a stream discards nothing."""
