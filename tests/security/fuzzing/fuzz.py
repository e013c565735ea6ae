"""Feed a consumer hostile messages through a broker, good ones among them, and see who is alive in the end."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from pydantic import SecretStr
from tests.security.fuzzing.consumers import Consumer
from tests.security.fuzzing.good_messages import for_gate
from tests.security.fuzzing.scripted_broker import Queue, ScriptedBroker
from tests.support.hostile_messages import MESSAGE_ID, HostileMessages, RawMessage
from tests.support.raw_amqp import short
from tests.support.traffic.packets import make_start

from apc_bus.errors import PublishUnroutable
from apc_bus.port import Bus, Message, Publication
from apc_bus.rabbit import connect_rabbit
from apc_bus.rabbit.decoding import read_delivery
from apc_bus.settings import BusSettings
from apc_bus.topology import LOG

GOOD_AFTER = 100
"""So many hostile messages stand before a good one."""
PATIENCE_SECONDS = 60
"""Without any progress; then the consumer counts as ended."""
PUBLISHER = "publisher"
LONGEST_TOLD = 600
"""Characters of a message in a report; the seed makes it again."""


@dataclass
class Outcome:
    """What became of a run."""

    name: str
    seed: str
    cases: int = 0
    ended: int = 0
    set_aside: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = f"{self.name:28} {self.cases:>9,} cases, ended {self.ended}, set aside {self.set_aside}"
        return "\n".join([told, *(f"    seed {self.seed}: {one}" for one in self.problems[:3])])


async def fuzz(kind: type[Consumer], cases: int, seed: str) -> Outcome:
    """Give a consumer so many hostile messages; every one must be settled, and every good one behind them handled."""
    consumer, outcome = kind(), Outcome(kind.name, seed)
    broker = ScriptedBroker(lambda exchange, key, header, body: consumer.published(body))
    wanted: set[str] = set()
    for queue in kind.queues:
        feed = _feed(consumer, cases // len(kind.queues), Random(f"{seed} {queue}"), outcome, wanted)
        broker.queues[queue] = Queue(feed)
    async with broker:
        bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(broker.url)))
        running = asyncio.create_task(consumer.run(bus))
        is_done = await _is_done(broker, consumer, wanted, running)
        running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        await bus.close()
    outcome.set_aside = consumer.set_aside
    outcome.problems = consumer.problems
    _look(broker, outcome, is_done)
    if not isinstance(ended, asyncio.CancelledError):
        outcome.ended += 1
        outcome.problems.append(f"it ended with {ended!r}")
    if lost := wanted - consumer.handled:
        outcome.problems.append(f"{len(lost)} good messages were not handled: {sorted(lost)[:3]}")
    return outcome


def _feed(consumer: Consumer, cases: int, chance: Random, outcome: Outcome, wanted: set[str]) -> Iterator[RawMessage]:
    hostile = HostileMessages(consumer.good(), chance)
    for number in range(cases):
        outcome.cases += 1
        yield hostile.message(partial(consumer.finish, number=number))
        if number % GOOD_AFTER == GOOD_AFTER - 1 or number == cases - 1:
            name, draft = consumer.sentinel()
            consumer.finish(draft, number)
            wanted.add(name)
            yield RawMessage(draft.key, draft.written(), draft.body)


async def _is_done(broker: ScriptedBroker, consumer: Consumer, wanted: set[str], running: asyncio.Task[None]) -> bool:
    """Wait until all is settled and every good message handled; False: it went no further."""
    loop = asyncio.get_running_loop()
    seen, since = (0, 0), loop.time()
    while not running.done():
        queues = broker.queues.values()
        if all(queue.is_done for queue in queues) and wanted <= consumer.handled:
            return True
        now = sum(queue.acknowledged + queue.dead for queue in queues), len(consumer.handled)
        if now != seen:
            seen, since = now, loop.time()
        is_stuck = loop.time() - since > PATIENCE_SECONDS or bool(broker.errors)
        if is_stuck or any(queue.returned for queue in queues):
            return False
        await asyncio.sleep(0.05)
    return False


def _look(broker: ScriptedBroker, outcome: Outcome, is_done: bool) -> None:
    for name, queue in broker.queues.items():
        outcome.ended += max(0, queue.consumers - 1)
        suspects = [*queue.returned, *queue.open.values()][:3]
        if suspects and not is_done:
            outcome.problems.append(f"{name}: not settled: {[_told(one) for one in suspects]}")
    outcome.problems += [f"the test failed: {error!r}" for error in broker.errors]
    if broker.too_long:
        outcome.problems.append(f"{broker.too_long} frames were longer than a broker takes")
    if not is_done and not outcome.problems:
        outcome.problems.append("it went no further")


def _told(message: RawMessage) -> str:
    read = read_delivery(b"\0\x3c\0\x3c\0" + bytes(9) + b"\0\0", bytes(12) + message.properties, message.body)
    return f"{message!r} = {read!r}"[:LONGEST_TOLD]


async def fuzz_publisher(cases: int, seed: str) -> Outcome:
    """Give a publisher hostile messages back; each publish must have its answer."""
    outcome, chance = Outcome(PUBLISHER, seed), Random(seed)
    hostile = HostileMessages(for_gate(make_start()), chance)
    waiting: list[bytes] = []

    def returned(header: bytes) -> RawMessage | None:
        outcome.cases += 1
        name = short(waiting.pop(0))
        return hostile.message(lambda draft: draft.properties.update({MESSAGE_ID: name}))

    broker = ScriptedBroker(returning=returned)
    async with broker:
        bus: Bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(broker.url)))
        for start in range(0, cases, GOOD_AFTER):
            names = [f"m{number}" for number in range(start, min(start + GOOD_AFTER, cases))]
            waiting += [name.encode() for name in names]
            results = await bus.publish_all([Publication(LOG, "0", Message(b"{}", name)) for name in names])
            bad = [one for one in results if one is not None and not isinstance(one, PublishUnroutable)]
            if bad:
                outcome.ended += 1
                outcome.problems.append(f"{bad[0]!r}")
                break
        await bus.close()
    outcome.problems += [f"the test failed: {error!r}" for error in broker.errors]
    return outcome
