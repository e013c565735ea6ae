"""The in-process broker: subscriptions, queues, streams and routing in plain Python objects, and its bus."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from apc_bus.concurrency import boottime
from apc_bus.errors import BusError, BusUnavailable, PublishRefused, QueueMissing, SubscriptionLost
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.port import Delivery, HeaderValue, Message, Publication, QueueDepth, Subscription
from apc_bus.topology import SUBSTRATE_STREAM, Binding, ExchangeKind, Queue, QueueKind, Topology, unroutable


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
    is_repeated: bool = False
    """Whether a former process may have handed it over."""
    came_at: float = 0.0
    """CLOCK_BOOTTIME, in seconds, of a message in a stream."""


class Source(Protocol):
    """What a subscription consumes: a queue or a stream."""

    is_stream: bool

    def detach(self, subscription: "InMemorySubscription", unacked: Iterable[Stored]) -> None:
        """End the subscription; what it holds goes back."""
        ...

    def refill(self, subscription: "InMemorySubscription") -> None:
        """Hand over waiting messages: the subscription has credit again."""
        ...

    def give_back(self, stored: Stored) -> None:
        """Requeue one message."""
        ...

    def discard(self, stored: Stored) -> None:
        """Send one message to the dead-letter exchange."""
        ...


class InMemorySubscription:
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

    def _note_settled(self, only: int | None = None) -> None:
        watch = self._watch
        if watch is None or watch.relaxed.is_set():
            return
        next_is_redelivered = self._inbox[0].is_redelivered if self._inbox else None
        is_idle = len(self._unacked) == len(self._inbox)
        settled = watch.settled(self._unacked, only)
        watch.note_settled(settled, next_is_redelivered, is_idle=is_idle)
        self._wake()

    async def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Acknowledge; the broker may hand over as many more."""
        self._take(delivery.tag)
        if multiple:
            for tag in [tag for tag in self._unacked if tag < delivery.tag]:
                del self._unacked[tag]
                self._beyond.discard(tag)
        self._source.refill(self)
        self._note_settled(None if multiple else delivery.tag)

    async def nack(self, delivery: Delivery, *, requeue: bool) -> None:
        """Give a delivery back to the queue, or to the dead-letter exchange."""
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
        """Stop counting what is unacknowledged against the prefetch."""
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
    return Delivery(message, tag, stored.routing_key, stored.returns > 0 or stored.is_repeated)


def fingerprint_of(delivery: Delivery) -> bytes:
    """Return what tells a message from others, of a broker that hands over no bytes.

    Without headers: they tell the epoch of an orchestrator, and each start of the process has its own.
    """
    message = delivery.message
    parts = (delivery.routing_key, message.message_id, message.type, message.user_id, message.body)
    return sha256(repr(parts).encode(errors="surrogatepass")).digest()


# A queue of the in-process broker, with the semantics of a RabbitMQ quorum queue.

DeadLetter = Callable[[Queue, Stored, str], None]
"""(queue, message, reason): publishes it to the queue's dead-letter exchange."""


class InMemoryQueue:
    """Ready messages in order, and consumers. A full queue refuses; expiry works at the head only."""

    is_stream = False

    def __init__(self, description: Queue, dead_letter: DeadLetter) -> None:
        self.description = description
        self._dead_letter = dead_letter
        self._ready: deque[Stored] = deque()
        self._ready_bytes = 0
        self._consumers: deque[InMemorySubscription] = deque()
        self._sequence = 0
        self._expiry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def consumers(self) -> tuple[InMemorySubscription, ...]:
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

    def append(self, message: Message, routing_key: str, *, is_repeated: bool = False) -> None:
        """Store a message at the tail, and hand it over if somebody has credit."""
        self._sequence += 1
        expires_at = None
        lives = [ttl for ttl in (message.expiration_ms, self.description.ttl_ms) if ttl is not None]
        if lives:
            expires_at = asyncio.get_running_loop().time() + min(lives) / 1000
        self._ready.append(Stored(message, routing_key, self._sequence, expires_at, is_repeated=is_repeated))
        self._ready_bytes += len(message.body)
        self._dispatch()

    def attach(self, subscription: InMemorySubscription) -> None:
        """Add a consumer."""
        self._consumers.append(subscription)
        self._dispatch()

    def detach(self, subscription: InMemorySubscription, unacked: Iterable[Stored]) -> None:
        """Remove a consumer: the next one of a single-active queue takes over."""
        if subscription in self._consumers:
            self._consumers.remove(subscription)
        for stored in unacked:
            self._requeue(stored)
        self._dispatch()

    def refill(self, subscription: InMemorySubscription) -> None:
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

    def _next_consumer(self) -> InMemorySubscription | None:
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


# The substrate stream of the in-process broker: an append-only log that many read from any offset.


