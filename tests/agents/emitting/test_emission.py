"""What an emitted packet inherits, and what its handler may say itself."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import ALL, ROOT, SUBSTRATE, EmitRefused
from apc_agents.emission import Builder, Draft
from apc_agents.running.delivery import KnownSessions, SessionPosition
from apc_contracts import (
    ORCHESTRATOR,
    Actor,
    DeliveryMode,
    IdeaPayload,
    NackPayload,
    Packet,
    Recipient,
    RunPhase,
    reply_id,
)


@pytest.fixture
def sessions() -> KnownSessions:
    return KnownSessions("sentinel-1")


@pytest.fixture
def builder(sessions: KnownSessions) -> Builder:
    return Builder(Actor(agent_id="sentinel-1", role="sentinel", swarm_id="hybrid"), sessions)


@pytest.mark.parametrize(
    ("to", "mode", "recipients"),
    [
        (None, DeliveryMode.DIRECT, ["builder-1"]),
        ("b-2", DeliveryMode.DIRECT, ["b-2"]),
        (["b-2"], DeliveryMode.DIRECT, ["b-2"]),
        (["b-2", Recipient(agent_id="b-3", swarm_id="trees")], DeliveryMode.MULTICAST, ["b-2", "b-3"]),
        (ALL, DeliveryMode.BROADCAST, ["_all"]),
        (Recipient(agent_id=ALL, swarm_id="trees"), DeliveryMode.BROADCAST, ["_all"]),
        (SUBSTRATE, DeliveryMode.SUBSTRATE, ["_substrate"]),
    ],
)
def test_the_destination_decides_the_delivery_mode(
    builder: Builder, make_packet: MakePacket, idea: MakeIdea, to: Any, mode: DeliveryMode, recipients: list[str]
) -> None:
    packet = builder.build(Draft(payload=idea(), to=to), make_packet(idea()), 0).packet
    assert packet.routing.delivery_mode is mode
    assert [recipient.agent_id for recipient in packet.recipients] == recipients


def test_the_same_run_makes_the_same_ids(builder: Builder, make_packet: MakePacket, idea: MakeIdea) -> None:
    cause = make_packet(idea())
    first, second = (builder.build(Draft(payload=idea()), cause, ordinal) for ordinal in (0, 1))
    assert first.packet.packet_id == reply_id(cause.packet_id, "sentinel-1", 0)
    assert (first.cause, first.ordinal) == (cause.packet_id, 0)
    assert first.packet.packet_id != second.packet.packet_id
    assert builder.build(Draft(payload=idea()), cause, 0).packet.packet_id == first.packet.packet_id


def test_a_parent_keeps_its_root(
    builder: Builder, sessions: KnownSessions, make_packet: MakePacket, idea: MakeIdea
) -> None:
    grandparent, other = make_packet(idea()), make_packet(idea())
    cause = make_packet(idea(), parent=grandparent)
    sessions.learn(cause, None)
    sessions.learn(other, None)

    def ancestors(parent: Packet | UUID | None) -> tuple[UUID | None, UUID]:
        trace = builder.build(Draft(payload=idea(), parent=parent), cause, 0).packet.trace
        return trace.parent_packet_id, trace.root_packet_id

    assert ancestors(None) == (cause.packet_id, grandparent.packet_id)
    assert ancestors(other) == (other.packet_id, other.packet_id)
    assert ancestors(other.packet_id) == (other.packet_id, other.packet_id)
    unknown = uuid4()
    assert ancestors(unknown) == (unknown, grandparent.packet_id), "an unknown parent is taken for a relative"


def test_a_caused_packet_may_be_a_root(builder: Builder, make_packet: MakePacket, idea: MakeIdea) -> None:
    cause = make_packet(idea())
    built = builder.build(Draft(payload=idea(), parent=ROOT), cause, 3)
    assert built.packet.is_root and built.packet.trace.root_packet_id == built.packet.packet_id
    assert (built.cause, built.ordinal) == (cause.packet_id, 3)


def test_a_given_id_is_no_derived_one(builder: Builder, make_packet: MakePacket, idea: MakeIdea) -> None:
    packet_id = uuid4()
    built = builder.build(Draft(payload=idea(), packet_id=packet_id), make_packet(idea()), 0)
    assert (built.packet.packet_id, built.cause, built.ordinal) == (packet_id, None, None)


def test_another_session_knows_no_cause(builder: Builder, make_packet: MakePacket, idea: MakeIdea) -> None:
    built = builder.build(Draft(payload=idea(), session_id="s-2", to="b-1"), make_packet(idea()), 0)
    assert (built.packet.packet_id.version, built.cause) == (7, None)
    assert built.packet.is_root
    assert (built.packet.trace.run_id, built.packet.trace.task_id) == ("s-2", "s-2")


def test_a_refusal_of_the_gate_is_no_cause(builder: Builder, make_packet: MakePacket, idea: MakeIdea) -> None:
    lost = make_packet(idea())
    payload = NackPayload(acked_packet_id=lost.packet_id, ack_status="REJECTED")
    nack_id = reply_id(lost.packet_id, ORCHESTRATOR, "nack")
    nack = make_packet(payload, sender=ORCHESTRATOR, parent=lost, packet_id=nack_id)
    built = builder.build(Draft(payload=idea(), to="b-1"), nack, 0)
    assert (built.packet.packet_id.version, built.cause) == (7, None)
    assert built.packet.trace.session_id == nack.trace.session_id
    again = builder.build(Draft(payload=idea(), to="b-1", parent=lost), nack, 0)
    assert again.packet.trace.parent_packet_id == lost.packet_id


def test_the_newest_moment_is_stamped(
    builder: Builder, sessions: KnownSessions, make_packet: MakePacket, idea: MakeIdea
) -> None:
    cause = make_packet(idea())
    sessions.learn(cause, SessionPosition(9, RunPhase.REFINEMENT, 1, 12))
    sessions.learn(cause, SessionPosition(8, RunPhase.DISCOVERY, 1, 10))
    packet = builder.build(Draft(payload=idea()), cause, 0).packet
    assert (packet.run_phase, packet.trace.generation, packet.trace.step) == (RunPhase.REFINEMENT, 12, 9)
    own = builder.build(Draft(payload=idea(), run_phase=RunPhase.RESEARCH, generation=2), cause, 0).packet
    assert (own.run_phase, own.trace.generation, own.trace.step) == (RunPhase.RESEARCH, 2, 9)


def test_the_vector_clock_grows(
    builder: Builder, sessions: KnownSessions, make_packet: MakePacket, idea: MakeIdea
) -> None:
    cause = make_packet(idea(), vector_clock={"builder-1": 4})
    sessions.learn(cause, None)
    builder.build(Draft(payload=idea()), cause, 0)
    sessions.learn(make_packet(idea(), vector_clock={"builder-1": 2, "builder-2": 7}), None)
    clock = builder.build(Draft(payload=idea()), cause, 1).packet.trace.vector_clock
    assert dict(clock or {}) == {"builder-1": 4, "builder-2": 7, "sentinel-1": 2}


@pytest.mark.parametrize(
    ("draft", "code", "path"),
    [
        ({}, "SCHEMA_INVALID", "trace.session_id"),
        ({"session_id": "s-1"}, "UNROUTABLE", "recipients"),
        ({"session_id": "s-1", "to": []}, "SCHEMA_INVALID", "recipients"),
        ({"session_id": "s-1", "to": "a b"}, "SCHEMA_INVALID", "agent_id"),
        ({"session_id": "s-1", "to": "b-1", "priority": 11}, "SCHEMA_INVALID", "priority"),
        ({"session_id": "s-1", "to": "b-1", "parent": uuid4()}, "SCHEMA_INVALID", "trace.root_packet_id"),
        ({"session_id": "s-1", "to": "b-1", "symbolic_keys": ("a", "a")}, "SCHEMA_INVALID", "symbolic_keys"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_place(
    builder: Builder, idea: MakeIdea, draft: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(EmitRefused) as refused:
        builder.build(Draft(payload=idea(), **draft), None, 0)
    assert (refused.value.code, refused.value.path) == (code, path)


def test_an_option_that_does_not_exist_is_refused(idea: Callable[..., IdeaPayload]) -> None:
    options: dict[str, Any] = {"prority": 7}
    with pytest.raises(TypeError, match=r"a packet has no option 'prority': use .*priority"):
        Draft(idea(), **options)
