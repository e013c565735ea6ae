"""Receipts that ride on a packet: which of them, and what ends when the packet is confirmed or not."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from apc_agents.outbox import RIDING_RECEIPTS, ReceiptOutbox, Riding
from apc_bus import headers
from apc_bus.in_memory import InMemoryBroker, InMemoryBus
from apc_bus.port import Message, Publication
from apc_bus.topology import INGRESS, build_topology, gate_queue
from apc_contracts import Receipt, ReceiptKind, parse_receipts

LINGER = timedelta(seconds=30)


def receipt(kind: ReceiptKind = ReceiptKind.OUTCOME, error: str | None = None) -> Receipt:
    return Receipt(
        packet_id=uuid4(), session_id="s-1", recipient="a-1", kind=kind, attempt=1, at=datetime.now(UTC), error=error
    )


@pytest.fixture
def bus() -> InMemoryBus:
    return InMemoryBroker(build_topology(2)).connect("agent.a-1")


@pytest.fixture
async def outbox(bus: InMemoryBus) -> ReceiptOutbox:
    return ReceiptOutbox(bus, LINGER, LINGER)


def delivery() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def told(found: Riding | None) -> list[Receipt]:
    return [] if found is None else parse_receipts(found.text.encode())


async def test_the_end_of_a_delivery_rides_and_ends_it(outbox: ReceiptOutbox) -> None:
    end, done = receipt(), delivery()
    outbox.add(0, end)
    outbox.settle(done)
    found = outbox.board(0)
    assert found is not None and told(found) == [end]
    assert outbox.board(0) is None and not done.done()
    outbox.arrived(found)
    assert done.done()
    await outbox.drained()


async def test_a_packet_carries_them_beside_its_own_headers(outbox: ReceiptOutbox) -> None:
    outbox.add(0, receipt())
    found = outbox.board(0)
    assert found is not None
    packet = Publication(INGRESS, "0", Message(b"{}", "p-1", headers={headers.ORDINAL: 0}))
    assert found.on(packet).message.headers == {headers.ORDINAL: 0, headers.RECEIPTS: found.text}
    assert found.on(packet).message.body == b"{}" and packet.message.headers == {headers.ORDINAL: 0}


async def test_what_waits_for_the_end_of_its_handler_stays(outbox: ReceiptOutbox) -> None:
    begun, end, other = receipt(ReceiptKind.DELIVERY_ACK), receipt(), delivery()
    outbox.add(0, begun, may_linger=True)
    outbox.add(0, end)
    outbox.settle(other)
    found = outbox.board(0)
    assert found is not None and told(found) == [end]
    outbox.arrived(found)
    assert not other.done(), "a receipt that was added before it is not confirmed"
    outbox.add(0, receipt(ReceiptKind.DELIVERY_ACK), may_linger=True)
    assert outbox.board(0) is None, "nothing has ended"


@pytest.mark.parametrize(
    "waiting",
    [
        [(1, receipt())],
        [(0, receipt()), (1, receipt())],
        [(0, receipt()) for _ in range(RIDING_RECEIPTS + 1)],
        [(0, receipt(error="x" * 1_000)) for _ in range(5)],
        [],
    ],
    ids=["of another shard", "of two shards", "too many", "too long", "none"],
)
async def test_others_go_in_their_own_message(outbox: ReceiptOutbox, waiting: list[tuple[int, Receipt]]) -> None:
    for shard, one in waiting:
        outbox.add(shard, one)
    assert outbox.board(0) is None


async def test_nothing_rides_while_others_are_not_confirmed(bus: InMemoryBus, outbox: ReceiptOutbox) -> None:
    publish, is_sent, may_pass = bus.publish, asyncio.Event(), asyncio.Event()

    async def slow(publication: Publication) -> None:
        is_sent.set()
        await may_pass.wait()
        await publish(publication)

    bus.publish = slow  # type: ignore[method-assign]  # the broker's answer, not the outbox, is replaced
    running = asyncio.create_task(outbox.run())
    outbox.add(0, receipt())
    draining = asyncio.create_task(outbox.drained())
    await is_sent.wait()
    outbox.add(0, receipt())
    assert outbox.board(0) is None
    may_pass.set()
    running.cancel()
    draining.cancel()
    await asyncio.gather(running, draining, return_exceptions=True)


async def test_receipts_of_an_unconfirmed_packet_go_alone(bus: InMemoryBus, outbox: ReceiptOutbox) -> None:
    end, later, done = receipt(), receipt(), delivery()
    outbox.add(0, end)
    outbox.settle(done)
    found = outbox.board(0)
    assert found is not None
    outbox.add(0, later)
    running = asyncio.create_task(outbox.run())
    outbox.give_back(found)
    await done
    async with bus.subscribe(gate_queue(0)) as shard:
        (message,) = await shard.receive()
    assert parse_receipts(message.message.body) == [end, later]
    await outbox.drained()
    running.cancel()


async def test_a_drain_waits_for_what_rides(outbox: ReceiptOutbox) -> None:
    outbox.add(0, receipt())
    found = outbox.board(0)
    assert found is not None
    running, draining = asyncio.create_task(outbox.run()), asyncio.create_task(outbox.drained())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done()
    outbox.arrived(found)
    await draining
    running.cancel()