class InMemoryStream:
    """Messages by offset; beyond `max_bytes` the oldest are dropped, as the broker drops segments."""

    is_stream = True

    def __init__(self, description: Queue) -> None:
        self.description = description
        self._log: dict[int, Stored] = {}
        self._first = 0
        self._next = 0
        self._size_bytes = 0
        self._positions: dict[InMemorySubscription, int] = {}

    def __len__(self) -> int:
        return len(self._log)

    @property
    def consumers(self) -> tuple[InMemorySubscription, ...]:
        """The readers."""
        return tuple(self._positions)

    def check_room(self, *messages: Message) -> None:
        """Find room for everything: a stream is never full."""

    def append(self, message: Message, routing_key: str, *, is_repeated: bool = False) -> None:
        """Store a message at the next offset and hand it to the readers that wait there: never as redelivered."""
        self._log[self._next] = Stored(message, routing_key, self._next, came_at=boottime())
        self._next += 1
        self._size_bytes += len(message.body)
        while self._size_bytes > (self.description.max_bytes or self._size_bytes):
            self._size_bytes -= len(self._log.pop(self._first).message.body)
            self._first += 1
        for reader in self._positions:
            self.refill(reader)

    def attach(self, subscription: InMemorySubscription, offset: int | str) -> None:
        """Add a reader from `first`, `last`, `next` or an offset."""
        starts = {"first": self._first, "last": max(self._first, self._next - 1), "next": self._next}
        self._positions[subscription] = starts[offset] if isinstance(offset, str) else offset
        self.refill(subscription)

    def offset_at(self, since: float) -> int:
        """Return the offset of the first message that came at this time or later."""
        return next((offset for offset, stored in self._log.items() if stored.came_at >= since), self._next)

    def detach(self, subscription: InMemorySubscription, unacked: Iterable[Stored]) -> None:
        """Remove a reader; the log stays as it is."""
        self._positions.pop(subscription, None)

    def refill(self, subscription: InMemorySubscription) -> None:
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


# Which queues a key of an exchange goes to: AMQP 0-9-1 direct, fanout and topic matching.


class Router:
    """Exchanges and their bindings. Routes are remembered until a binding changes."""

    def __init__(self) -> None:
        self._kinds: dict[str, ExchangeKind] = {}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    def add(self, topology: Topology) -> None:
        """Add exchanges and bindings; idempotent."""
        for exchange in topology.exchanges:
            self._kinds[exchange.name] = exchange.kind
            self._bindings.setdefault(exchange.name, {})
        for binding in topology.bindings:
            self._bindings[binding.exchange][binding] = None
        self._routes.clear()

    def forget(self, queue: str) -> None:
        """Remove a queue's bindings."""
        for exchange, bindings in self._bindings.items():
            self._bindings[exchange] = {one: None for one in bindings if one.queue != queue}
        self._routes.clear()

    def route(self, exchange: str, key: str) -> tuple[str, ...]:
        """Return the queues for a key, each once. Raises PublishRefused for an unknown exchange."""
        route = self._routes.get((exchange, key))
        if route is None:
            if exchange not in self._kinds:
                raise PublishRefused(f"no exchange {exchange}: run `apc topology apply`")
            route = self._match(exchange, key)
            if route:  # misses are not remembered: any key may be tried, and memory is bounded
                self._routes[(exchange, key)] = route
        return route

    def _match(self, exchange: str, key: str) -> tuple[str, ...]:
        takes = _MATCHERS[self._kinds[exchange]]
        queues = (binding.queue for binding in self._bindings[exchange] if takes(binding.key, key))
        return tuple(dict.fromkeys(queues))


def topic_matches(binding: str, key: str) -> bool:
    """Return whether a topic binding takes a key: `*` is one word, `#` is any number of words, none included."""
    return _words_match(binding.split("."), key.split(".") if key else [])


def _words_match(binding: list[str], key: list[str]) -> bool:
    if not binding:
        return not key
    word, *rest = binding
    if word == "#":
        return _words_match(rest, key) or (bool(key) and _words_match(binding, key[1:]))
    return bool(key) and word in ("*", key[0]) and _words_match(rest, key[1:])


_MATCHERS: dict[ExchangeKind, Callable[[str, str], bool]] = {
    ExchangeKind.DIRECT: str.__eq__,
    ExchangeKind.FANOUT: lambda binding, key: True,
    ExchangeKind.TOPIC: topic_matches,
}


class Exchanges(Protocol):
    """What a bus asks of its broker."""

    def publish(self, publication: Publication, user: str) -> None:
        """Route a message. Raises PublishRefused, PublishUnroutable."""
        ...

    def queue(self, name: str) -> InMemoryQueue | InMemoryStream:
        """Return a queue by name. Raises QueueMissing."""
        ...


