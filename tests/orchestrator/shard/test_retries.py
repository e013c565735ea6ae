"""Retries in process: the same delay queues, and nobody but the gate says that one is due."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.orchestrator.conftest import House

from apc_bus.topology import RETRY_DELAYS_MS, agent_queue, retry_queue
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.receipts import ReceiptKind

Build = Callable[..., Packet]
INBOX = agent_queue("sentinel", urgent=False)


async def delivered(running: House, packet: Build, idea: IdeaPayload) -> Packet:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    await running.read("sentinel")
    return sent


async def waiting(running: House) -> int:
    """Messages in the delay queues."""
    operator = running.client("operator")
    depths = [await operator.depth(retry_queue(delay)) for delay in RETRY_DELAYS_MS]
    return sum(depth.messages for depth in depths)


async def test_a_retry_is_put_off_and_comes(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = await delivered(running, packet, idea)
    asked = datetime.now(UTC) + timedelta(milliseconds=400)
    await running.report("sentinel", sent.packet_id, ReceiptKind.RETRY, after_ms=400)
    await running.quiet()
    assert await waiting(running) == 1

    async def has_come() -> bool:
        return bool((await running.client("operator").depth(INBOX)).messages)

    await running.until(has_come)
    assert datetime.now(UTC) >= asked and await waiting(running) == 0
    (delivery,) = await running.read("sentinel")
    assert delivery.message.headers["apc-attempt"] == 2


async def test_an_alarm_that_is_not_the_gates_moves_nothing(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = await delivered(running, packet, idea)
    await running.report("sentinel", sent.packet_id, ReceiptKind.RETRY, after_ms=600_000)
    await running.quiet()
    for user in ("agent.sentinel", "agent.librarian"):
        await running.report("sentinel", sent.packet_id, ReceiptKind.RETRY_DUE, attempt=2, user=user)
    await running.quiet()
    assert not await running.read("sentinel")
    rows = await running.pool.fetch("SELECT reason FROM apc_log.packet_conflicts WHERE kind = 'security'")
    assert [row["reason"] for row in rows] == ["retry_due not from sentinel"] * 2
