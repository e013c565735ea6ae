"""What follows from an ARTIFACT whose bytes are not what its hash says."""

from typing import Any

from apc_contracts.receipts import ReceiptKind
from apc_contracts.vocabulary import ORCHESTRATOR

from .conftest import HANDLED
from .test_path import evaluation, model, research, to_arbitration

FAILED = (ReceiptKind.VERIFICATION_FAIL,)


def hops_of(simulation: Any, packet: Any) -> list[tuple[str, str, str]]:
    return [
        (hop.recipient, hop.from_state, hop.to_state)
        for effects in simulation.effects
        for hop in effects.hops
        if hop.packet_id == packet.packet_id and hop.recipient
    ]


def test_a_failure_holds_for_those_who_apply_the_packet_later(simulation: Any) -> None:
    start = simulation.start()
    research(simulation, start)
    simulation.verification = FAILED
    artifact, _ = simulation.send("red-1", model(), ("sentinel", "librarian"), parent=start)
    simulation.receipts(artifact, "sentinel")
    simulation.receipts(artifact, "librarian")
    assert hops_of(simulation, artifact) == [
        ("sentinel", "ROUTED", "APPLIED"),
        ("sentinel", "APPLIED", "REJECTED_POLICY"),
        ("librarian", "ROUTED", "APPLIED"),
        ("librarian", "APPLIED", "REJECTED_POLICY"),
    ]
    assert artifact.packet_id not in simulation.session.open


def test_an_artifact_of_execution_with_false_bytes_fails_its_round(simulation: Any) -> None:
    start = to_arbitration(simulation)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    simulation.verification = FAILED
    artifact, _ = simulation.send("red-1", model(), "sentinel", parent=start)
    simulation.send("red-1", evaluation(0.8), "sentinel", parent=artifact)
    assert simulation.session.state == "VALIDATION"
    simulation.receipts(artifact, "sentinel", 1, HANDLED)
    assert (simulation.session.state, simulation.session.round) == ("INDEPENDENT_DISCOVERY", 2)


def test_a_result_that_nobody_waits_for_changes_nothing(simulation: Any) -> None:
    start = simulation.start()
    research(simulation, start)
    artifact, _ = simulation.send("red-1", model(), "sentinel", parent=start)
    before = simulation.session.document.encode()
    simulation.receipts(artifact, ORCHESTRATOR, 1, FAILED)
    assert simulation.session.document.encode() == before
    assert simulation.session.open[artifact.packet_id].verification == ""


def test_an_eval_on_the_substrate_is_evidence_once_the_stream_has_it(simulation: Any) -> None:
    start = simulation.start()
    research(simulation, start)
    sent = [simulation.send(agent, evaluation(0.5), "_substrate", parent=start)[0] for agent in ("red-1", "blue-1")]
    simulation.acknowledge("librarian", "red-1", "blue-1", "sentinel", "judge")
    assert simulation.session.generation == 1
    for packet in sent:
        simulation.confirm(packet)
    assert simulation.session.document.best_outcomes == {"red": 0.5, "blue": 0.5}
    assert not simulation.session.outstanding
