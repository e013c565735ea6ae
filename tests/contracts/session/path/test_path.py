"""The whole way of a session, from START to CLOSED, and the ways off it."""

import pytest
from tests.contracts.session.conftest import Simulation
from tests.contracts.session.path.way import (
    brief,
    evaluation,
    execute,
    generation,
    lineage,
    model,
    research,
    to_arbitration,
    to_validation,
    transfer,
)

from apc_contracts import (
    ClaimPayload,
    DecisionPayload,
    IdeaPayload,
    SignalPayload,
)
from apc_contracts.payloads.by_type import ArbitrationPayload, ExpectedImpact
from apc_contracts.vocabulary import (
    CommitmentLevel,
    PacketType,
    RunPhase,
    Signal,
)


def test_a_run_from_start_to_closed(simulation: Simulation) -> None:
    _start, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.75), parent=artifact)
    simulation.acknowledge()
    assert simulation.session.state == "CLOSED"
    assert simulation.events == [
        "research_briefs_dispatched",
        "all_swarms_ready",
        "barrier",
        "barrier",
        "generation_limit_reached",
        "candidate_pool_ready",
        "decision_committed",
        "artifact_and_eval_emitted",
        "validation_pass",
        "commons_commit_complete",
    ]
    assert not simulation.session.open, [o.packet.packet_type for o in simulation.session.open.values()]
    assert not simulation.session.outstanding
    steps = [transition.step for transition in simulation.transitions]
    assert steps == sorted(set(steps))
    moved = {event for effects in simulation.effects for hop in effects.hops for event in hop.events}
    assert "promotion_eligible" in moved


def test_promotion_reaches_the_eval_and_its_artifact(simulation: Simulation) -> None:
    _, artifact = to_validation(simulation)
    verdict_packet, _ = simulation.send("sentinel", evaluation(0.75), parent=artifact)
    simulation.acknowledge()
    promoted = {
        hop.packet_id for effects in simulation.effects for hop in effects.hops if "promotion_eligible" in hop.events
    }
    assert promoted == {artifact.packet_id, verdict_packet.packet_id}


def test_briefs_that_share_too_much_open_nothing(simulation: Simulation) -> None:
    start = simulation.start()
    simulation.send("librarian", brief(), "red-1", parent=start, keys=("a", "b", "c"))
    simulation.send("librarian", brief(), "blue-1", parent=start, keys=("a", "b", "d"))
    assert simulation.session.state == "SESSION_OPEN"
    simulation.send("librarian", brief(), "blue-1", parent=start, keys=("a", "x", "y"))
    assert simulation.session.state == "DIFFERENTIATED_RESEARCH"


def test_the_generation_deadline_closes_a_barrier_without_the_silent(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=5)
    research(simulation, start)
    for expected in (1, 2):
        simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
        simulation.acknowledge()
        simulation.pass_time(seconds=11)
        simulation.acknowledge()
        assert simulation.session.generation == expected
    assert simulation.session.document.dead_swarms == ["blue"]
    simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
    simulation.acknowledge()
    assert simulation.session.generation == 3
    simulation.send("blue-1", evaluation(0.1), "sentinel", parent=start)
    assert simulation.session.document.dead_swarms == []


def test_an_open_delivery_holds_the_barrier(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=5)
    research(simulation, start)
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, evaluation(0.5), "sentinel", parent=start)
    assert simulation.session.generation == 0
    simulation.acknowledge()
    assert simulation.session.generation == 1


def test_nothing_beats_the_baseline(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=0)
    research(simulation, start)
    generation(simulation, start, 0.0, 0.0)
    assert simulation.session.state == "HALTED"
    assert simulation.session.document.halt_reason == "NOTHING_BEATS_BASELINE"
    assert not any(packet.packet_type is PacketType.ARBITRATION for packet in simulation.packets)


def test_a_veto_strikes_the_winner_and_a_new_window_opens(simulation: Simulation) -> None:
    to_arbitration(simulation)
    first = simulation.session.document.round_state.arbitration
    simulation.send("sentinel", SignalPayload(signal=Signal.VETO), parent=first.packet_id)
    simulation.pass_time(seconds=3)
    second = simulation.session.document.round_state.arbitration
    assert second.packet_id != first.packet_id and second.winner != first.winner
    simulation.pass_time(seconds=3)
    assert simulation.session.state == "EXECUTION"
    assert simulation.session.document.round_state.winner.swarm_id == "blue"


