"""The loop guard in a session: who repeats itself or answers with nothing new is asked, then refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts import IdeaPayload, Packet, ProofBundle, SignalPayload, load_contract, read_packet
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.payloads.by_type import ExpectedImpact, SignalFields
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal
from apc_contracts.wire.parsing import seal

from ..conftest import Simulation
from ..path.way import generation, research

LOOPS = load_contract().loops
IMPACT = ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0)


def idea(name: str = "m") -> IdeaPayload:
    return IdeaPayload(
        method_id=name,
        intent="i",
        assumptions=(),
        required_capabilities=(),
        expected_impact=IMPACT,
        failure_modes=(),
    )


def queries(simulation: Simulation) -> list[tuple[str, str]]:
    """(recipient, what it is about) of the QUERYs that the orchestrator sent to agents."""
    return [
        (packet.recipients[0].agent_id, (packet.payload_as(SignalFields).reason or "").split(";")[0])
        for packet in simulation.packets
        if packet.packet_type is PacketType.SIGNAL
        and packet.sender.agent_id == ORCHESTRATOR
        and packet.payload_as(SignalFields).signal is Signal.QUERY
        and packet.recipients[0].agent_id != ORCHESTRATOR
    ]


def say(
    simulation: Simulation, count: int, agent: str = "red-1", to: str | tuple[str, ...] = "blue-1", **fields: Any
) -> list[str]:
    """Return the codes of `count` packets with the same content, '' where one was accepted."""
    payload = fields.pop("payload", idea())
    verdicts = [simulation.send(agent, payload, to, **fields)[1] for _ in range(count)]
    return [verdict.refusal.code if verdict.refusal else "" for verdict in verdicts]


def talk(simulation: Simulation, voices: Sequence[str], count: int, **fields: Any) -> tuple[list[str], Packet]:
    """Return each answers the one before it, in turn; no two packets have equal content."""
    packet, _ = simulation.send(voices[0], idea("first"), voices[1], keys=("topic",))
    codes = []
    for number in range(1, count):
        sender, to = voices[number % len(voices)], voices[(number + 1) % len(voices)]
        answer, verdict = simulation.send(sender, idea(f"answer {number}"), to, parent=packet, **fields)
        codes.append(verdict.refusal.code if verdict.refusal else "")
        if verdict.refusal is None:
            packet = answer
    return codes, packet


def test_the_same_content_is_asked_about_then_refused(simulation: Simulation) -> None:
    simulation.start()
    before = LOOPS.same_content.query_after
    assert say(simulation, before) == [""] * before
    assert queries(simulation) == []
    rest = LOOPS.same_content.refuse_after - before
    assert say(simulation, rest) == [""] * rest
    assert queries(simulation) == [("red-1", "loop: the same payload again and again")]
    packet, verdict = simulation.send("red-1", idea(), "blue-1")

    assert (verdict.refusal.code, verdict.refusal.path) == ("LOOP_DETECTED", "payload")
    again = judge_recorded(read_packet(seal(packet).body), verdict.facts, simulation.contract)
    assert (again.refusal, again.facts) == (verdict.refusal, verdict.facts)
    assert say(simulation, 3, payload=idea("another")) == [""] * 3
    assert say(simulation, 3, to="sentinel") == [""] * 3
    assert say(simulation, 3, agent="blue-1", to="red-1") == [""] * 3
    assert say(simulation, 3) == ["LOOP_DETECTED"] * 3


def test_a_new_generation_begins_again(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=5)
    research(simulation, start)
    assert say(simulation, LOOPS.same_content.refuse_after + 1)[-1] == "LOOP_DETECTED"
    generation(simulation, start, 0.5, 0.4)
    assert simulation.session.generation == 1

    assert say(simulation, 2) == ["", ""]
    assert say(simulation, 2, generation=0) == ["", ""]


def test_a_session_that_repeats_its_evaluations_each_generation_is_no_loop(simulation: Simulation) -> None:
    limit = LOOPS.same_content.refuse_after + 5
    start = simulation.start(generation_limit=limit, generation_deadline_ms=10**9, state_deadline_ms=10**9)
    research(simulation, start)
    for _ in range(limit):
        generation(simulation, start, 0.5, 0.4)  # asserts that nothing is refused

    assert queries(simulation) == []


def test_repeats_of_one_packet_and_refused_ones_are_not_counted(simulation: Simulation) -> None:
    simulation.start()
    packet, _ = simulation.send("red-1", idea(), "blue-1")
    for _ in range(2 * LOOPS.same_content.refuse_after):
        assert simulation.take(packet).kind == "repeat"
        assert say(simulation, 1, to="nobody") == ["UNROUTABLE"]

    assert say(simulation, 3) == [""] * 3
    assert queries(simulation) == []


def test_what_a_pause_holds_is_judged_for_loops_when_it_comes(simulation: Simulation) -> None:
    simulation.start()
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    codes = say(simulation, LOOPS.same_content.refuse_after + 2)
    assert codes[-2:] == ["LOOP_DETECTED"] * 2 and not any(codes[:-2])
    simulation.send("librarian", SignalPayload(signal=Signal.RESUME))

    assert not simulation.denied
    assert len(simulation.session.identities) > LOOPS.same_content.refuse_after


@pytest.mark.parametrize("voices", [("red-1", "blue-1"), ("red-1", "blue-1", "sentinel", "judge")])
def test_a_cycle_of_senders_with_nothing_new(simulation: Simulation, voices: Sequence[str]) -> None:
    simulation.start()
    turns = LOOPS.idle_turns
    codes, last = talk(simulation, voices, len(voices) + turns.refuse_after + 1)

    assert codes == [""] * (len(voices) + turns.refuse_after - 1) + ["LOOP_DETECTED"]
    assert sorted(queries(simulation)) == sorted((voice, "loop: answers with nothing new") for voice in voices)
    sender = next(voice for voice in voices if voice != last.sender.agent_id)
    fresh = ProofBundle(evidence_refs=("sha256:" + "f" * 64,), falsifiers=())
    _, verdict = simulation.send(sender, idea("known key"), last.sender.agent_id, parent=last, keys=("topic",))
    assert (verdict.refusal.code, verdict.refusal.path) == ("LOOP_DETECTED", "trace.parent_packet_id")
    _, verdict = simulation.send(sender, idea("evidence"), last.sender.agent_id, parent=last, proof_bundle=fresh)
    assert verdict.refusal is None
    _, verdict = simulation.send(sender, idea("again"), last.sender.agent_id, parent=last, proof_bundle=fresh)
    assert verdict.refusal.code == "LOOP_DETECTED"
    _, verdict = simulation.send(sender, idea("key"), last.sender.agent_id, parent=last, keys=("unheard of",))
    assert verdict.refusal is None


def test_control_types_are_asked_about_let_through_and_pass_the_stretch_on(simulation: Simulation) -> None:
    simulation.start()
    packet, _ = simulation.send("red-1", idea(), "blue-1")
    voices = ("blue-1", "red-1")
    for number in range(LOOPS.idle_turns.refuse_after + 5):
        query = SignalPayload(signal=Signal.QUERY, reason=str(number))
        sender = voices[number % 2]
        packet, verdict = simulation.send(sender, query, voices[1 - number % 2], parent=packet)
        assert verdict.refusal is None
    assert sorted(agent for agent, _ in queries(simulation)) == sorted(voices), "asked once, and never refused"
    _, verdict = simulation.send("blue-1", idea("b"), "red-1", parent=packet)

    assert verdict.refusal.code == "LOOP_DETECTED"


def test_who_goes_on_alone_takes_no_turns(simulation: Simulation) -> None:
    start = simulation.start()
    packet = start
    for number in range(3 * LOOPS.idle_turns.refuse_after):
        packet, verdict = simulation.send("red-1", idea(str(number)), "blue-1", parent=packet)
        assert verdict.refusal is None

    assert queries(simulation) == []


def test_a_queried_group_is_asked_once(simulation: Simulation) -> None:
    simulation.start()
    for _ in range(3):
        talk(simulation, ("red-1", "blue-1"), LOOPS.idle_turns.query_after + 4, run_phase="RESEARCH")

    assert len(queries(simulation)) == 2


def test_the_memory_is_bounded(simulation: Simulation) -> None:
    simulation.start()
    for number in range(LOOPS.contents_kept + 10):
        proof = ProofBundle(evidence_refs=(f"sha256:{number:064}",), falsifiers=())
        simulation.send("red-1", idea(str(number)), ORCHESTRATOR, proof_bundle=proof)

    assert len(simulation.session.contents) == LOOPS.contents_kept
    assert len(simulation.session.evidence) == len(simulation.session.document.evidence) == LOOPS.evidence_kept


AGENTS = ("red-1", "blue-1", "sentinel", "judge")
ACTS = st.lists(
    st.tuples(
        st.sampled_from(AGENTS),
        st.sampled_from(AGENTS),
        st.integers(0, 3),  # which of the latest packets it answers
        st.booleans(),  # whether the content was said before
        st.booleans(),  # whether it brings a key
    ),
    max_size=150,
)


@given(ACTS)
@settings(max_examples=25, deadline=None)
def test_refusals_have_a_reason(acts: list[tuple[str, str, int, bool, bool]]) -> None:
    """Against an independent count: nothing is refused below the thresholds, everything beyond them is."""
    simulation = Simulation(load_contract())
    start = simulation.start()
    said: dict[tuple[str, str, str], int] = {}
    history: list[tuple[Packet, list[str]]] = [(start, [])]
    for number, (sender, to, back, is_old, is_new) in enumerate(acts):
        answered, speakers = history[-1 - min(back, len(history) - 1)]
        name = "old" if is_old else f"new {number}"
        keys = (f"key {number}",) if is_new else ()
        packet, verdict = simulation.send(sender, idea(name), to, parent=answered, keys=keys)
        line = [sender] if is_new else [*speakers, sender]
        is_loop = (
            said.get((sender, to, name), 0) >= LOOPS.same_content.refuse_after
            or _idle_turns(line) > LOOPS.idle_turns.refuse_after
        )
        assert (verdict.refusal is not None) == is_loop, verdict.refusal
        if not is_loop:
            said[sender, to, name] = said.get((sender, to, name), 0) + 1
            history.append((packet, line))


def _idle_turns(speakers: list[str]) -> int:
    """Return how often somebody speaks again after another."""
    turns = [one for place, one in enumerate(speakers) if place == 0 or speakers[place - 1] != one]
    return len(turns) - len(set(turns))
