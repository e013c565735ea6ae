"""Receipts in the header of a packet: taken before it, in the same batch; what cannot be read is told to its sender."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Delivery, Message
from apc_contracts import IdeaPayload, Packet
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_orchestrator.judging.inputs import read_inputs
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.publications import dead_input

Build = Callable[..., Packet]
BATCHES = "SELECT batch_no FROM apc_log.packet_events WHERE packet_id = $1 AND to_state = $2"
KEPT = "SELECT kind, raw FROM apc_log.packet_conflicts ORDER BY seq"


def outcome_of(packet: Packet, recipient: str = "sentinel") -> Receipt:
    return Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=recipient,
        kind=ReceiptKind.OUTCOME,
        attempt=1,
        at=datetime.now(UTC),
    )


def riding(*receipts: Receipt) -> dict[str, Any]:
    return {headers.RECEIPTS: encode_receipts(receipts).decode()}


async def delivered(running: House, packet: Build, idea: IdeaPayload) -> Packet:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    return sent


async def test_they_are_taken_with_the_packet(running: House, packet: Build, idea: IdeaPayload) -> None:
    first = await delivered(running, packet, idea)
    answer = packet("sentinel", idea, ("blue-1",), parent=first)
    await running.publish(answer, headers=riding(outcome_of(first)))
    await running.quiet()
    assert (await running.state_of(first), await running.state_of(answer)) == ("ARCHIVED", "ROUTED")
    ended = await running.pool.fetchval(BATCHES, first.packet_id, "ARCHIVED")
    assert ended == await running.pool.fetchval(BATCHES, answer.packet_id, "ROUTED")
    await running.publish(answer, headers=riding(outcome_of(first)))  # the confirm was lost: both come again
    await running.quiet()
    assert not await running.pool.fetch(KEPT)


async def test_they_count_whatever_becomes_of_the_packet(running: House, packet: Build, idea: IdeaPayload) -> None:
    first = await delivered(running, packet, idea)
    refused = packet("sentinel", idea, ("nobody",), parent=first)
    await running.publish(refused, headers=riding(outcome_of(first)))
    await running.quiet()
    assert (await running.state_of(first), await running.state_of(refused)) == ("ARCHIVED", "REJECTED_POLICY")


@pytest.mark.parametrize("value", [17, "[", "{}", '[{"kind":"outcome"}]', "[" * 200, "[1]" + " " * 65536])
async def test_unreadable_ones_refuse_the_message(running: House, packet: Build, idea: IdeaPayload, value: Any) -> None:
    first = await delivered(running, packet, idea)
    await running.read("sentinel")
    answer = packet("sentinel", idea, ("blue-1",), parent=first)
    body = await running.publish(answer, headers={headers.RECEIPTS: value})
    await running.quiet()
    assert await running.state_of(answer) is None
    (row,) = await running.pool.fetch(KEPT)
    assert tuple(row) == ("unreadable", body)
    (nack,) = await running.nacks("sentinel")
    assert nack.payload.acked_packet_id == answer.packet_id and headers.RECEIPTS in nack.payload.reason


@pytest.mark.long
async def test_those_of_an_input_that_was_set_aside_are_kept(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, first = Judge.judge, await delivered(running, packet, idea)
    poison = packet("sentinel", idea, ("blue-1",), parent=first)

    def fail(self: Judge, batch: Any, received: Any, message: Any) -> None:
        if received.packet.packet_id == poison.packet_id:
            raise RuntimeError("a fault of the gate")
        judge(self, batch, received, message)

    monkeypatch.setattr(Judge, "judge", fail)
    told = riding(outcome_of(first))
    body = await running.publish(poison, headers=told)

    async def is_kept() -> bool:
        return len(await running.pool.fetch(KEPT)) == 2

    await running.until(is_kept, 60)
    rows = [tuple(row) for row in await running.pool.fetch(KEPT)]
    assert rows == [("unjudgeable", body), ("unjudgeable", told[headers.RECEIPTS].encode())]


def test_they_ride_on_packets_alone() -> None:
    for kind in (headers.TYPE_RECEIPTS, headers.TYPE_REGISTRY, headers.TYPE_DEAD_INPUT):
        message = Message(b"[]", "m", type=kind, headers={headers.RECEIPTS: "[]"})
        assert len(read_inputs(Delivery(message, 1, "", False), DEFAULT_LIMITS)) == 1
    message = Message(b"[]", "m", type="IDEA", headers={headers.RECEIPTS: "[]"})
    assert len(read_inputs(Delivery(message, 1, "", False), DEFAULT_LIMITS)) == 2


def test_a_dead_input_keeps_them() -> None:
    letter = Message(b"{}", "m", type="IDEA", user_id="agent.red-1", headers={headers.RECEIPTS: "[]"})
    reports = dead_input(letter, "apc.gate.0", "expired", 0, "orchestrator")
    assert [report.message.body for report in reports] == [b"{}", b"[]"]
