"""Who supersedes whom: the subject, the standing, and that late recipients of the earlier one end alike."""

from itertools import product
from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts import ArbitrationPayload, DecisionPayload, Packet, ProofBundle, SignalPayload
from apc_contracts.payloads.by_type import Candidate, Payload
from apc_contracts.vocabulary import CommitmentLevel, PacketType, RunPhase, Signal

from ..path.way import research, to_arbitration

ENDED = [("APPLIED", "ARCHIVED", ["higher_conflict_resolution_arrived", "supersession_recorded"])]


def decision(name: str = "d", level: CommitmentLevel | None = None) -> DecisionPayload:
    return DecisionPayload(
        decision_id=name, recommendation="go", priority_distribution={}, next_actions=(), commitment_level=level
    )


def arbitration(name: str = "a") -> ArbitrationPayload:
    rows = tuple(Candidate(candidate_id=one, packet_ref_ids=(), score_components={}, total_score=0.5) for one in "ab")
    return ArbitrationPayload(arbitration_id=name, candidates=rows, winner_candidate_id="a", scoring={})


def ends_of(simulation: Simulation, packet: Packet) -> list[Any]:
    """Return what became of a packet after APPLIED."""
    return [
        (hop.from_state, hop.to_state, hop.events)
        for effects in simulation.effects
        for hop in effects.hops
        if hop.packet_id == packet.packet_id and hop.from_state == "APPLIED"
    ]


def send(simulation: Simulation, agent: str, payload: Payload, **fields: Any) -> Any:
    """Return a packet in CONVERGENCE, which allows both types to everybody, applied at once."""
    packet, verdict = simulation.send(agent, payload, "sentinel", run_phase=RunPhase.CONVERGENCE, **fields)
    assert verdict.refusal is None, verdict.refusal
    simulation.receipts(packet, "sentinel")
    return packet


@pytest.fixture
def convergence(simulation: Simulation) -> Simulation:
    """A session that is in CONTROLLED_CONVERGENCE and stays there."""
    start = simulation.start(generation_limit=40)
    research(simulation, start)
    simulation.session.document.state = "CONTROLLED_CONVERGENCE"
    simulation.session.document.run_phase = RunPhase.CONVERGENCE
    return simulation


LEVELS = (None, *CommitmentLevel)
RANKS = [(agent, level) for agent, level in product(("red-1", "judge"), LEVELS)]


@pytest.mark.parametrize(("first", "second"), list(product(range(len(RANKS)), repeat=2)))
def test_standing_is_authority_then_commitment_then_time(convergence: Simulation, first: int, second: int) -> None:
    one = send(convergence, RANKS[first][0], decision(level=RANKS[first][1]))
    two = send(convergence, RANKS[second][0], decision(level=RANKS[second][1]))
    # RANKS is in ascending order: the later one is higher unless the earlier is really above it.
    assert ends_of(convergence, one) == (ENDED if second >= first else [])
    assert ends_of(convergence, two) == []
    moved = [
        hop
        for effects in convergence.effects
        for hop in effects.hops
        if hop.packet_id == one.packet_id and hop.events[0] == ENDED[0][2][0]
    ]
    assert [hop.metadata for hop in moved] == ([{"superseded_by": str(two.packet_id)}] if second >= first else [])
    assert convergence.session.document.superseded == {}


def test_only_the_same_subject_is_superseded(convergence: Simulation) -> None:
    ruling = send(convergence, "red-1", arbitration("a"))
    one = send(convergence, "red-1", decision("d-1"), parent=ruling)
    other = send(convergence, "red-1", decision("d-2"))
    send(convergence, "red-1", arbitration("b"))
    assert [ends_of(convergence, packet) for packet in (ruling, one, other)] == [[], [], []]
    send(convergence, "blue-1", decision("d-3"), parent=ruling)
    assert ends_of(convergence, one) == ENDED, "both decide one ARBITRATION"
    assert ends_of(convergence, other) == []
    send(convergence, "blue-1", arbitration("a"))
    assert ends_of(convergence, ruling) == ENDED


def test_who_applies_it_later_ends_alike(convergence: Simulation) -> None:
    one, _ = convergence.send("red-1", decision(), ("sentinel", "librarian"), run_phase=RunPhase.CONVERGENCE)
    convergence.receipts(one, "sentinel")
    send(convergence, "red-1", decision())
    assert ends_of(convergence, one) == ENDED
    assert one.packet_id in convergence.session.document.superseded, "one delivery is still on its way"
    convergence.receipts(one, "librarian")
    assert ends_of(convergence, one) == ENDED * 2
    assert convergence.session.document.superseded == {} and one.packet_id not in convergence.session.open


def test_a_new_arbitration_after_a_veto_supersedes_the_one_that_was_struck(simulation: Simulation) -> None:
    to_arbitration(simulation)
    simulation.acknowledge()
    (first,) = [one for one in simulation.packets if one.packet_type is PacketType.ARBITRATION]
    assert ends_of(simulation, first) == []
    simulation.send("sentinel", SignalPayload(signal=Signal.VETO), parent=first)
    simulation.pass_time(seconds=3)
    second = [one for one in simulation.packets if one.packet_type is PacketType.ARBITRATION][1]
    assert second.payload_as(ArbitrationPayload).arbitration_id == first.payload_as(ArbitrationPayload).arbitration_id
    ends = ends_of(simulation, first)
    assert ends and ends == ENDED * len(ends)


def test_what_rests_has_its_verification_in_the_log(convergence: Simulation) -> None:
    evidence = ProofBundle(evidence_refs=("sha256:" + "0" * 64,))
    sent = send(convergence, "red-1", decision(), proof_bundle=evidence)
    assert convergence.session.open[sent.packet_id].verification == "passed"
    hops = [hop for effects in convergence.effects for hop in effects.hops if hop.packet_id == sent.packet_id]
    assert (hops[-1].recipient, hops[-1].attempt, hops[-1].to_state, hops[-1].events) == (
        "",
        1,
        "",
        ["verification_pass"],
    )
