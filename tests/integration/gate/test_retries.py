"""Retries over a real broker: put off in the delay queues, delivered by the gate, kept by the next lease holder."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.port import Delivery
from apc_bus.topology import agent_queue
from apc_contracts import Packet
from apc_contracts.wire.receipts import ReceiptKind

PLANNED = """
SELECT metadata -> 'retry' FROM apc_log.packet_events
WHERE packet_id = $1 AND recipient = 'blue-1' AND 'retry_scheduled' = ANY (events) ORDER BY seq DESC LIMIT 1
"""
INBOX = agent_queue("blue-1", urgent=False)


async def send(house: House, **fields: Any) -> Any:
    """Return an IDEA for blue-1, out of its inbox again."""
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening, **fields)
    await house.agents.publish(sent)
    await house.agents.receive("blue-1")
    return sent


async def planned(house: House, packet: Packet) -> dict[str, Any]:
    """Return what the log says of the packet's newest retry."""

    async def is_logged() -> bool:
        return await house.pool.fetchval(PLANNED, packet.packet_id) is not None

    await until(is_logged)
    found: dict[str, Any] = orjson.loads(await house.pool.fetchval(PLANNED, packet.packet_id))
    return found


async def check_second_attempt(house: House, packet: Packet, not_before: datetime) -> Delivery:
    delivery: Delivery
    (delivery,) = await house.agents.receive("blue-1")
    assert datetime.now(UTC) >= not_before
    assert (delivery.message.message_id, delivery.message.headers["apc-attempt"]) == (str(packet.packet_id), 2)
    return delivery


async def test_a_retry_comes_after_the_time_that_was_asked_for(running: House) -> None:
    sent = await send(running)
    asked = datetime.now(UTC) + timedelta(milliseconds=700)
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY, after_ms=700)
    assert (await planned(running, sent))["asked_ms"] == 700
    delivery = await check_second_attempt(running, sent, asked)
    assert 0 < (delivery.message.expiration_ms or 0) < sent.routing.ttl_ms, "what is left of the TTL"
    await running.agents.report("blue-1", [sent.packet_id], attempt=2)
    await until(running.has_nothing_open)


async def test_a_retry_without_a_time_waits_as_the_contract_says(running: House) -> None:
    sent = await send(running)
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY)
    found = await planned(running, sent)
    assert 250 <= found["delay_ms"] <= 500 and "asked_ms" not in found
    await check_second_attempt(running, sent, datetime.fromisoformat(found["due_at"]))


async def test_a_packet_that_expires_while_it_is_put_off(running: House) -> None:
    sent = await send(running, ttl_ms=1_200)
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY, after_ms=60_000)
    await until(running.has_come_to("EXPIRED", sent.packet_id, "blue-1"))
    assert datetime.now(UTC) >= sent.expires
    assert (await running.agents.bus.depth(INBOX)).messages == 0


async def test_the_limit_ends_a_packet_that_is_always_retried(running: House) -> None:
    sent = await send(running, retry_limit=1)
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY, after_ms=1)
    await running.agents.receive("blue-1")
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY, attempt=2, after_ms=1)
    await until(running.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))


@pytest.mark.parametrize("wait_ms", [1_500, 1])
async def test_a_takeover_keeps_the_delay(house: House, wait_ms: int) -> None:
    """Another gate comes before the retry is due, or after it; it puts off again what waits, and only that."""
    async with house.persister():
        async with house.gate():
            await house.open_session()
            sent = await send(house)
            await house.agents.report("blue-1", [sent.packet_id], ReceiptKind.RETRY, after_ms=wait_ms)
            due = datetime.fromisoformat((await planned(house, sent))["due_at"])
        async with house.gate():
            await check_second_attempt(house, sent, due)
            await house.agents.report("blue-1", [sent.packet_id], attempt=2)
            await until(house.has_nothing_open)
