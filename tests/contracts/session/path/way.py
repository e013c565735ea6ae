"""The payloads of a session's way, and the steps of it that tests repeat."""

from typing import Any

from tests.contracts.session.conftest import Simulation

from apc_contracts import (
    ArtifactPayload,
    EvalPayload,
    Packet,
    SignalPayload,
    TaskIrPayload,
    TransferPayload,
)
from apc_contracts.packet import Lineage
from apc_contracts.payloads.by_type import MetricSet, Thresholds, TransferPolicy
from apc_contracts.payloads.task_ir import IrConstraint, IrHeader
from apc_contracts.vocabulary import (
    ArtifactKind,
    Signal,
    TransferMode,
)

THRESHOLDS = Thresholds(rtf=1.0, stability=0.9, audit=1.0, outcome=0.5, learnability=0.7, generalization_ratio=0.8)


def brief(task: str = "task-1") -> TaskIrPayload:
    header = IrHeader(task_id=task, run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    return TaskIrPayload(
        ir_header=header, objects=(IrConstraint(id="c", constraint_kind="QUALITY", expression="best"),)
    )


def evaluation(outcome: float, **metrics: float) -> EvalPayload:
    fields: dict[str, Any] = {
        "rtf": 1.0,
        "stability": 0.95,
        "audit": 1.0,
        "learnability": 0.9,
        "generalization_ratio": 1.0,
        "drift_risk": 0.1,
    } | metrics
    return EvalPayload.model_validate(
        {"metric_set": MetricSet(outcome=outcome, **fields), "thresholds": THRESHOLDS, "pass": True}
    )


def model(name: str = "model") -> ArtifactPayload:
    return ArtifactPayload(
        artifact_id=name,
        artifact_kind=ArtifactKind.MODEL_SNAPSHOT,
        artifact_uri=f"file:///{name}",
        artifact_hash="sha256:" + "1" * 64,
    )


def transfer(sender_score: float, receiver_score: float, top_k: int = 2) -> TransferPayload:
    return TransferPayload(
        protocol_id="protocol-red",
        from_swarm="red",
        to_swarm="blue",
        sender_score=sender_score,
        receiver_score=receiver_score,
        transfer_policy=TransferPolicy(mode=TransferMode.SELECTIVE_IMPORT, top_k=top_k),
    )


def lineage() -> Lineage:
    return Lineage(
        protocol_id="protocol-red",
        parent_protocol_ids=(),
        ancestor_swarms=(),
        cross_use_case=False,
        transfer_mode=TransferMode.SELECTIVE_IMPORT,
    )


def research(simulation: Simulation, start: Packet) -> None:
    """Briefs and readiness: into INDEPENDENT_DISCOVERY."""
    simulation.acknowledge()
    simulation.send("librarian", brief(), "red-1", parent=start, keys=("a", "b"))
    simulation.send("librarian", brief(), "blue-1", parent=start, keys=("c", "d"))
    simulation.acknowledge()
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, SignalPayload(signal=Signal.SYNC), parent=start)
    simulation.acknowledge()


def generation(simulation: Simulation, start: Packet, red: float, blue: float) -> None:
    """One generation: both swarms evaluate, everything is handled."""
    for agent, outcome in (("red-1", red), ("blue-1", blue)):
        _, verdict = simulation.send(agent, evaluation(outcome), "sentinel", parent=start)
        assert verdict.refusal is None, verdict.refusal
    simulation.acknowledge()


def to_arbitration(simulation: Simulation, **spec: Any) -> Packet:
    start: Packet = simulation.start(**spec)
    research(simulation, start)
    for number in range(simulation.session.generation_limit + 1):
        generation(simulation, start, 0.8 - 0.3 * number, 0.6 - 0.3 * number)
    assert simulation.session.state == "ARBITRATION"
    return start


def to_validation(simulation: Simulation, **spec: Any) -> tuple[Packet, Packet]:
    start = to_arbitration(simulation, **spec)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    assert simulation.session.state == "EXECUTION"
    artifact = execute(simulation, start)
    return start, artifact


def execute(simulation: Simulation, start: Packet) -> Packet:
    artifact: Packet
    artifact, verdict = simulation.send("red-1", model(), ("sentinel", "librarian"), parent=start)
    assert verdict.refusal is None, verdict.refusal
    simulation.send("red-1", evaluation(0.8), "sentinel", parent=artifact)
    simulation.acknowledge()
    assert simulation.session.state == "VALIDATION"
    return artifact