class InMemoryBus:
    """`apc_bus.port.Bus` inside one process. Made by `InMemoryBroker.connect`."""

    def __init__(self, broker: Exchanges, user: str, scope: str | None = None) -> None:
        self._broker = broker
        self._user = user
        self._scope = scope
        self._subscriptions: set[InMemorySubscription] = set()
        self._is_closed = False

    @property
    def user(self) -> str:
        """The broker user."""
        return self._user

    @property
    def scope(self) -> str | None:
        """As it was connected: the broker ends with this process, but its messages may come again in the next one."""
        return self._scope

    @property
    def problems(self) -> list[str]:
        """That it is closed: nothing else can go wrong."""
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
        if isinstance(source, InMemoryStream):
            raise BusError(f"{queue} is a stream: use read_substrate")
        subscription = InMemorySubscription(source, prefetch, self.publish, watch)
        source.attach(subscription)
        with self._owned(subscription), nullcontext() if watch is None else watch.until_end():
            yield subscription

    @asynccontextmanager
    async def read_substrate(
        self, offset: int | str = "next", *, since: float | None = None
    ) -> AsyncIterator[Subscription]:
        """Read the substrate stream."""
        self._check()
        stream = self._broker.queue(SUBSTRATE_STREAM)
        assert isinstance(stream, InMemoryStream)
        subscription = InMemorySubscription(stream, 100, self.publish)
        stream.attach(subscription, offset if since is None else stream.offset_at(since))
        with self._owned(subscription):
            yield subscription

    async def depth(self, queue: str) -> QueueDepth:
        """Return the depth of a queue."""
        self._check()
        source = self._broker.queue(queue)
        return QueueDepth(len(source), len(source.consumers))

    async def consumers(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Return how many consumers each queue has."""
        found: dict[str, int | None] = {}
        for queue in queues:
            try:
                found[queue] = (await self.depth(queue)).consumers
            except QueueMissing:
                found[queue] = 0
            except BusUnavailable:
                found[queue] = None
        return found

    async def close(self) -> None:
        """End every subscription; idempotent."""
        self._is_closed = True
        for subscription in tuple(self._subscriptions):
            subscription.end("the bus was closed")

    @contextmanager
    def _owned(self, subscription: InMemorySubscription) -> Iterator[None]:
        self._subscriptions.add(subscription)
        try:
            yield
        finally:
            self._subscriptions.discard(subscription)
            subscription.end("it was closed")

    def _check(self) -> None:
        if self._is_closed:
            raise BusUnavailable("this bus is closed")


class InMemoryBroker:
    """A broker inside this process, for one event loop. Nothing is durable: it ends with the process.

    Args:
        topology: what exists; `apply` adds to it, so that agents can join later.
    """

    def __init__(self, topology: Topology) -> None:
        self._router = Router()
        self._queues: dict[str, InMemoryQueue | InMemoryStream] = {}
        self.apply(topology)

    def apply(self, topology: Topology) -> None:
        """Create what does not exist yet; idempotent. Messages stay where they are."""
        self._router.add(topology)
        for queue in topology.queues:
            if queue.name not in self._queues:
                is_stream = queue.kind is QueueKind.STREAM
                self._queues[queue.name] = (
                    InMemoryStream(queue) if is_stream else InMemoryQueue(queue, self._dead_letter)
                )

    def connect(self, user: str, scope: str | None = None) -> InMemoryBus:
        """Return a bus for one broker user; `scope`: if what it consumes is published again in the next process."""
        return InMemoryBus(self, user, scope)

    def queue(self, name: str) -> InMemoryQueue | InMemoryStream:
        """Return a queue by name. Raises QueueMissing."""
        try:
            return self._queues[name]
        except KeyError:
            raise QueueMissing(f"no queue {name}: add it to the topology") from None

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages; its consumers get SubscriptionLost. Raises QueueMissing."""
        queue = self.queue(name)
        del self._queues[name]
        self._router.forget(name)
        for consumer in queue.consumers:
            consumer.end(f"queue {name} was deleted")

    def publish(self, publication: Publication, user: str) -> None:
        """Route a message, and those that follow it, into every queue whose binding matches.

        Raises:
            PublishRefused: unknown exchange, a user_id that is not the publisher's, a full queue.
            PublishUnroutable: no queue takes it.
        """
        messages = publication.message, *publication.followed_by
        for message in messages:
            if message.user_id is not None and message.user_id != user:
                raise PublishRefused(f"user_id is {message.user_id!r} but the connection's user is {user!r}")
        names = self._router.route(publication.exchange, publication.routing_key)
        if not names:
            raise unroutable(publication.exchange, publication.routing_key)
        queues = [self._queues[name] for name in names]
        for queue in queues:
            queue.check_room(*messages)
        for queue in queues:
            for message in messages:
                queue.append(message, publication.routing_key, is_repeated=publication.is_repeated)

    def _dead_letter(self, queue: Queue, stored: Stored, reason: str) -> None:
        if queue.dead_letter_exchange is None:
            return
        headers = {
            "x-first-death-queue": queue.name,
            "x-first-death-reason": reason,
            **stored.message.headers,
        }
        message = replace(stored.message, expiration_ms=None, headers=headers)
        # Without regard to the bound of the dead queue: with at-least-once dead-lettering the broker keeps
        # what that queue refuses in the first queue, which is memory as well.
        for name in self._router.route(queue.dead_letter_exchange, stored.routing_key):
            self._queues[name].append(message, stored.routing_key)
