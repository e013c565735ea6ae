"""`apc packet validate`: parsing plus the rules that need nobody."""

import json
from typing import Any

import pytest

from apc_contracts import PacketType, VerdictKind
from apc_contracts.admission.admit import validate_offline
from apc_contracts.contract.contract import Contract, task_contract

from ..scene import document


@pytest.mark.parametrize(
    ("kind", "changes", "code", "path"),
    [
        (PacketType.TASK_IR, {"run_phase": "EXECUTION"}, "PHASE_FORBIDS_TYPE", "packet_type"),
        (PacketType.IDEA, {"expires_at": "2026-02-19T07:49:59Z"}, "EXPIRED", "expires_at"),
        (PacketType.CLAIM, {"proof_bundle": None}, "PROOF_REQUIRED", "proof_bundle"),
        (PacketType.CLAIM, {"proof_bundle": {}}, "DRIFT_CHECK_FAILED", "proof_bundle"),
        (PacketType.TRANSFER, {"lineage": None}, "LINEAGE_REQUIRED", "lineage"),
        (PacketType.TRANSFER, {"trace__generation": 10}, "TRANSFER_WINDOW_CLOSED", "trace.generation"),
        (
            PacketType.TRANSFER,
            {"run_phase": "REFINEMENT", "payload__sender_score": 0.7},
            "THROTTLE_SCORE",
            "payload.sender_score",
        ),
        (
            PacketType.TRANSFER,
            {"run_phase": "CONVERGENCE", "payload__transfer_policy__top_k": 3},
            "THROTTLE_TOP_K",
            "payload.transfer_policy.top_k",
        ),
        (PacketType.IDEA, {"confidence": 2}, "SCHEMA_INVALID", "confidence"),
    ],
)
def test_refused(kind: PacketType, changes: dict[str, Any], code: str, path: str, contract: Contract) -> None:
    verdict = validate_offline(json.dumps(document(kind, **changes)).encode(), contract)

    assert verdict.kind is VerdictKind.REFUSED
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.path) == (code, path)


@pytest.mark.parametrize("kind", PacketType)
def test_accepted(kind: PacketType, contract: Contract) -> None:
    packet = document(kind)
    if kind is PacketType.MESSAGE:  # the contract of the research protocol knows none
        contract, packet = task_contract(), document(kind, run_phase="EXECUTION")
    assert validate_offline(json.dumps(packet).encode(), contract).kind is VerdictKind.ACCEPTED


def test_no_packet_at_all(contract: Contract) -> None:
    refusal = validate_offline(b"[NaN]", contract).refusal

    assert refusal is not None
    assert refusal.code == "MALFORMED"