def test_an_overridden_veto_lets_the_winner_pass(simulation: Simulation) -> None:
    to_arbitration(simulation)
    first = simulation.session.document.round_state.arbitration
    veto, _ = simulation.send("sentinel", SignalPayload(signal=Signal.VETO), parent=first.packet_id)
    override = DecisionPayload(decision_id="override", recommendation="keep", priority_distribution={}, next_actions=())
    _, verdict = simulation.send("judge", override, parent=veto)
    assert verdict.refusal is None
    simulation.pass_time(seconds=3)
    assert simulation.session.state == "EXECUTION"
    assert simulation.session.document.round_state.winner.swarm_id == "red"


def test_vetoes_on_everyone_halt(simulation: Simulation) -> None:
    to_arbitration(simulation)
    for _ in range(4):
        assert simulation.session.state == "ARBITRATION"
        standing = simulation.session.document.round_state.arbitration
        simulation.send("sentinel", SignalPayload(signal=Signal.VETO), parent=standing.packet_id)
        simulation.pass_time(seconds=2)
    assert simulation.session.state == "HALTED"


def test_a_decision_with_the_right_commits_at_once(simulation: Simulation) -> None:
    to_arbitration(simulation)
    standing = simulation.session.document.round_state.arbitration
    decision = DecisionPayload(
        decision_id="d",
        recommendation="go",
        priority_distribution={},
        next_actions=(),
        commitment_level=CommitmentLevel.APPROVED,
    )
    simulation.send("judge", decision, parent=standing.packet_id)
    assert simulation.session.state == "EXECUTION"


def test_a_failed_validation_starts_the_next_round_and_the_last_one_halts(simulation: Simulation) -> None:
    _start, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.3), parent=artifact)
    simulation.acknowledge()
    session = simulation.session
    assert (session.state, session.round, session.generation) == ("INDEPENDENT_DISCOVERY", 2, 0)
    excluded = session.document.excluded
    sync = [p for p in simulation.packets if p.payload.__class__ is SignalPayload][-1]
    for _ in range(2):
        generation(simulation, sync, 0.7, 0.5)
    assert session.state == "ARBITRATION"
    assert session.document.round_state.arbitration.winner not in excluded
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    winner = session.document.round_state.winner
    agent = winner.agent_id
    sync = [p for p in simulation.packets if p.payload.__class__ is SignalPayload][-1]
    artifact, _ = simulation.send(agent, model(), ("sentinel",), parent=sync)
    simulation.send(agent, evaluation(0.7), "sentinel", parent=artifact)
    simulation.acknowledge()
    _, verdict = simulation.send("sentinel", evaluation(0.3), parent=artifact)
    assert verdict.refusal is None
    assert session.state == "HALTED", session.document.round_state
    assert session.document.halt_reason == "VALIDATION_FAILED outcome"


def test_a_packet_of_an_older_round_is_admitted_and_not_counted(simulation: Simulation) -> None:
    start, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.3), parent=artifact)
    simulation.acknowledge()
    _, verdict = simulation.send("red-1", evaluation(0.9), "sentinel", parent=start)
    assert verdict.refusal is None
    assert simulation.session.document.round_state.evaluated == []


def test_a_retraction_of_the_artifact_fails_validation(simulation: Simulation) -> None:
    from apc_contracts import RetractionPayload

    _, artifact = to_validation(simulation)
    payload = RetractionPayload(target_packet_id=artifact.packet_id, reason="wrong file")
    _, verdict = simulation.send("red-1", payload)
    assert verdict.refusal is None
    assert simulation.session.round == 2
    _, verdict = simulation.send("red-1", payload)
    assert verdict.refusal.code == "NOT_RETRACTABLE"


