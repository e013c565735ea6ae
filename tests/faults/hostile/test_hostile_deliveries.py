"""Packets that are late, out of order, for nobody, for failing handlers, amid a load (rows 19, 20, 26, 27, 34, 35)."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import aio_pika
import pytest
from tests.faults.cast import AWAY, POISON
from tests.faults.hostile.attacks import DOZENS, Attack
from tests.support.traffic import ScriptedWorker, make_idea, until

from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import agent_queue, build_topology
from apc_contracts import Packet

pytestmark = pytest.mark.faults
SOON_MS = 8000
"""Long enough for the gate, too short for who is away."""
REASONS = """
SELECT packet_id, metadata ->> 'error' AS reason FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'
"""


def ids(packets: Sequence[Packet]) -> list[UUID]:
    return [packet.packet_id for packet in packets]


def first_handled(worker: ScriptedWorker, packets: Sequence[Packet]) -> list[UUID]:
    """These packets in the order in which the worker's handler first ran for them."""
    wanted = set(ids(packets))
    return [packet_id for packet_id in worker.effects if packet_id in wanted]


async def send_to_who_is_away(attack: Attack, **fields: Any) -> list[Packet]:
    """Some dozens, each made when it is sent."""
    sent = []
    for _ in range(DOZENS):
        sent.append(attack.idea(to=AWAY, **fields))
        await attack.send(sent[-1])
    return sent


async def test_arrivals_out_of_order(attack: Attack) -> None:
    """Row 19: whatever comes again, each sender's packets are first handled in the order in which they were sent."""
    pairs = [(sender, to) for sender in ("red-1", "librarian") for to in ("blue-1", AWAY)]
    sent = {(sender, to): [attack.idea(sender, to) for _ in range(DOZENS)] for sender, to in pairs}

    async def send(packets: Sequence[Packet], is_repeated: bool) -> None:
        """One after another; behind each, an older one again."""
        for number, packet in enumerate(packets):
            await attack.deployment.send(packet)
            if is_repeated and number:
                await attack.put(packets[number // 2])

    async with attack.amid_load():
        await asyncio.gather(*(send(packets, to == AWAY) for (_, to), packets in sent.items()))
        await attack.come_back()
    await attack.end("older packets behind newer ones")
    for (_, to), packets in sent.items():
        assert first_handled(attack.deployment.workers[to], packets) == ids(packets)


async def test_packets_that_no_handler_survives(attack: Attack) -> None:
    """Row 20: the dead letters are these and no other."""
    poison = [attack.idea(to=to, payload=make_idea(POISON)) for _ in range(DOZENS) for to in ("blue-1", "sentinel")]
    async with attack.amid_load():
        for packet in poison:
            await attack.send(packet)
    await attack.end("a handler that always fails")
    rows = await attack.deployment.pool.fetch(REASONS)
    assert {(row["packet_id"], row["reason"]) for row in rows} == {(one, "handler_error") for one in ids(poison)}


async def test_packets_that_expire(attack: Attack) -> None:
    """Row 26: before the gate sees them, or before their recipient does; no handler starts."""
    long_ago = datetime.now(UTC) - timedelta(minutes=10)
    too_late = [attack.idea(created_at=long_ago, ttl_ms=1000) for _ in range(DOZENS)]
    async with attack.amid_load():
        for packet in too_late:
            await attack.send(packet)
        unread = await send_to_who_is_away(attack, ttl_ms=SOON_MS)
        await until(attack.told("EXPIRED", ids(too_late)))
        await until(attack.are_in("EXPIRED", ids(unread), AWAY))
        sleeper = await attack.come_back()
    await attack.end("expired before the gate, or in the inbox")
    assert await attack.in_state("EXPIRED") == {*ids(too_late), *ids(unread)}
    assert attack.handled.isdisjoint(ids([*too_late, *unread])) and not sleeper.effects


async def test_clocks_that_are_wrong(attack: Attack) -> None:
    """Row 27: the gate goes by its own; what comes from too far ahead is refused, and the order is that of arrival."""
    minutes = (-10, 4, -4, 10)
    async with attack.amid_load():
        sent = []
        for number in range(2 * DOZENS):
            skew = timedelta(minutes=minutes[number % len(minutes)])
            sent.append(attack.idea(created_at=datetime.now(UTC) + skew))
            await attack.send(sent[-1])
        ahead = sent[3::4]
        await until(attack.told("CLOCK_SKEW", ids(ahead)))
    await attack.end("a sender's clock is wrong")
    taken = [packet for packet in sent if packet not in ahead]
    assert first_handled(attack.deployment.workers["blue-1"], sent) == ids(taken)


async def test_recipients_that_are_not_there(attack: Attack) -> None:
    """Row 34: nobody of that name is told to the sender; an inbox that is missing is no loss for other recipients."""
    deployment = attack.deployment
    to_nobody = [attack.idea(to="nobody") for _ in range(DOZENS)]
    to_both = [attack.idea(to=("blue-1", AWAY)) for _ in range(DOZENS)]
    async with attack.amid_load():
        async with await aio_pika.connect(deployment.amqp_url) as connection, connection.channel() as channel:
            await channel.queue_delete(agent_queue(AWAY, urgent=False))
        for packet in (*to_nobody, *to_both):
            await attack.send(packet)
        await until(attack.told("UNROUTABLE", ids(to_nobody)))
        await until(attack.are_in("DEAD_LETTERED", ids(to_both), AWAY))
        await apply_rabbit(deployment.amqp_url, build_topology(1, deployment.agents.queues))
        behind = attack.idea(to=AWAY)
        await deployment.send(behind)
        sleeper = await attack.come_back()
    await attack.end("an unknown recipient, a missing inbox")
    rows = await deployment.pool.fetch(REASONS)
    assert {(row["packet_id"], row["reason"]) for row in rows} == {(one, "no_route") for one in ids(to_both)}
    assert set(sleeper.effects) == {behind.packet_id}
    assert set(ids(to_both)) <= set(deployment.workers["blue-1"].effects)


async def test_a_recipient_that_is_away(attack: Attack) -> None:
    """Row 35: what lives long enough waits for it, the rest expires."""
    async with attack.amid_load():
        short = await send_to_who_is_away(attack, ttl_ms=SOON_MS)
        long = await send_to_who_is_away(attack)
        await until(attack.are_in("EXPIRED", ids(short), AWAY))
        sleeper = await attack.come_back()
    await attack.end("a recipient that is away")
    assert await attack.in_state("EXPIRED") == set(ids(short))
    assert set(sleeper.effects) == set(ids(long))
