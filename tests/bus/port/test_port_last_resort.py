"""The port, over both adapters: a message that ends its consumers is set aside in the end, and no other."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from apc_bus.consuming import handle
from apc_bus.errors import DeadLetter, SubscriptionLost
from apc_bus.last_resort import ATTEMPTS, LastResort, RedeliveryWatch, taken_alone
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.topology import DEAD_QUEUE, INGRESS, INTER_AGENT, agent_queue, gate_queue

Make = Callable[..., Message]
INBOX = agent_queue("alpha-1", urgent=False)
POISON = b"poison"


async def fill(bus: Bus, message: Make, *bodies: bytes) -> None:
    await bus.publish_all([Publication(INTER_AGENT, "idea.red.alpha-1", message(body)) for body in bodies])


class Consumer:
    """Takes what is there, as the gate does, until its queue is empty; it fails on some messages."""

    def __init__(self, bus: Bus, last_resort: LastResort | None, fails: Callable[[Delivery], bool]) -> None:
        self._bus = bus
        self.last_resort = last_resort
        self._fails = fails
        self.done: Counter[bytes] = Counter()
        self.begun: Counter[bytes] = Counter()
        self.set_aside: list[Message] = []
        self.most_at_once = 0

    async def run(self) -> None:
        watch = None if self.last_resort is None else self.last_resort.watch(self._bus, INBOX)
        async with self._bus.subscribe(INBOX, watch=watch) as inbox:
            while sum(self.done.values()) + len(self.set_aside) < 9:
                batch = await inbox.receive()
                self.most_at_once = len(batch)
                async with taken_alone(batch):
                    self._take(batch)
                await inbox.ack(batch[-1], multiple=True)
                self.done.update(one.message.body for one in batch if one.set_aside is None)
                self.set_aside += [one.message for one in batch if one.set_aside is not None]

    def _take(self, batch: list[Delivery]) -> None:
        for delivery in batch:
            if delivery.set_aside is None:
                self.begun[delivery.message.body] += 1
                if self._fails(delivery):
                    raise ZeroDivisionError("nobody has foreseen this")

    async def runs_until_all_is_over(self, most: int) -> int:
        for run in range(1, most + 1):
            try:
                await self.run()
            except ZeroDivisionError:
                continue
            return run
        raise AssertionError(f"not over after {most} runs")


BODIES = (b"1", b"2", b"3", b"4", POISON, b"5", b"6", b"7", b"8")
INNOCENTS = Counter(body for body in BODIES if body != POISON)


async def test_a_message_that_ends_its_consumer_is_set_aside_and_no_other(
    bus: Bus, message: Make, tmp_path: Path
) -> None:
    await fill(bus, message, *BODIES)
    consumer = Consumer(bus, LastResort(tmp_path), lambda delivery: delivery.message.body == POISON)
    with capture_logs() as logs:
        assert await consumer.runs_until_all_is_over(10) == 1 + ATTEMPTS + 1
    assert consumer.done == INNOCENTS
    (said,) = (one for one in logs if one["event"] == "message_set_aside")
    assert said["message_id"] == consumer.set_aside[0].message_id
    assert [one.body for one in consumer.set_aside] == [POISON]
    assert (await bus.depth(INBOX)).messages == 0


async def test_without_the_last_resort_it_ends_every_consumer(bus: Bus, message: Make) -> None:
    await fill(bus, message, *BODIES)
    consumer = Consumer(bus, None, lambda delivery: delivery.message.body == POISON)
    with pytest.raises(AssertionError, match="not over"):
        await consumer.runs_until_all_is_over(10)
    assert not consumer.set_aside and consumer.begun[POISON] == 10


async def test_what_fails_by_chance_is_not_set_aside(bus: Bus, message: Make, tmp_path: Path) -> None:
    await fill(bus, message, *BODIES)
    chances = iter([False, False, True, True, True])  # it was alone in two of them
    consumer = Consumer(bus, LastResort(tmp_path), lambda one: one.message.body == b"1" and next(chances, False))
    await consumer.runs_until_all_is_over(10)
    assert consumer.done[POISON] == 1 and not consumer.set_aside


async def test_an_end_that_is_explained_says_nothing_of_a_message(bus: Bus, message: Make, tmp_path: Path) -> None:
    await fill(bus, message, *BODIES)
    resort = LastResort(tmp_path)
    for _ in range(3 * ATTEMPTS):
        watch = resort.watch(bus, INBOX)
        assert not watch.is_careful
        with pytest.raises(SubscriptionLost):
            async with bus.subscribe(INBOX, watch=watch) as inbox:
                await inbox.receive()
                raise SubscriptionLost("the broker is away")
    consumer = Consumer(bus, resort, lambda delivery: False)
    assert await consumer.runs_until_all_is_over(1) == 1
    assert consumer.done == Counter(BODIES)


async def test_many_come_at_once_again_when_what_was_redelivered_is_through(
    bus: Bus, message: Make, tmp_path: Path
) -> None:
    await fill(bus, message, *BODIES[:5])
    resort = LastResort(tmp_path)
    consumer = Consumer(bus, resort, lambda delivery: delivery.message.body == b"1" and consumer.begun[b"1"] == 1)
    with pytest.raises(ZeroDivisionError):
        await consumer.run()
    watch = resort.watch(bus, INBOX)
    assert watch.is_careful
    async with bus.subscribe(INBOX, watch=watch) as inbox:
        (first,) = await inbox.receive()
        await fill(bus, message, *BODIES[5:])
        await inbox.ack(first)
        for _ in range(4):
            (one,) = await inbox.receive()
            await inbox.ack(one)
        rest: list[Delivery] = []
        while len(rest) < 4:
            rest += await inbox.receive()
        await inbox.ack(rest[-1], multiple=True)
    assert watch.relaxed.is_set() and not watch.is_careful
    assert not resort.watch(bus, INBOX).is_careful


async def test_a_handler_that_is_run_by_the_bus_loses_no_neighbour(bus: Bus, message: Make, tmp_path: Path) -> None:
    await fill(bus, message, *BODIES)
    done: Counter[bytes] = Counter()

    async def note(delivery: Delivery) -> None:
        done[delivery.message.body] += 1
        if delivery.message.body == POISON:
            raise DeadLetter("no")

    async with handle(bus, INBOX, note, last_resort=LastResort(tmp_path)), bus.subscribe(DEAD_QUEUE) as dead:
        (letter,) = await dead.receive()
        await dead.ack(letter)
    assert letter.message.body == POISON


async def end_unexplained(bus: Bus, resort: LastResort, queue: str = INBOX) -> None:
    """Let a consumer end, without explanation, before it was through with anything."""
    with pytest.raises(ZeroDivisionError):
        async with bus.subscribe(queue, watch=resort.watch(bus, queue)):
            raise ZeroDivisionError("nobody has foreseen this")


async def give_back(bus: Bus, count: int, queue: str = INBOX) -> None:
    """Receive so many messages and leave without an acknowledgement."""
    async with bus.subscribe(queue) as inbox:
        received = 0
        while received < count:
            received += len(await inbox.receive())


async def test_new_messages_are_not_taken_carefully_though_some_are_always_unsettled(
    bus: Bus, message: Make, tmp_path: Path
) -> None:
    resort = LastResort(tmp_path)
    await end_unexplained(bus, resort)
    await fill(bus, message, b"1")
    await give_back(bus, 1)
    watch = resort.watch(bus, INBOX, one_at_a_time=False)
    async with bus.subscribe(INBOX, watch=watch) as inbox:
        (again,) = await inbox.receive()
        assert again.risk is not None
        await fill(bus, message, b"2")
        (new,) = await inbox.receive()
        assert new.risk is None
        await inbox.ack(again)
        assert watch.is_calm, "though one is unsettled"
        assert not watch.relaxed.is_set()
        await inbox.ack(new)
        assert watch.relaxed.is_set()


async def test_a_careful_consumer_ends_its_run_when_a_new_message_comes(
    bus: Bus, message: Make, tmp_path: Path
) -> None:
    resort = LastResort(tmp_path)
    await end_unexplained(bus, resort)
    await fill(bus, message, b"1")
    await give_back(bus, 1)
    watch = resort.watch(bus, INBOX)
    async with bus.subscribe(INBOX, watch=watch) as inbox:
        (again,) = await inbox.receive()
        await inbox.ack(again)
        assert watch.is_careful, "another that came before may be on its way"
        await fill(bus, message, b"2")
        (new,) = await inbox.receive()
        assert watch.is_calm and new.risk is None
    assert not resort.watch(bus, INBOX).is_careful


async def test_what_comes_again_waits_for_the_new_ones_before_it(bus: Bus, message: Make, tmp_path: Path) -> None:
    resort = LastResort(tmp_path)
    await fill(bus, message, POISON)
    async with AsyncExitStack() as other:
        inbox = await other.enter_async_context(bus.subscribe(INBOX, prefetch=1))
        await inbox.receive()
        watch = resort.watch(bus, INBOX)
        async with bus.subscribe(INBOX, watch=watch) as inbox:
            await fill(bus, message, b"1")
            (new,) = await inbox.receive()
            assert watch.is_calm and new.risk is None
            await end_unexplained(bus, resort)
            await other.aclose()
            receiving = asyncio.create_task(inbox.receive())
            async with asyncio.timeout(5):
                while not watch.is_careful:
                    await asyncio.sleep(0)
                assert not receiving.done()
                await inbox.ack(new)
                (alone,) = await receiving
            assert alone.risk is not None and alone.message.body == POISON
            await inbox.ack(alone)


class InTurn:
    """A worker that takes one new message, holds the poison next, and ends of it when it is told to."""

    def __init__(self, bus: Bus, resort: LastResort) -> None:
        self._bus = bus
        self._resort = resort
        self.has_begun, self.holds, self.ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> Message:
        """Return what was set aside."""
        watch = self._resort.watch(self._bus, INBOX)
        async with self._bus.subscribe(INBOX, prefetch=1, watch=watch) as inbox:
            while True:
                (one,) = await inbox.receive()
                if one.set_aside is not None:
                    await inbox.ack(one)
                    return one.message
                async with taken_alone([one]):
                    if one.message.body == POISON:
                        self.holds.set()
                        await self.ends.wait()
                        raise ZeroDivisionError("nobody has foreseen this")
                await inbox.ack(one)
                self.has_begun.set()


async def test_workers_cannot_pass_a_deadly_message_on_without_end(bus: Bus, message: Make, tmp_path: Path) -> None:
    """Each takes a new message first, and has nothing to fear then."""
    resort, ends = LastResort(tmp_path), 0
    worker = InTurn(bus, resort)
    running = asyncio.create_task(worker.run())
    await fill(bus, message, b"new")
    await worker.has_begun.wait()
    await fill(bus, message, POISON)
    while ends < 10:
        holding = asyncio.create_task(worker.holds.wait())
        await asyncio.wait([running, holding], return_when=asyncio.FIRST_COMPLETED)
        holding.cancel()
        if running.done():
            break
        worker, former, ending = InTurn(bus, resort), worker, running
        running = asyncio.create_task(worker.run())
        await fill(bus, message, b"new")
        await worker.has_begun.wait()
        former.ends.set()
        with pytest.raises(ZeroDivisionError):
            await ending
        ends += 1
    assert running.done(), "never set aside"
    assert (await running).body == POISON
    assert ends == 1 + ATTEMPTS


async def test_a_run_of_somebody_elses_messages_costs_one_subscription(bus: Bus, message: Make, tmp_path: Path) -> None:
    class Noting:
        """A bus that notes its subscriptions."""

        scope = bus.scope

        def __init__(self) -> None:
            self.prefetches: list[int] = []
            self.is_second = asyncio.Event()

        def subscribe(
            self, queue: str, *, prefetch: int = 1000, watch: RedeliveryWatch | None = None
        ) -> AbstractAsyncContextManager[Subscription]:
            self.prefetches.append(prefetch)
            if len(self.prefetches) == 2:
                self.is_second.set()
            return bus.subscribe(queue, prefetch=prefetch, watch=watch)

    resort, noting, done = LastResort(tmp_path), Noting(), asyncio.Queue[bytes]()
    await end_unexplained(bus, resort)

    async def note(delivery: Delivery) -> None:
        done.put_nowait(delivery.message.body)

    async with handle(noting, INBOX, note, prefetch=20, last_resort=resort), asyncio.timeout(5):  # type: ignore[arg-type]
        await fill(bus, message, b"first")
        await noting.is_second.wait()
        await fill(bus, message, *BODIES[:4])
        while await done.get() != BODIES[3]:
            pass
    assert noting.prefetches == [1, 20]
    assert resort.watch(bus, INBOX).is_careful, "what it could not be through with may still come"


async def test_a_careful_consumer_goes_on_after_it_gave_up_a_part_of_a_message(
    bus: Bus, message: Make, tmp_path: Path
) -> None:
    resort, queue = LastResort(tmp_path), gate_queue(0)
    await end_unexplained(bus, resort, queue)
    await bus.publish_all([Publication(INGRESS, "0", message(body)) for body in (b"1", b"2", b"3")])
    await give_back(bus, 3, queue)
    watch = resort.watch(bus, queue)
    async with bus.subscribe(queue, watch=watch) as inputs, asyncio.timeout(5):
        (first,) = await inputs.receive()
        await inputs.nack(first, requeue=False)
        await bus.publish(Publication(INGRESS, "0", message(b"behind")))
        while True:
            (one,) = await inputs.receive()
            await inputs.ack(one)
            if one.message.body == b"behind":
                break
    assert watch.relaxed.is_set()
