"""Consume a queue with handlers: over any bus, acknowledged together, taken up again when the consumer is lost.

A delivery is acknowledged only when its handling has ended. What ended in the order of the queue is acknowledged in one
frame: over RabbitMQ a packet costs a fifth of the CPU that FastStream's subscriber needs (docs/decisions/0012).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile

from apc_bus.concurrency import Backoff, failure_of, first_of, unasked_cancel_fails
from apc_bus.errors import BusError, BusUnavailable, DeadLetter, GiveBack
from apc_bus.last_resort import LastResort, taken_alone
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.telemetry import get_logger

Take = Callable[[Delivery], asyncio.Future[None]]
"""Takes a delivery at once. How the future ends decides what happens to the delivery.

A result acknowledges it. `DeadLetter` gives it to the dead-letter exchange (nack without requeue), `GiveBack` leaves it
until the consumer ends, any other error gives it back (requeue) after it was logged.
"""
Handler = Callable[[Delivery], Awaitable[None]]
"""Handles one delivery. Returning and raising mean what the end of a `Take` means."""
Tell = Callable[[Delivery, asyncio.Future[None], DeadLetter], None]
"""Reports a delivery that is set aside, and ends the future with the error once that is confirmed."""
Pending = tuple[Delivery, asyncio.Future[None]]

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
"""Seconds between two attempts to consume again."""
GRACE_SECONDS = 30.0
"""How long handlers in flight may take after the context is left; what is not finished then comes again."""

_log = get_logger("apc_bus")


@asynccontextmanager
async def handle(
    bus: Bus, queue: str, handler: Handler, *, prefetch: int = 20, last_resort: LastResort | None = None
) -> AsyncIterator[None]:
    """Handle deliveries in tasks, at most `prefetch` at a time; leaving waits for those in flight.

    Raises:
        QueueMissing, BusUnavailable: the queue cannot be consumed.
    """
    running: set[asyncio.Task[None]] = set()

    def start(delivery: Delivery) -> asyncio.Future[None]:
        task = asyncio.ensure_future(_call(handler, delivery))
        running.add(task)
        task.add_done_callback(running.discard)
        return task

    async with consume(bus, queue, start, prefetch, grace=GRACE_SECONDS, last_resort=last_resort):
        yield


@asynccontextmanager
async def consume(
    bus: Bus,
    queue: str,
    take: Take,
    prefetch: int,
    *,
    grace: float = 0.0,
    last_resort: LastResort | None = None,
    one_at_a_time: bool = True,
    tell: Tell | None = None,
) -> AsyncIterator["Consumer"]:
    """Consume with `take`; leaving waits at most `grace` seconds for what was taken.

    Args:
        last_resort: sets aside what ends its consumer while it is alone; what runs in the future of `take` has to be
            wrapped in the delivery's `risk`.
        one_at_a_time: whether messages that are taken one at a time wait until the former is settled, too.
        tell: reports a message that is set aside before it becomes a dead letter.

    Raises:
        QueueMissing, BusUnavailable: the queue cannot be consumed.
    """
    consumer = Consumer(bus, queue, take, prefetch, grace, last_resort, one_at_a_time, tell)
    running = asyncio.create_task(consumer.run(), name=f"consume {queue}")
    try:
        await first_of(running, consumer.started.wait())
        yield consumer
    finally:
        consumer.stop.set()
        await asyncio.gather(running, return_exceptions=True)


class Consumer:
    """The consumer of one queue; subscribes again when its subscription is lost."""

    def __init__(
        self,
        bus: Bus,
        queue: str,
        take: Take,
        prefetch: int,
        grace: float = 0.0,
        last_resort: LastResort | None = None,
        one_at_a_time: bool = True,
        tell: Tell | None = None,
    ) -> None:
        self._tell = tell
        self._last_resort = last_resort
        self._one_at_a_time = one_at_a_time
        self._bus = bus
        self._queue = queue
        self._take = take
        self._prefetch = prefetch
        self._grace = grace
        self._pending: dict[int, Pending] = {}
        """By their tags, in the order of the queue."""
        self._ended: list[int] = []
        """The tags of those that have ended since the broker was last told: nobody looks through all for them."""
        self._subscription: Subscription | None = None
        self._extended_after = 0
        """Tag of the last delivery when the subscription was extended."""
        self._changed = asyncio.Event()
        self.started = asyncio.Event()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Consume until stopped; the first attempt raises what went wrong, later ones are repeated."""
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, self.stop)
        is_calm_again = False
        while not self.stop.is_set():
            was_careful, is_calm_again = is_calm_again, False
            try:
                with unasked_cancel_fails():
                    is_calm_again = await self._subscribe(backoff, may_be_alone=not was_careful)
                if is_calm_again:
                    continue
            except BusError as error:
                if not self.started.is_set():
                    raise
                if backoff.is_fresh or not isinstance(error, BusUnavailable):
                    _log.warning("consumer_lost", queue=self._queue, reason=str(error))
            except Exception:
                if not self.started.is_set():
                    raise
                _log.exception("consumer_failed", queue=self._queue, next_attempt_seconds=backoff.pause)
            await backoff.wait()

    async def _subscribe(self, backoff: Backoff, *, may_be_alone: bool) -> bool:
        """Consume until told to stop; return whether the messages that were taken one at a time are through.

        Args:
            may_be_alone: whether to begin with one message at a time if consumers have ended. Runs of messages that
                somebody else has by now may stand for long.
        """
        watch = None
        if self._last_resort is not None:
            watch = self._last_resort.watch(self._bus, self._queue, one_at_a_time=self._one_at_a_time)
        is_alone = may_be_alone and watch is not None and watch.is_careful and self._one_at_a_time
        # The broker counts a crash against everything that it has handed over.
        prefetch = 1 if is_alone else self._prefetch
        async with self._bus.subscribe(self._queue, prefetch=prefetch, watch=watch) as subscription:
            self.started.set()
            self._pending, self._ended = {}, []
            self._subscription, self._extended_after = subscription, 0
            backoff.reset()
            await self._consume(subscription, watch.relaxed if watch is not None and is_alone else None)
        return is_alone and not self.stop.is_set()

    async def extend(self) -> None:
        """Take more deliveries if the prefetch is used up: something behind them is awaited."""
        subscription = self._subscription
        held = [tag for tag in self._pending if tag > self._extended_after]
        if subscription is None or len(held) < self._prefetch:
            return
        self._extended_after = max(held)
        try:
            await subscription.extend()
        except BusError as error:  # it is taken up again, with what was not acknowledged
            _log.warning("consumer_not_extended", queue=self._queue, reason=str(error))

    async def _consume(self, subscription: Subscription, relaxed: asyncio.Event | None) -> None:
        ends = [self.stop.wait()] if relaxed is None else [self.stop.wait(), relaxed.wait()]
        await first_of(self._receive(subscription), self._settle_always(subscription), *ends)
        running = [done for _, done in self._pending.values() if not done.done()]
        if running and self._grace:
            await asyncio.wait(running, timeout=self._grace)
        await self._settle(subscription)

    async def _receive(self, subscription: Subscription) -> None:
        while True:
            for delivery in await subscription.receive():
                done = self._begin(delivery)
                self._pending[delivery.tag] = (delivery, done)
                done.add_done_callback(partial(self._note_end, self._ended, delivery.tag))

    def _begin(self, delivery: Delivery) -> asyncio.Future[None]:
        if delivery.set_aside is not None:
            return _set_aside(delivery, self._tell)
        with delivery.read_alone():
            return self._take(delivery)

    def _note_end(self, ended: list[int], tag: int, done: asyncio.Future[None]) -> None:
        ended.append(tag)
        self._changed.set()

    async def _settle_always(self, subscription: Subscription) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._settle(subscription)

    async def _settle(self, subscription: Subscription) -> None:
        """Tell the broker of everything that has ended: the oldest together, the others one by one."""
        pending, last = self._pending, None
        ended = self._ended.copy()
        self._ended.clear()
        for tag, (delivery, _) in list(takewhile(lambda item: _is_good(item[1][1]), pending.items())):
            del pending[tag]
            last = delivery
        if last is not None:
            await subscription.ack(last, multiple=True)
        for tag in ended:
            if tag in pending and not _is_left(pending[tag][1]):
                await self._answer(subscription, *pending.pop(tag))

    async def _answer(self, subscription: Subscription, delivery: Delivery, done: asyncio.Future[None]) -> None:
        error = failure_of(done)
        if error is None:
            return await subscription.ack(delivery)
        if not isinstance(error, DeadLetter):
            packet_id = delivery.message.message_id
            _log.error("delivery_failed", queue=self._queue, packet_id=packet_id, exc_info=error)
        await subscription.nack(delivery, requeue=not isinstance(error, DeadLetter))


async def _call(handler: Handler, delivery: Delivery) -> None:
    async with taken_alone([delivery]):
        await handler(delivery)


def _set_aside(delivery: Delivery, tell: Tell | None) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    error = DeadLetter(f"message {delivery.message.message_id} ended its consumers while it was alone")
    reading = None if delivery.set_aside is None else delivery.set_aside.reading
    if tell is not None and reading is not None:
        try:
            with reading.at_once():
                tell(delivery, done, error)
        except Exception:
            _log.exception("set_aside_not_told", message_id=delivery.message.message_id)
        else:
            return done
    done.set_exception(error)
    return done


def _is_good(done: asyncio.Future[None]) -> bool:
    return done.done() and failure_of(done) is None


def _is_left(done: asyncio.Future[None]) -> bool:
    return isinstance(failure_of(done), GiveBack)
