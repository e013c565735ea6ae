"""The port, over both adapters: a message that ends its consumers is set aside in the end, and no other."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from apc_bus.consuming import handle
from apc_bus.errors import DeadLetter, SubscriptionLost
from apc_bus.last_resort import ATTEMPTS, LastResort, taken_alone
from apc_bus.port import Bus, Delivery, Message, Publication
from apc_bus.topology import DEAD_QUEUE, INTER_AGENT, agent_queue

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
    assert await consumer.runs_until_all_is_over(10) == 1 + ATTEMPTS + 1
    assert consumer.done == INNOCENTS
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