def test_stop_halts_and_keeps_the_phase(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    simulation.send("librarian", SignalPayload(signal=Signal.STOP))
    assert simulation.session.state == "HALTED"
    assert simulation.session.run_phase is RunPhase.DISCOVERY
    _, verdict = simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
    assert verdict.refusal.code == "SESSION_TERMINAL"


@pytest.mark.parametrize(("budgets", "reason"), [({"wall_ms": 5000}, "wall_ms"), ({}, "STATE_DEADLINE")])
def test_time_runs_out(simulation: Simulation, budgets: dict[str, int], reason: str) -> None:
    from apc_contracts.payloads.session_signals import Budgets

    simulation.start(budgets=Budgets(**budgets))
    simulation.pass_time(seconds=101)
    assert simulation.session.state == "HALTED"
    assert reason in (simulation.session.document.halt_reason or "")


@pytest.mark.parametrize("measured", [0, 3])
def test_the_search_time_ends_the_search_with_the_open_generation(simulation: Simulation, measured: int) -> None:
    start = simulation.start(generation_limit=20, convergence_generations=2, search_ms=5_000)
    research(simulation, start)
    for _ in range(measured):
        generation(simulation, start, 0.8, 0.6)
    assert simulation.session.state == "INDEPENDENT_DISCOVERY"
    simulation.pass_time(seconds=6)
    assert simulation.session.state == "INDEPENDENT_DISCOVERY", "the open generation is still measured"
    generation(simulation, start, 0.7, 0.6)
    assert simulation.session.state == "ARBITRATION"
    assert simulation.session.generation == measured
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    artifact = execute(simulation, start)
    simulation.send("sentinel", evaluation(0.2), parent=artifact)
    simulation.acknowledge()
    assert simulation.session.document.halt_reason.startswith("VALIDATION_FAILED"), "no further round opens"


def test_the_packet_budget_is_never_exceeded(simulation: Simulation) -> None:
    from apc_contracts.payloads.session_signals import Budgets

    start = simulation.start(budgets=Budgets(packets=3))
    idea = IdeaPayload(
        method_id="m",
        intent="i",
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )
    verdicts = [simulation.send("red-1", idea, "sentinel", parent=start)[1] for _ in range(4)]
    assert [verdict.refusal.code if verdict.refusal else "" for verdict in verdicts] == [
        "",
        "",
        "",
        "BUDGET_EXHAUSTED",
    ]
    assert simulation.session.state == "HALTED"


def test_a_pause_stops_the_clock_and_holds_work(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=3)
    research(simulation, start)
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    simulation.acknowledge()
    claim = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    _packet, verdict = simulation.send("red-1", claim, "sentinel", parent=start)
    assert verdict.kind == "held"
    simulation.pass_time(seconds=1000)
    assert simulation.session.state == "INDEPENDENT_DISCOVERY"
    simulation.send("librarian", SignalPayload(signal=Signal.RESUME))
    assert simulation.effects[-2].resumed or any(effects.resumed for effects in simulation.effects)


def test_transfers_are_arbitrated_together_at_the_barrier(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=13)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.9, 0.2)
    assert simulation.session.state == "SELECTIVE_TRANSFER"
    sent = []
    for score in (0.9, 0.95, 0.99):
        packet, verdict = simulation.send("red-1", transfer(score, 0.1), "blue-1", parent=start, lineage=lineage())
        assert verdict.kind == "held", verdict.refusal
        sent.append(packet)
    weak, verdict = simulation.send("red-1", transfer(0.2, 0.19), "blue-1", parent=start, lineage=lineage())
    assert verdict.kind == "held"
    assert not simulation.inboxes.get("blue-1")
    generation(simulation, start, 0.9, 0.2)
    accepted = [packet.packet_id for packet in sent if packet.packet_id not in simulation.denied]
    assert len(accepted) == 2
    assert simulation.denied[weak.packet_id] == "THROTTLE_SCORE"
    arbitrations = [p for p in simulation.packets if p.packet_type is PacketType.ARBITRATION]
    assert len(arbitrations) == 1 and len(arbitrations[0].payload_as(ArbitrationPayload).candidates) == 5
    assert simulation.session.document.protocols == {"protocol-red": ["red", "blue"]}


def test_transfers_before_generation_11_have_no_phase(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=13)
    research(simulation, start)
    _, verdict = simulation.send("red-1", transfer(0.9, 0.1), "blue-1", parent=start, lineage=lineage())
    assert verdict.refusal.code == "PHASE_FORBIDS_TYPE"
