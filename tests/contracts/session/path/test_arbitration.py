"""Vetoes, decisions and retractions around the candidate arbitration, and contracts stricter than the packaged one."""

import json
from importlib.resources import files

import pytest

from apc_contracts import DecisionPayload, Packet, RetractionPayload, SignalPayload
from apc_contracts.contract.contract import Contract, contract_from_bytes
from apc_contracts.payloads.by_type import ArbitrationPayload
from apc_contracts.vocabulary import CommitmentLevel, PacketType, Signal

from ..conftest import Simulation
from .way import evaluation, execute, generation, model, research, to_arbitration, to_validation


def approval() -> DecisionPayload:
    return DecisionPayload(
        decision_id="d",
        recommendation="go",
        priority_distribution={},
        next_actions=(),
        commitment_level=CommitmentLevel.APPROVED,
    )


def override() -> DecisionPayload:
    return DecisionPayload(decision_id="o", recommendation="keep", priority_distribution={}, next_actions=())


def stricter(machine_event: str, guard: str) -> Contract:
    """Return the packaged contract with another guard on one event of the session's machine."""
    file = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    for edge in file["machines"]["inter_agent_coordination"]["edges"]:
        if edge["event"] == machine_event:
            edge.pop("gate", None)
            edge["guard"] = guard
    return contract_from_bytes(json.dumps(file).encode())


def veto(simulation: Simulation) -> Packet:
    standing = simulation.session.document.round_state.arbitration
    packet: Packet
    packet, verdict = simulation.send("sentinel", SignalPayload(signal=Signal.VETO), parent=standing.packet_id)
    assert verdict.refusal is None, verdict.refusal
    return packet


def test_an_approval_under_a_veto_waits_for_its_override(simulation: Simulation) -> None:
    to_arbitration(simulation)
    standing = simulation.session.document.round_state.arbitration
    struck = veto(simulation)
    _, verdict = simulation.send("judge", approval(), parent=standing.packet_id)
    assert verdict.refusal is None
    assert simulation.session.state == "ARBITRATION"
    simulation.send("judge", override(), parent=struck)
    assert simulation.session.state == "EXECUTION"
    assert simulation.session.document.round_state.winner.packet_id == standing.winner


def test_an_approval_under_a_veto_that_stands_comes_to_nothing(simulation: Simulation) -> None:
    to_arbitration(simulation)
    first = simulation.session.document.round_state.arbitration
    veto(simulation)
    simulation.send("judge", approval(), parent=first.packet_id)
    simulation.pass_time(seconds=2)
    second = simulation.session.document.round_state.arbitration
    assert (simulation.session.state, second.is_approved) == ("ARBITRATION", False)
    assert second.winner != first.winner


def test_a_retracted_winner_gives_way_to_the_next_best(simulation: Simulation) -> None:
    to_arbitration(simulation)
    first = simulation.session.document.round_state.arbitration
    agent = first.candidate.agent_id
    simulation.send(agent, RetractionPayload(target_packet_id=first.winner, reason="wrong"))
    second = simulation.session.document.round_state.arbitration
    assert second.packet_id != first.packet_id and second.winner != first.winner
    simulation.pass_time(seconds=3)
    assert simulation.session.state == "EXECUTION"
    assert simulation.session.document.round_state.winner.packet_id == second.winner


def test_a_session_whose_candidates_are_all_retracted_halts(simulation: Simulation) -> None:
    to_arbitration(simulation)
    for _ in range(4):
        standing = simulation.session.document.round_state.arbitration
        agent = standing.candidate.agent_id
        simulation.send(agent, RetractionPayload(target_packet_id=standing.winner, reason="wrong"))
    assert simulation.session.document.halt_reason == "NOTHING_BEATS_BASELINE"
    assert simulation.session.state == "HALTED"


def test_a_pool_too_small_for_the_contract_waits_for_a_generation_more() -> None:
    simulation = Simulation(stricter("candidate_pool_ready", "candidates >= 3.0"))
    start = simulation.start(generation_limit=0)
    research(simulation, start)
    simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
    simulation.acknowledge()
    simulation.pass_time(seconds=11)
    assert (simulation.session.state, simulation.session.generation) == ("CONTROLLED_CONVERGENCE", 1)
    simulation.acknowledge()
    generation(simulation, start, 0.5, 0.4)
    assert str(simulation.session.state) == "ARBITRATION"


@pytest.mark.parametrize(
    "event",
    ["research_briefs_dispatched", "all_swarms_ready", "generation_limit_reached", "candidate_pool_ready"],
)
def test_a_guard_that_never_holds_keeps_the_session_where_it_is(event: str) -> None:
    simulation = Simulation(stricter(event, "generation < -1.0"))
    start = simulation.start(generation_limit=0)
    research(simulation, start)
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, evaluation(0.5), "sentinel", parent=start)
        simulation.acknowledge()
    assert event not in simulation.events
    simulation.pass_time(seconds=1000)
    assert simulation.session.state == "HALTED"


def test_a_validation_that_the_contracts_guard_does_not_pass_has_failed() -> None:
    simulation = Simulation(stricter("validation_pass", "outcome >= 0.99"))
    _, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.75), parent=artifact)
    simulation.acknowledge()
    assert simulation.session.round == 2


def test_the_arbitration_names_every_swarm_and_the_baseline(simulation: Simulation) -> None:
    to_arbitration(simulation)
    (packet,) = [one for one in simulation.packets if one.packet_type is PacketType.ARBITRATION]
    candidates = packet.payload_as(ArbitrationPayload).candidates
    assert [len(candidates), candidates[-1].candidate_id] == [3, "baseline"]


def test_a_veto_is_overridden_by_the_right_to_decide_alone(simulation: Simulation) -> None:
    to_arbitration(simulation)
    first = simulation.session.document.round_state.arbitration
    struck = veto(simulation)
    _, verdict = simulation.send("red-1", override(), parent=struck)
    assert verdict.refusal is None
    simulation.pass_time(seconds=2)
    assert simulation.session.document.round_state.arbitration.winner != first.winner


def test_an_artifact_retracted_in_execution_can_be_replaced(simulation: Simulation) -> None:
    start = to_arbitration(simulation)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    wrong, _ = simulation.send("red-1", model("wrong"), "sentinel", parent=start)
    simulation.send("red-1", RetractionPayload(target_packet_id=wrong.packet_id, reason="wrong file"))
    right = execute(simulation, start)
    simulation.send("sentinel", evaluation(0.75), parent=right)
    simulation.acknowledge()
    assert simulation.session.state == "CLOSED"
    hops = [hop for effects in simulation.effects for hop in effects.hops if hop.to_state == "RETRACTED"]
    assert [hop.from_state for hop in hops] == ["ROUTED"]
