"""Every run_phase with every packet type, offline and at the gate."""

import pytest

from apc_contracts import CONTROL_TYPES, ORCHESTRATOR, PacketType, RunPhase, VerdictKind
from apc_contracts.admission.admit import judge_offline
from apc_contracts.contract.contract import Contract

from ..scene import Scene

TABLE = {
    "RESEARCH": "TASK_IR IDEA CLAIM",
    "DISCOVERY": "TASK_IR IDEA CLAIM ARTIFACT EVAL",
    "REFINEMENT": "IDEA CLAIM ARTIFACT EVAL TRANSFER ARBITRATION",
    "CONVERGENCE": "ARTIFACT EVAL TRANSFER ARBITRATION DECISION",
    "ARBITRATION": "ARBITRATION DECISION CLAIM",
    "EXECUTION": "DECISION ARTIFACT EVAL",
    "VALIDATION": "EVAL CLAIM DECISION",
    "PROMOTION": "TRANSFER DECISION ARTIFACT",
}
EVERYTHING = [(phase, kind) for phase in RunPhase for kind in PacketType]
FROM_ORCHESTRATOR = {"sender": {"agent_id": ORCHESTRATOR, "role": ORCHESTRATOR, "swarm_id": ORCHESTRATOR}}


def is_allowed(phase: RunPhase, kind: PacketType) -> bool:
    return kind in CONTROL_TYPES or kind in TABLE[phase].split()


@pytest.mark.parametrize(("phase", "kind"), EVERYTHING)
def test_offline(phase: RunPhase, kind: PacketType, contract: Contract) -> None:
    verdict = judge_offline(Scene(kind, {"run_phase": phase.value}).received.packet, contract)

    assert contract.policy(phase).allows(kind) == is_allowed(phase, kind)
    if is_allowed(phase, kind):
        assert verdict.kind is VerdictKind.ACCEPTED
    else:
        assert verdict.refusal is not None
        assert (verdict.refusal.code, verdict.refusal.path) == ("PHASE_FORBIDS_TYPE", "packet_type")


@pytest.mark.parametrize(("phase", "kind"), EVERYTHING)
def test_at_the_gate(phase: RunPhase, kind: PacketType, contract: Contract) -> None:
    verdict = Scene(kind, {"run_phase": phase.value}).judge(contract)

    if kind is PacketType.ARBITRATION and phase is RunPhase.ARBITRATION:
        # Allowed by the table, but there it moves the session: it needs the right `decide`.
        assert verdict.refusal is not None
        assert verdict.refusal.code == "NOT_AUTHORIZED"
    elif is_allowed(phase, kind):
        waits = kind is PacketType.TRANSFER and phase in (RunPhase.REFINEMENT, RunPhase.CONVERGENCE)
        assert verdict.kind is (VerdictKind.HELD if waits else VerdictKind.ACCEPTED)
    else:
        assert verdict.refusal is not None
        assert verdict.refusal.code == "PHASE_FORBIDS_TYPE"


@pytest.mark.parametrize("phase", RunPhase)
@pytest.mark.parametrize(
    ("kind", "packet"),
    [
        (PacketType.ARBITRATION, {}),
        (PacketType.DECISION, {}),
        (PacketType.ARTIFACT, {"payload__artifact_kind": "PROTOCOL"}),
    ],
)
def test_the_orchestrator_is_free(
    phase: RunPhase, kind: PacketType, packet: dict[str, str], contract: Contract
) -> None:
    changes = FROM_ORCHESTRATOR | packet | {"run_phase": phase.value}

    assert Scene(kind, changes, facts={"user_id": ORCHESTRATOR}).judge(contract).kind is VerdictKind.ACCEPTED


def test_the_orchestrators_other_artifacts_are_not(contract: Contract) -> None:
    scene = Scene(PacketType.ARTIFACT, FROM_ORCHESTRATOR | {"run_phase": "RESEARCH"}, facts={"user_id": ORCHESTRATOR})
    refusal = scene.judge(contract).refusal

    assert refusal is not None
    assert refusal.code == "PHASE_FORBIDS_TYPE"


def test_every_state_has_a_phase(contract: Contract) -> None:
    machine = contract.machine("inter_agent_coordination")
    phases = {state: contract.phase_of(state) for state in machine.states}

    assert phases.pop("HALTED") is None
    assert None not in phases.values()
    assert phases["CLOSED"] is RunPhase.PROMOTION
    assert phases["SELECTIVE_TRANSFER"] is RunPhase.REFINEMENT
    assert set(phases.values()) == set(RunPhase)
