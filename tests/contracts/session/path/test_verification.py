"""What is to be verified of a packet, and what follows from the result."""

from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts import ClaimPayload, Contract, Packet, ProofBundle, RetractionPayload, new_packet_id
from apc_contracts.packet import Falsifier
from apc_contracts.session.lifecycle import verification_ruling
from apc_contracts.session.movement import FailedCheck
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.receipts import ReceiptKind

from ..conftest import HANDLED
from .way import evaluation, model, research, to_arbitration

FAILED = (ReceiptKind.VERIFICATION_FAIL,)


def hops_of(simulation: Simulation, packet: Packet) -> list[tuple[str, str, str]]:
    return [
        (hop.recipient, hop.from_state, hop.to_state)
        for effects in simulation.effects
        for hop in effects.hops
        if hop.packet_id == packet.packet_id and hop.recipient
    ]


def test_a_failure_holds_for_those_who_apply_the_packet_later(simulation: Simulation) -> None:
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


def test_an_artifact_of_execution_with_false_bytes_fails_its_round(simulation: Simulation) -> None:
    start = to_arbitration(simulation)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    simulation.verification = FAILED
    artifact, _ = simulation.send("red-1", model(), "sentinel", parent=start)
    simulation.send("red-1", evaluation(0.8), "sentinel", parent=artifact)
    assert simulation.session.state == "VALIDATION"
    simulation.receipts(artifact, "sentinel", 1, HANDLED)
    assert (simulation.session.state, simulation.session.round) == ("INDEPENDENT_DISCOVERY", 2)


def test_a_result_that_nobody_waits_for_changes_nothing(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    artifact, _ = simulation.send("red-1", model(), "sentinel", parent=start)
    before = simulation.session.document.encode()
    simulation.receipts(artifact, ORCHESTRATOR, 1, FAILED)
    assert simulation.session.document.encode() == before
    assert simulation.session.open[artifact.packet_id].verification == ""


def test_an_eval_on_the_substrate_is_evidence_once_the_stream_has_it(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    sent = [simulation.send(agent, evaluation(0.5), "_substrate", parent=start)[0] for agent in ("red-1", "blue-1")]
    simulation.acknowledge("librarian", "red-1", "blue-1", "sentinel", "judge")
    assert simulation.session.generation == 1
    for packet in sent:
        simulation.confirm(packet)
    assert simulation.session.document.best_outcomes == {"red": 0.5, "blue": 0.5}
    assert not simulation.session.outstanding


def claim(name: str) -> ClaimPayload:
    return ClaimPayload(claim_id=name, hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)


def falsifier(target: str) -> Falsifier:
    return Falsifier(id="f", target_claim_id=target, test="t", fail_if="x", cost="low")


def findings_of(simulation: Simulation, packet: Packet) -> list[Any]:
    return [
        finding
        for effects in simulation.effects
        for request in effects.verifications
        for finding in request.findings
        if request.received.packet.packet_id == packet.packet_id
    ]


def test_a_falsifier_targets_a_claim_of_the_session(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    own, _ = simulation.send("red-1", claim("c-1"), proof_bundle=ProofBundle(falsifiers=(falsifier("c-1"),)))
    other, _ = simulation.send("blue-1", evaluation(0.5), proof_bundle=ProofBundle(falsifiers=(falsifier("c-1"),)))
    lost, _ = simulation.send("blue-1", evaluation(0.5), proof_bundle=ProofBundle(falsifiers=(falsifier("c-2"),)))
    assert hops_of(simulation, own)[-1][2] == hops_of(simulation, other)[-1][2] == "ARCHIVED"
    assert [(one.check, one.message) for one in findings_of(simulation, lost)] == [
        ("falsifiers", "proof_bundle.falsifiers[0].target_claim_id: no claim 'c-2' was made in this session")
    ]


def test_evidence_that_names_a_packet_names_one_of_the_session(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    known = f"packet:{start.packet_id}"
    unknown = f"packet:{new_packet_id()}"
    sent, _ = simulation.send("red-1", claim("c"), proof_bundle=ProofBundle(evidence_refs=("log://1", known, unknown)))
    assert [one.check for one in findings_of(simulation, sent)] == ["evidence_packets"]
    assert findings_of(simulation, sent)[0].message.startswith("proof_bundle.evidence_refs[2]: ")
    plain, _ = simulation.send("red-1", claim("d"), proof_bundle=ProofBundle(evidence_refs=("log://1", known)))
    assert hops_of(simulation, plain) == [
        (ORCHESTRATOR, "ROUTED", "APPLIED"),
        (ORCHESTRATOR, "APPLIED", "ARCHIVED"),
    ], "nothing to ask: verified in the gate's own hop"


def test_nothing_is_verifying_once_every_result_is_there(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, evaluation(0.5), parent=start)
    assert simulation.session.document.verifying == 0
    simulation.verification = ()
    waiting, _ = simulation.send("red-1", model(), ORCHESTRATOR, parent=start)
    assert simulation.session.document.verifying == 1
    simulation.send("red-1", RetractionPayload(target_packet_id=waiting.packet_id, reason="r"))
    assert simulation.session.document.verifying == 0


@pytest.mark.parametrize(
    ("mode", "expected"), [("enforce", (False, "m")), ("warn", (True, "m")), ("off", (True, None))]
)
def test_the_contract_says_what_a_finding_does(contract: Contract, mode: str, expected: Any) -> None:
    rules = contract.verification.model_copy(update={"endorsements": mode})
    assert verification_ruling([FailedCheck("endorsements", "m")], rules) == expected
    enforced = verification_ruling([FailedCheck("endorsements", "m"), FailedCheck("falsifiers", "n")], rules)
    assert enforced == ((False, "m") if mode == "enforce" else (False, "n"))
