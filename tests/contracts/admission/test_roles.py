"""Every run_phase with every packet type, and every act that needs a right, from every role, by the contract file."""

from typing import Any

import pytest

from apc_contracts import CONTROL_TYPES, ORCHESTRATOR, PacketType, Registration, Right, RunPhase, Signal, VerdictKind
from apc_contracts.contract.contract import Contract
from apc_contracts.vocabulary import SIGNALS_OF_1_1

from ..scene import PARENT_ID, ROOT_ID, Scene, identity, registration

ROLES: dict[str, tuple[Right, ...]] = {
    "agent": (),
    "operator": (Right.OPERATE,),
    "vetoer": (Right.VETO,),
    "validator": (Right.VALIDATE,),
    "decider": (Right.DECIDE,),
}
SIGNALS = {
    Signal.STOP: Right.OPERATE,
    Signal.PAUSE: Right.OPERATE,
    Signal.RESUME: Right.OPERATE,
    Signal.CANCEL: Right.OPERATE,
    Signal.VETO: Right.VETO,
}
"""docs/specification/contract.md section 10, "Who may do what"."""
CHILD = {"trace__parent_packet_id": str(PARENT_ID), "trace__root_packet_id": str(ROOT_ID)}
ORCHESTRATORS_OWN = {PacketType.ARBITRATION, PacketType.DECISION}
"""Legal from the orchestrator in every phase (docs/specification/contract.md section 4)."""


def agents(role: str) -> dict[str, Registration | None]:
    return {"builder-1": registration("builder-1", "builder", "linear", *ROLES[role])}


def judge(kind: PacketType, phase: RunPhase, role: str, contract: Contract, **changes: Any) -> str:
    """accepted, held, or the code of the refusal."""
    packet, session = {"run_phase": phase.value} | changes.pop("packet", {}), changes.pop("session", {})
    if role == ORCHESTRATOR:
        sender = {"agent_id": ORCHESTRATOR, "role": ORCHESTRATOR, "swarm_id": ORCHESTRATOR}
        scene = Scene(kind, packet | {"sender": sender}, session, {"user_id": ORCHESTRATOR})
    else:
        scene = Scene(kind, packet, session, agents=agents(role))
    verdict = scene.judge(contract)
    return verdict.refusal.code if verdict.refusal else verdict.kind.value


def expected(kind: PacketType, phase: RunPhase, role: str, contract: Contract) -> str:
    if kind is PacketType.ARBITRATION and phase is RunPhase.ARBITRATION and role not in ("decider", ORCHESTRATOR):
        return "NOT_AUTHORIZED"
    is_free = role == ORCHESTRATOR and kind in ORCHESTRATORS_OWN
    if kind not in CONTROL_TYPES and kind not in contract.file.phases[phase].packet_types and not is_free:
        return "PHASE_FORBIDS_TYPE"
    if kind is PacketType.TRANSFER and phase in (RunPhase.REFINEMENT, RunPhase.CONVERGENCE):
        return VerdictKind.HELD.value
    return VerdictKind.ACCEPTED.value


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("phase", RunPhase)
def test_every_type_from_every_role(phase: RunPhase, role: str, contract: Contract) -> None:
    for kind in PacketType:
        assert judge(kind, phase, role, contract) == expected(kind, phase, role, contract), kind


@pytest.mark.parametrize("phase", RunPhase)
def test_every_type_that_is_the_orchestrators(phase: RunPhase, contract: Contract) -> None:
    for kind in (*ORCHESTRATORS_OWN, *CONTROL_TYPES - {PacketType.RETRACTION}):
        assert judge(kind, phase, ORCHESTRATOR, contract) == "accepted", kind


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("phase", RunPhase)
def test_every_signal_from_every_role(phase: RunPhase, role: str, contract: Contract) -> None:
    assert {signal: right for signal, right in contract.rights.signals.items() if signal != Signal.START} == SIGNALS
    for signal in set(Signal) - {Signal.START, Signal.HEARTBEAT} - SIGNALS_OF_1_1:
        right = SIGNALS.get(signal)
        may = right is None or right in ROLES[role]
        got = judge(PacketType.SIGNAL, phase, role, contract, packet={"payload__signal": signal.value})
        assert got == ("accepted" if may else "NOT_AUTHORIZED"), signal


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("phase", RunPhase)
def test_the_decision_that_commits(phase: RunPhase, role: str, contract: Contract) -> None:
    session = {"identities": {PARENT_ID: identity(packet_type=PacketType.ARBITRATION, sender=ORCHESTRATOR)}}
    packet = CHILD | {"payload__commitment_level": "APPROVED"}
    got = judge(PacketType.DECISION, phase, role, contract, packet=packet, session=session)
    if Right.DECIDE not in ROLES[role]:
        assert got == "NOT_AUTHORIZED"
    else:
        assert got == expected(PacketType.DECISION, phase, role, contract)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("producer", ["linear", "trees"])
def test_the_eval_that_promotes(role: str, producer: str, contract: Contract) -> None:
    made = identity(packet_type=PacketType.ARTIFACT, run_phase=RunPhase.EXECUTION, swarm_id=producer)
    session = {"identities": {PARENT_ID: made}}
    got = judge(PacketType.EVAL, RunPhase.VALIDATION, role, contract, packet=CHILD, session=session)
    may = Right.VALIDATE in ROLES[role] and producer != "linear"
    assert got == ("accepted" if may else "NOT_AUTHORIZED")
