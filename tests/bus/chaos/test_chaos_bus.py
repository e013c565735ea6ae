"""Each fault on a real bus: it strikes, and what a broker promises stays true."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import until

from apc_bus.chaos import ChaosBus, ChaosProfile, Fault, FaultKind, Score, Side
from apc_bus.consuming import handle
from apc_bus.errors import PublishUnknown
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.topology import INGRESS, INTER_AGENT, agent_queue, gate_queue
from apc_contracts.vocabulary import PacketType

Make = Callable[..., Message]
INBOX = agent_queue("alpha-1", urgent=False)
COUNT = 8


def chaos(bus: Bus, *faults: Fault, seed: int = 1) -> ChaosBus:
    return ChaosBus(bus, ChaosProfile(seed=seed, fault=faults), "alpha-1")


def fault(kind: FaultKind, chance: float = 0.5, **fields: Any) -> Fault:
    return Fault(kind=kind, chance=chance, **fields)


async def send(bus: Bus, message: Make, count: int = COUNT) -> list[str]:
    """Messages in the inbox, undisturbed."""
    sent = [message() for _ in range(count)]
    await bus.publish_all([Publication(INTER_AGENT, "idea.red.alpha-1", one) for one in sent])
    return [one.message_id for one in sent]


async def receive(subscription: Subscription, count: int) -> list[str]:
    """Ids in the order of their coming, all acknowledged together."""
    found: list[Delivery] = []
    while len(found) < count:
        found += await subscription.receive()
    await subscription.ack(found[-1], multiple=True)
    return [delivery.message.message_id for delivery in found]


async def publish_until_confirmed(bus: Bus, publications: list[Publication]) -> int:
    """Return how often it had to be published again."""
    again = 0
    while publications:
        results = await bus.publish_all(publications)
        assert all(error is None or isinstance(error, PublishUnknown) for error in results)
        publications = [one for one, error in zip(publications, results, strict=True) if error is not None]
        again += len(publications)
    return again


async def test_a_dropped_delivery_comes_again(bus: Bus, message: Make) -> None:
    ids = await send(bus, message)
    disturbed = chaos(bus, fault(FaultKind.DROP))
    async with disturbed.subscribe(INBOX) as subscription:
        assert Counter(await receive(subscription, COUNT)) == Counter(ids)
    assert disturbed.score.struck["drop delivery"] > 0
    assert (await bus.depth(INBOX)).messages == 0


async def test_a_delivery_that_comes_twice_is_acknowledged_once(bus: Bus, message: Make) -> None:
    ids = await send(bus, message)
    disturbed = chaos(bus, fault(FaultKind.DUPLICATE))
    async with disturbed.subscribe(INBOX) as subscription:
        found = Counter(await receive(subscription, COUNT))
        while found.total() < COUNT + disturbed.score.struck["duplicate delivery"]:
            found.update(await receive(subscription, 1))
    assert set(found) == set(ids) and 2 in found.values()
    assert (await bus.depth(INBOX)).messages == 0


async def test_the_delayed_and_the_reordered_come_later_and_none_is_lost(bus: Bus, message: Make) -> None:
    for kind in (FaultKind.DELAY, FaultKind.REORDER, FaultKind.SLOW):
        ids = await send(bus, message)
        disturbed = chaos(bus, fault(kind, ms=(10, 60)))
        async with disturbed.subscribe(INBOX) as subscription:
            found = await receive(subscription, COUNT)
        assert sorted(found) == sorted(ids)
        assert (found == ids) is (kind is FaultKind.SLOW), kind
        assert disturbed.score.struck[f"{kind} delivery"] > 0


async def test_no_more_bytes_than_asked_for(bus: Bus, message: Make) -> None:
    sent = [Publication(INTER_AGENT, "idea.red.alpha-1", message(b"x" * 100)) for _ in range(COUNT)]
    await bus.publish_all(sent)
    disturbed = chaos(bus, fault(FaultKind.DUPLICATE, 0.9), fault(FaultKind.DELAY, ms=(1, 2)))
    async with disturbed.subscribe(INBOX) as subscription:
        found: set[str] = set()
        while len(found) < COUNT:
            batch = await subscription.receive(max_messages=50, max_bytes=250)
            assert 1 <= len(batch) <= 2
            found |= {delivery.message.message_id for delivery in batch}


async def test_what_was_held_back_at_the_end_comes_to_the_next(bus: Bus, message: Make) -> None:
    ids = await send(bus, message, 2)
    disturbed = chaos(bus, fault(FaultKind.DELAY, 0.9, ms=(60_000, 60_000)))
    async with disturbed.subscribe(INBOX) as subscription:
        waiting = asyncio.create_task(subscription.receive())
        await until(disturbed.score.struck.total, 10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with bus.subscribe(INBOX) as subscription:
        assert set(await receive(subscription, 2)) == set(ids)


async def test_a_handler_is_disturbed_too_and_all_are_handled(bus: Bus, message: Make) -> None:
    ids = await send(bus, message)
    handled: Counter[str] = Counter()

    async def count(delivery: Delivery) -> None:
        handled[delivery.message.message_id] += 1

    everything = [fault(kind, 0.3) for kind in FaultKind]

    async def is_all_handled() -> bool:
        return set(handled) == set(ids) and not (await bus.depth(INBOX)).messages

    async with handle(chaos(bus, *everything), INBOX, count):
        await until(is_all_handled)


async def test_a_lost_publish_is_in_doubt_and_safe_to_repeat(bus: Bus, message: Make) -> None:
    disturbed = chaos(bus, fault(FaultKind.DROP))
    publications = [Publication(INGRESS, "0", message()) for _ in range(COUNT)]
    assert await publish_until_confirmed(disturbed, publications) > 0
    ids = {one.message.message_id for one in publications}
    assert disturbed.score.confirmed == ids and not disturbed.score.unknown
    async with bus.subscribe(gate_queue(0)) as subscription:
        assert set(await receive(subscription, COUNT)) <= ids
    assert disturbed.score.struck["drop publish"] > 0


async def test_a_sign_of_life_is_no_packet_that_the_log_must_have(bus: Bus, message: Make) -> None:
    """The log keeps a HEARTBEAT only after a silence: another packet of its sender may be judged before it."""
    disturbed = chaos(bus)
    sent = [message(type=PacketType.HEARTBEAT), message(type=PacketType.IDEA)]
    assert await publish_until_confirmed(disturbed, [Publication(INGRESS, "0", one) for one in sent]) == 0
    assert disturbed.score.confirmed == {sent[1].message_id}


async def test_duplicates_and_damaged_copies_come_beside_the_good_ones(bus: Bus, message: Make) -> None:
    disturbed = chaos(bus, fault(FaultKind.DUPLICATE), fault(FaultKind.CORRUPT), fault(FaultKind.DELAY, ms=(1, 2)))
    sent = [message(b'{"a":1}') for _ in range(COUNT)]
    assert await publish_until_confirmed(disturbed, [Publication(INGRESS, "0", one) for one in sent]) == 0
    struck = disturbed.score.struck
    copies, damaged = struck["duplicate publish"], struck["corrupt publish"]
    assert copies and damaged and struck["delay publish"]
    async with bus.subscribe(gate_queue(0)) as subscription:
        bodies: list[bytes] = []
        while len(bodies) < COUNT + copies + damaged:
            bodies += [delivery.message.body for delivery in await subscription.receive()]
    assert bodies.count(b'{"a":1}') == COUNT + copies
    assert sum(b"\xff" in body for body in bodies) == damaged


async def test_only_whom_the_profile_names(bus: Bus, message: Make) -> None:
    await send(bus, message)
    spared = chaos(bus, fault(FaultKind.DROP, 0.9, agents=("beta-*",)), fault(FaultKind.DROP, 0.9, types=("EVAL",)))
    async with spared.subscribe(INBOX) as subscription:
        await receive(subscription, COUNT)
    assert not spared.score.struck


async def test_the_scores_of_all_processes_are_added_up(
    connect: Callable[[], Awaitable[Bus]], message: Make, tmp_path: Path
) -> None:
    profile = ChaosProfile(fault=(fault(FaultKind.DROP),))
    publications = [Publication(INGRESS, "0", message()) for _ in range(COUNT)]
    for agent in ("one", "two"):
        disturbed = ChaosBus(await connect(), profile, agent, tmp_path)
        await publish_until_confirmed(disturbed, publications)
        await disturbed.close()
    total = Score.read(tmp_path)
    assert total.confirmed == {one.message.message_id for one in publications}
    assert total.struck["drop publish"] > 0 and not total.unknown
    total.note(fault(FaultKind.SLOW), Side.DELIVERY)
    assert total.struck["slow delivery"] == 1
