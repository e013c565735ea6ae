"""Receipts: batched, split at 64 KiB, by shard, and confirmed before a delivery ends."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import uvloop
from msgspec.structs import replace

from apc_agents.outbox import ReceiptOutbox
from apc_bus.errors import PublishRefused
from apc_bus.in_memory import InMemoryBroker, InMemoryBus
from apc_bus.port import Publication, Subscription
from apc_bus.topology import build_topology, gate_queue
from apc_contracts import Receipt, ReceiptKind, parse_receipts

LINGER = timedelta(seconds=30)


def receipt(kind: ReceiptKind = ReceiptKind.OUTCOME, error: str | None = None) -> Receipt:
    return Receipt(
        packet_id=uuid4(),
        session_id="s-1",
        recipient="a-1",
        kind=kind,
        attempt=1,
        at=datetime.now(UTC),
        error=error,
    )


@pytest.fixture
def bus() -> InMemoryBus:
    return InMemoryBroker(build_topology(2)).connect("agent.a-1")


@pytest.fixture
async def outbox(bus: InMemoryBus) -> AsyncIterator[ReceiptOutbox]:
    box = ReceiptOutbox(bus, LINGER)
    running = asyncio.create_task(box.run())
    yield box
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def shard(bus: InMemoryBus) -> AsyncIterator[Subscription]:
    async with bus.subscribe(gate_queue(0)) as subscription:
        yield subscription


async def test_what_is_added_together_travels_together(outbox: ReceiptOutbox, shard: Subscription) -> None:
    for _ in range(5):
        outbox.add(0, receipt())
    (delivery,) = await shard.receive()
    assert len(parse_receipts(delivery.message.body)) == 5


async def test_a_lingering_receipt_waits_for_the_next(outbox: ReceiptOutbox, shard: Subscription) -> None:
    outbox.add(0, receipt(ReceiptKind.DELIVERY_ACK), may_linger=True)
    for _ in range(10):
        await asyncio.sleep(0)
    outbox.add(0, receipt())
    (delivery,) = await shard.receive()
    assert [one.kind for one in parse_receipts(delivery.message.body)] == ["delivery_ack", "outcome"]


async def test_receipts_of_one_handling_that_wait_together_become_one(
    outbox: ReceiptOutbox, shard: Subscription
) -> None:
    begun = receipt(ReceiptKind.DELIVERY_ACK)
    applied = replace(begun, kind=ReceiptKind.CONSUMER_APPLY, at=begun.at + timedelta(seconds=1))
    ended = replace(begun, kind=ReceiptKind.OUTCOME, at=begun.at + timedelta(seconds=2))
    again = replace(begun, attempt=2)
    outbox.add(0, begun, may_linger=True)
    outbox.add(0, again, may_linger=True)
    outbox.add(0, applied, may_linger=True)
    outbox.add(0, begun, may_linger=True)  # the handler ran again: the first times stand
    outbox.add(0, ended)
    (delivery,) = await shard.receive()
    merged = replace(ended, delivered_at=begun.at, applied_at=applied.at)
    assert parse_receipts(delivery.message.body) == [merged, again]


async def test_a_lingering_receipt_goes_alone_in_the_end(bus: InMemoryBus, shard: Subscription) -> None:
    box = ReceiptOutbox(bus, timedelta(milliseconds=1))
    running = asyncio.create_task(box.run())
    box.add(0, receipt(ReceiptKind.DELIVERY_ACK), may_linger=True)
    (delivery,) = await shard.receive()
    assert len(parse_receipts(delivery.message.body)) == 1
    running.cancel()


async def test_each_shard_gets_its_own(outbox: ReceiptOutbox, bus: InMemoryBus) -> None:
    outbox.add(0, receipt())
    outbox.add(1, receipt())
    await outbox.drained()
    assert [(await bus.depth(gate_queue(number))).messages for number in (0, 1)] == [1, 1]


async def test_messages_stay_below_64_kib(outbox: ReceiptOutbox, shard: Subscription) -> None:
    sent = [receipt(error="x" * 1_000) for _ in range(150)]
    for one in sent:
        outbox.add(0, one)
    await outbox.drained()
    deliveries = await shard.receive()
    assert len(deliveries) > 1
    assert all(len(delivery.message.body) <= 64 * 1024 for delivery in deliveries)
    assert [one for delivery in deliveries for one in parse_receipts(delivery.message.body)] == sent


async def test_a_delivery_ends_only_after_its_receipts_are_confirmed(outbox: ReceiptOutbox, bus: InMemoryBus) -> None:
    publish, may_pass = bus.publish, False
    refused = asyncio.Event()

    async def full(publication: Publication) -> None:
        if not may_pass:
            refused.set()
            raise PublishRefused("queue full")
        await publish(publication)

    bus.publish = full  # type: ignore[method-assign]  # the broker's answer, not the outbox, is replaced
    done = asyncio.get_running_loop().create_future()
    outbox.add(0, receipt())
    outbox.settle(done)
    await refused.wait()
    assert not done.done()
    may_pass = True
    await done
    assert (await bus.depth(gate_queue(0))).messages == 1


async def test_a_settlement_without_receipts_ends_too(outbox: ReceiptOutbox) -> None:
    done = asyncio.get_running_loop().create_future()
    outbox.settle(done, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await done
    await outbox.drained()


def test_a_linger_below_a_millisecond_works_on_uvloop(bus: InMemoryBus) -> None:
    async def settle_two() -> list[None]:
        box = ReceiptOutbox(bus, LINGER, timedelta(microseconds=100))
        running = asyncio.create_task(box.run())
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(2)]
        for end in ends:
            box.settle(end)
        async with asyncio.timeout(20):
            ended = await asyncio.gather(*ends)
        running.cancel()
        return ended

    assert uvloop.run(settle_two()) == [None, None]
