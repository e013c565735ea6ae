"""What a dead letter says of a delivery, and which ones say nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.contracts.session.conftest import REGISTRY

from apc_bus import headers
from apc_bus.port import Delivery, Message, SetAside
from apc_bus.topology import agent_queue, host_key, host_queue
from apc_contracts import IdeaPayload, Packet
from apc_contracts.identity.ids import shard_of
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import SET_ASIDE, Receipt, ReceiptKind
from apc_orchestrator.dead_letters import DEATH_QUEUE, DEATH_REASON, receipt_of, reports_of, unread_reports_of
from apc_orchestrator.judging.inputs import is_authentic
from apc_orchestrator.judging.registry import Registry

Build = Callable[..., Packet]


def letter(packet: Packet, **changed: Any) -> Delivery:
    values = {DEATH_QUEUE: agent_queue("sentinel", False), DEATH_REASON: "expired", headers.ATTEMPT: 2}
    fields: dict[str, Any] = {"type": packet.packet_type.value, "user_id": "orchestrator", "headers": values} | changed
    fields["headers"] = values | changed.get("headers", {})
    return Delivery(Message(seal(packet).body, str(packet.packet_id), **fields), 1, "", False)


def test_a_delivery_of_the_gate_that_expired(packet: Build, idea: IdeaPayload) -> None:
    found = receipt_of(letter(packet("red-1", idea, ("sentinel",))), "orchestrator", DEFAULT_LIMITS)
    assert found is not None
    assert (found.recipient, found.kind, found.attempt) == ("sentinel", "expired", 2)


def test_a_delivery_from_the_queue_of_a_host_names_its_recipient_by_the_key(packet: Build, idea: IdeaPayload) -> None:
    dead = letter(packet("red-1", idea, ("sentinel",)), headers={DEATH_QUEUE: host_queue("h0", urgent=False)})
    hosted = replace(dead, routing_key=host_key("h0", "sentinel", urgent=False))
    found = receipt_of(hosted, "orchestrator", DEFAULT_LIMITS)
    assert found is not None and found.recipient == "sentinel"
    assert receipt_of(dead, "orchestrator", DEFAULT_LIMITS) is None, "without that key nobody knows"


def test_the_nack_of_a_gate_in_the_queue_of_a_host_says_nothing(packet: Build, idea: IdeaPayload) -> None:
    dead = letter(packet("red-1", idea), type="NACK", headers={DEATH_QUEUE: host_queue("h0", urgent=True)})
    hosted = replace(dead, routing_key=host_key("h0", "red-1", urgent=True))
    assert reports_of(hosted, "orchestrator", 1, DEFAULT_LIMITS) == []


@pytest.mark.parametrize("told", [0, 1, 2, -1, True, "1", None])
def test_a_letter_goes_to_the_shard_that_delivered_it(packet: Build, idea: IdeaPayload, told: Any) -> None:
    """Its session may have been opened with another number of shards; a shard that is none counts for nothing."""
    sent = packet("red-1", idea, ("sentinel",))
    (found,) = reports_of(letter(sent, headers={headers.SHARD: told}), "orchestrator", 2, DEFAULT_LIMITS)
    by_name = shard_of(sent.trace.session_id, 2)
    assert found.routing_key == str(told if type(told) is int and told in (0, 1) else by_name)


@pytest.mark.parametrize("attempt", [0, -1, "x", None])
def test_an_attempt_that_is_none_stops_nothing(packet: Build, idea: IdeaPayload, attempt: Any) -> None:
    dead = letter(packet("red-1", idea, ("sentinel",)), headers={headers.ATTEMPT: attempt})
    found = receipt_of(dead, "orchestrator", DEFAULT_LIMITS)
    assert found is not None and found.attempt == 1


@pytest.mark.parametrize("changed", [{"user_id": "agent.red-1"}, {"type": "NACK"}, {"headers": {DEATH_QUEUE: "apc.x"}}])
def test_what_is_no_delivery_of_the_gate_says_nothing(packet: Build, idea: IdeaPayload, changed: Any) -> None:
    dead = letter(packet("red-1", idea, ("sentinel",)), **changed)
    assert receipt_of(dead, "orchestrator", DEFAULT_LIMITS) is None


@pytest.mark.parametrize(
    ("queue", "user", "shard"),
    [("apc.gate.1", "agent.red-1", "1"), ("apc.gate.7", "agent.red-1", "0"), ("apc.log.0", "orchestrator", "0")],
)
def test_what_is_no_delivery_is_handed_to_a_gate(
    packet: Build, idea: IdeaPayload, queue: str, user: str, shard: str
) -> None:
    dead = letter(packet("red-1", idea), user_id=user, headers={DEATH_QUEUE: queue, DEATH_REASON: "delivery_limit"})
    (found,) = reports_of(dead, "orchestrator", 2, DEFAULT_LIMITS)
    assert found.routing_key == shard
    assert (found.message.type, found.message.body) == (headers.TYPE_DEAD_INPUT, dead.message.body)
    assert found.message.headers[headers.DIED_USER] == user
    assert found.message.headers[headers.DIED_OF] == "delivery_limit"


def test_the_nack_of_a_gate_says_nothing(packet: Build, idea: IdeaPayload) -> None:
    assert reports_of(letter(packet("red-1", idea), type="NACK"), "orchestrator", 1, DEFAULT_LIMITS) == []


def test_a_nack_of_an_agent_that_dies_before_the_gate_is_kept(packet: Build, idea: IdeaPayload) -> None:
    dead = letter(packet("red-1", idea), type="NACK", headers={DEATH_QUEUE: "apc.gate.0"})
    assert len(reports_of(dead, "orchestrator", 1, DEFAULT_LIMITS)) == 1


def test_a_delivery_with_unreadable_properties_is_kept_with_them(packet: Build, idea: IdeaPayload) -> None:
    dead = letter(packet("red-1", idea, ("sentinel",)), headers={headers.UNREADABLE: b"\xff"})
    first, second = reports_of(dead, "orchestrator", 1, DEFAULT_LIMITS)
    assert (first.message.body, second.message.body) == (dead.message.body, b"\xff")
    assert headers.DIED_ID in first.message.headers and headers.DIED_ID not in second.message.headers


def test_forged_headers_of_any_length_leave_room_for_the_report(packet: Build, idea: IdeaPayload) -> None:
    """A broker closes the connection on a frame that is too long, each time that the letter is read again."""
    told = {DEATH_QUEUE: "x" * 60_000, DEATH_REASON: b"\xff" * 40_000, headers.RECEIPTS: "r" * 30_000}
    dead = letter(packet("red-1", idea), user_id="agent.red-1", headers=told)
    found = reports_of(dead, "orchestrator", 1, DEFAULT_LIMITS)
    assert [one.message.body for one in found] == [dead.message.body, b"r" * 30_000]
    assert all(len(str(value)) <= 255 for one in found for value in one.message.headers.values())


@pytest.mark.parametrize(
    ("told", "set_aside", "kept"),
    [
        ({headers.RECEIPTS: "[]"}, None, [b"[]"]),
        ({headers.RECEIPTS: "[]", headers.UNREADABLE: b"\xff"}, SetAside(), [b"[]", b"\xff"]),
        ({}, SetAside(b"\xfe"), [b"\xfe"]),
    ],
)
def test_what_is_set_aside_unread_keeps_its_receipts_and_properties(
    packet: Build, idea: IdeaPayload, told: dict[str, Any], set_aside: SetAside | None, kept: list[bytes]
) -> None:
    dead = replace(letter(packet("red-1", idea), user_id="agent.red-1", headers=told), set_aside=set_aside)
    found = unread_reports_of(dead, "orchestrator")
    assert [one.message.body for one in found] == [dead.message.body, *kept]
    assert {one.message.headers[headers.DIED_USER] for one in found} == {"agent.red-1"}


@pytest.mark.parametrize(
    ("kind", "set_aside", "user", "counts"),
    [
        (ReceiptKind.DEAD_LETTERED, True, "agent.red-1", True),
        (ReceiptKind.DEAD_LETTERED, True, "agent.librarian", False),
        (ReceiptKind.DEAD_LETTERED, False, "agent.red-1", False),
        (ReceiptKind.DEAD_LETTERED, False, ORCHESTRATOR, True),
        (ReceiptKind.RETRY, True, "agent.red-1", False),
        (ReceiptKind.RETRY, False, "agent.red-1", True),
    ],
)
def test_a_recipient_reports_a_dead_letter_only_when_it_has_set_the_packet_aside(
    kind: ReceiptKind, set_aside: bool, user: str, counts: bool
) -> None:
    receipt = Receipt(
        packet_id=UUID(int=1),
        session_id="s-1",
        recipient="red-1",
        kind=kind,
        attempt=1,
        at=datetime.now(UTC),
        error=SET_ASIDE,
        set_aside=set_aside,
    )
    registry = Registry(ORCHESTRATOR, REGISTRY, set())
    assert is_authentic(receipt, user, registry, ORCHESTRATOR) is counts
