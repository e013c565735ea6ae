"""Urgent first, never more than eight in a row while a normal one waits, and one session at a time."""

from collections.abc import Callable

import pytest
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents.running.delivery import Inbound
from apc_agents.running.intake import Inbox
from apc_contracts.payloads.by_type import IdeaPayload

MakeInbound = Callable[..., Inbound]


@pytest.fixture
def make_inbound(make_packet: MakePacket, idea: MakeIdea) -> MakeInbound:
    def make(name: str, *, urgent: bool = False, session: str | None = None) -> Inbound:
        packet = make_packet(idea(name), session_id=session or name)
        return Inbound(packet, 1, 0, has_receipts=True, is_urgent=urgent)

    return make


def drain(inbox: Inbox, count: int) -> list[str]:
    names = []
    for _ in range(count):
        inbound = inbox.take()
        assert inbound is not None
        names.append(inbound.packet.payload_as(IdeaPayload).method_id)
        inbox.release(inbound)
    return names


async def test_eight_urgent_packets_then_a_normal_one(make_inbound: MakeInbound) -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(make_inbound(f"n{number}"))
    for number in range(18):
        inbox.put(make_inbound(f"u{number}", urgent=True))
    names = drain(inbox, 21)
    assert names[:10] == [*(f"u{number}" for number in range(8)), "n0", "u8"]
    assert names[17] == "n1"
    assert names[-3:] == ["u16", "u17", "n2"]


async def test_a_busy_session_waits_and_keeps_its_order(make_inbound: MakeInbound) -> None:
    inbox = Inbox()
    for name, session in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        inbox.put(make_inbound(name, session=session))
    first, second = inbox.take(), inbox.take()
    assert first is not None and second is not None
    assert [first.packet.payload_as(IdeaPayload).method_id, second.packet.payload_as(IdeaPayload).method_id] == [
        "a1",
        "b1",
    ]
    inbox.release(first)
    third = inbox.take()
    assert third is not None and third.packet.payload_as(IdeaPayload).method_id == "a2"


async def test_an_inbox_that_is_emptied_gives_back_what_waits(make_inbound: MakeInbound) -> None:
    inbox = Inbox()
    inbox.put(make_inbound("a"))
    assert [inbound.packet.payload_as(IdeaPayload).method_id for inbound in inbox.empty()] == ["a"]
    assert inbox.take() is None
