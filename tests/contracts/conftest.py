"""One good document of each packet type, as another language would send it."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Protocol

import pytest

from apc_contracts import Contract, PacketType, load_contract
from apc_contracts.vocabulary import PROTOCOL_1_1, TYPES_OF_1_1

PACKET_ID = "7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730"
OTHER_ID = "0190a5f2-1111-7222-8333-444455556666"
GATES = {
    "rtf": 1,
    "stability": 0.95,
    "audit": 1.0,
    "outcome": 0.61,
    "learnability": 0.7,
    "generalization_ratio": 1.05,
}
ENVELOPE = {
    "protocol_version": "apc/1.0",
    "packet_id": PACKET_ID,
    "channel": "INTER_AGENT",
    "run_phase": "DISCOVERY",
    "created_at": "2026-02-19T07:50:00Z",
    "sender": {"agent_id": "builder-1", "role": "builder", "swarm_id": "swarm-hybrid"},
    "recipients": [{"agent_id": "sentinel-1"}],
    "trace": {
        "session_id": "sess-01",
        "run_id": "run-01",
        "task_id": "task-01",
        "root_packet_id": PACKET_ID,
        "generation": 4,
        "step": 12,
        "vector_clock": {"builder-1": 3},
    },
    "routing": {"delivery_mode": "DIRECT", "priority": 5, "ttl_ms": 60_000, "requires_ack": True},
    "confidence": 0.74,
    "symbolic_keys": ["predictive", "calibration"],
    "metadata": {"note": None, "deep": [{"x": 1.5e-7}]},
}
FORMULAS = {
    "representation_version": "1",
    "latex_full": "\\dot x = -k x",
    "ast_json": {"op": "neg", "args": [None, 2]},
    "domains": ["decay"],
    "var_ontology": {"k": "rate"},
    "ode_system": {
        "state_variables": ["x"],
        "equations": ["-k*x"],
        "parameters": {"k": 0.5},
        "initial_state": {"x": 1},
        "time_start": 0,
        "time_end": 10.5,
        "num_points": 50,
    },
}
CLAIM = {
    "hypothesis_id": "h-1",
    "text": "Calibrated boosting wins.",
    "confidence_pre": 0.5,
    "confidence_post": 1,
}
DECISION = {
    "recommendation": "go",
    "priority_distribution": {"speed": 0.25, "quality": 0.75},
    "next_actions": ["fit"],
}
FALSIFIER = {"id": "f-1", "target_claim_id": "c-1", "test": "t-test", "fail_if": "p > 0.05", "cost": "low"}
PAYLOADS: dict[str, dict[str, Any]] = {
    "TASK_IR": {
        "ir_header": {
            "task_id": "task-01",
            "run_id": "run-01",
            "swarm_id": "swarm-hybrid",
            "dialect_id": "apc-ir",
            "dialect_hash": "d" * 64,
        },
        "objects": [
            {"type": "Claim", "id": "c-1", **CLAIM},
            {"type": "Falsifier", **FALSIFIER},
            {"type": "Decision", "id": "d-1", **DECISION},
            {"type": "Constraint", "id": "k-1", "constraint_kind": "BUDGET", "expression": "packets=50"},
            {"type": "Evidence", "id": "e-1", "kind": "bench", "ref": "sha256:00", "supports": False},
        ],
        "normalization": {"ordering": "lexical", "hash_algorithm": "sha256"},
        "formula_bundle": FORMULAS,
    },
    "IDEA": {
        "method_id": "method-gbdt-calibrated-v2",
        "intent": "Use calibrated gradient boosting on time-split features.",
        "assumptions": ["Label delay <= 7 days", "No future leakage"],
        "required_capabilities": ["time_split_validation"],
        "expected_impact": {"quality_gain": 0.12, "cost_change": 0.08, "risk_change": -0.10},
        "failure_modes": [{"id": "fm-1", "description": "Temporal leakage", "mitigation": "Leakage test"}],
        "complexity": {"time_class": "n log n", "data_volume_class": "M"},
        "test_contract_refs": ["t-1"],
        "language_bindings": [{"language": "python", "adapter_hint": "sklearn"}],
    },
    "CLAIM": {"claim_id": "c-1", **CLAIM},
    "ARTIFACT": {
        "artifact_id": "a-1",
        "artifact_kind": "MODEL_SNAPSHOT",
        "artifact_uri": "apc://artifacts/1",
        "artifact_hash": "sha256:" + "0a" * 32,
        "language": "python",
    },
    "SIGNAL": {
        "signal": "START",
        "reason": "opening",
        "expected_response_by": "2026-02-19T07:51:00.5Z",
        "session": {
            "swarms": [{"swarm_id": "linear", "agents": ["builder-1"]}, {"swarm_id": "trees", "agents": []}],
            "members": ["librarian-1"],
            "task_ids": ["task-01"],
            "generation_limit": 23,
            "generation_deadline_ms": 60_000,
            "state_deadline_ms": 600_000,
            "max_rounds": 2,
            "budgets": {"packets": 1000, "cost": 2.5},
            "veto_window_ms": 2000,
        },
    },
    "HEARTBEAT": {"signal": "HEARTBEAT"},
    "EVAL": {
        "metric_set": {**GATES, "symbol_coverage": 0.4, "drift_risk": 0.1},
        "thresholds": {**GATES, "drift_risk": 0.3},
        "pass": True,
        "notes": ["measured"],
    },
    "TRANSFER": {
        "protocol_id": "proto-1",
        "from_swarm": "swarm-hybrid",
        "to_swarm": "trees",
        "sender_score": 0.9,
        "receiver_score": 0.6,
        "transfer_policy": {
            "mode": "WINNER_TO_LOSERS",
            "min_generation": 11,
            "threshold_multiplier": 1.2,
            "top_k": 2,
        },
    },
    "ARBITRATION": {
        "arbitration_id": "arb-1",
        "candidates": [
            {
                "candidate_id": "one",
                "packet_ref_ids": [OTHER_ID],
                "score_components": {"outcome": 0.6},
                "total_score": 0.6,
            },
            {
                "candidate_id": "baseline",
                "packet_ref_ids": [],
                "score_components": {},
                "total_score": 0,
                "risk_flags": ["trivial"],
            },
        ],
        "winner_candidate_id": "one",
        "scoring": {"one": 1},
        "vetoes": [{"agent_id": "sentinel-1", "reason": "drift"}],
    },
    "DECISION": {"decision_id": "d-1", **DECISION, "commitment_level": "APPROVED"},
    "RETRACTION": {"target_packet_id": OTHER_ID, "reason": "wrong", "replacement_packet_id": PACKET_ID},
    "ACK": {"acked_packet_id": OTHER_ID, "ack_status": "DEFERRED"},
    "NACK": {"acked_packet_id": OTHER_ID, "ack_status": "REJECTED", "reason": "EXPIRED at $: too late"},
    "ERROR": {"error_code": "HANDLER", "message": "boom", "retryable": False, "details": {"attempts": 3}},
    "MESSAGE": {
        "schema": "finding/1",
        "content": {"file": "a.py", "line": 3, "owner": None, "tags": ["x"], "deep": {"share": 0.5}},
        "text": "a.py, line 3",
    },
}
PROOF = {
    "evidence_refs": ["sha256:00"],
    "falsifiers": [FALSIFIER],
    "gate_scores": {"rtf": 1, "drift_risk": 0.1, "generalization_ratio": 2},
    "signatures": [{"agent_id": "sentinel-1", "payload_hash": "ab" * 32}],
}
LINEAGE = {
    "protocol_id": "proto-1",
    "parent_protocol_ids": ["proto-0"],
    "ancestor_swarms": ["linear"],
    "cross_use_case": False,
    "transfer_mode": "WINNER_TO_LOSERS",
}


Change = Callable[[dict[str, Any]], None]


class Documents(Protocol):
    """Gives a fresh document of a packet type, to be changed at will."""

    def __call__(self, packet_type: str = "IDEA") -> dict[str, Any]: ...


def _document(packet_type: str = "IDEA") -> dict[str, Any]:
    document = deepcopy({**ENVELOPE, "packet_type": packet_type, "payload": PAYLOADS[packet_type]})
    if packet_type in TYPES_OF_1_1:
        document["protocol_version"] = PROTOCOL_1_1
    if packet_type == "TRANSFER":
        document["lineage"] = deepcopy(LINEAGE)
    if packet_type in ("CLAIM", "EVAL"):
        document["proof_bundle"] = deepcopy(PROOF)
    return document


@pytest.fixture(scope="session")
def document() -> Documents:
    """A good document of any packet type."""
    return _document


@pytest.fixture(scope="session")
def idea() -> bytes:
    """The bytes of a good IDEA."""
    return json.dumps(_document("IDEA")).encode()


@pytest.fixture(params=list(PacketType), ids=str)
def any_document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A good document of each packet type in turn."""
    return _document(request.param)


@pytest.fixture(scope="session")
def contract() -> Contract:
    """The packaged contract."""
    return load_contract()


def put(path: str, value: Any) -> Change:
    """Return a change that sets the field at a dotted path."""

    def change(document: dict[str, Any]) -> None:
        target: Any = document
        *parents, field = path.split(".")
        for parent in parents:
            target = target[int(parent) if parent.isdigit() else parent]
        target[field] = value

    return change
