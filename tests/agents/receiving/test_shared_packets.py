"""Agents of one process share a packet's object, where nothing in it can be changed."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.traffic import make_idea, make_packet

from apc_agents.running.delivery import MOST, MOST_BYTES, SharedPackets, is_unchangeable, read_body
from apc_bus.port import Message
from apc_contracts import Packet, seal
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import parse_checked_packet

Change = Callable[[Packet], Packet]


def idea(**changes: Any) -> Packet:
    packet = make_packet("red-1", make_idea(), ("sentinel",))
    return packet.model_copy(update=changes)


def test_equal_bytes_are_one_packet() -> None:
    body, shared = seal(idea()).body, SharedPackets(parse_checked_packet)
    first = shared.read("m", body)
    assert shared.read("m", bytes(bytearray(body))) is first == parse_checked_packet(body)


def test_other_bytes_under_the_same_id_are_another_packet() -> None:
    shared = SharedPackets(parse_checked_packet)
    first, second = idea(), idea()
    assert shared.read("m", seal(first).body).packet_id == first.packet_id
    assert shared.read("m", seal(second).body).packet_id == second.packet_id


def changed_trace(packet: Packet) -> Packet:
    return packet.model_copy(update={"trace": packet.trace.model_copy(update={"vector_clock": {"red-1": 1}})})


@pytest.mark.parametrize("change", [lambda one: one.model_copy(update={"metadata": {"a": [1]}}), changed_trace])
def test_a_packet_with_a_mapping_is_read_for_each_agent(change: Change) -> None:
    """A handler that changes it would change it for the other agents."""
    body, shared = seal(change(idea())).body, SharedPackets(parse_checked_packet)
    first, second = shared.read("m", body), shared.read("m", body)
    assert first == second and first is not second and not is_unchangeable(first)


def test_few_are_kept_and_no_large_one() -> None:
    shared = SharedPackets(parse_checked_packet)
    bodies = {f"m-{number}": seal(idea()).body for number in range(MOST + 1)}
    first, *_ = read = [shared.read(*one) for one in bodies.items()]
    assert shared.read("m-0", bodies["m-0"]) is not first, "the oldest was forgotten"
    assert shared.read(f"m-{MOST}", bodies[f"m-{MOST}"]) is read[-1]
    large = seal(make_packet("red-1", make_idea("x" * MOST_BYTES), ("sentinel",))).body
    assert shared.read("large", large) is not shared.read("large", large)


def test_only_what_the_gate_delivered_is_shared() -> None:
    packet = seal(idea())
    told = Message(packet.body, "m-of-the-gate", user_id=ORCHESTRATOR)
    other = Message(packet.body, "m-of-the-gate", user_id="agent.red-1")
    assert read_body(told) is read_body(told)
    assert read_body(other) is not read_body(told), "what others published is read strictly"
