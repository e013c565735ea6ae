"""A packet at the gate in its usual setting: everything is in order until a test changes one thing."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from apc_contracts import (
    CONTROL_TYPES,
    ORCHESTRATOR,
    Facts,
    PacketType,
    ReceivedPacket,
    Registration,
    Right,
    RunPhase,
    Verdict,
    VerdictKind,
    read_packet,
)
from apc_contracts.admission.admit import admit
from apc_contracts.admission.recorded import SessionSnapshot
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry import ANY_SCHEMA, SPEAKS_ALL
from apc_contracts.judging.session_view import Identity
from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, TYPES_OF_1_1

_EVERY = frozenset({ANY_SCHEMA})
CREATED = datetime(2026, 2, 19, 7, 50, tzinfo=UTC)
PACKET_ID = "0190a5f2-0000-7222-8333-444455556666"
PARENT_ID = UUID("0190a5f2-1111-7222-8333-444455556666")
TARGET_ID = UUID("0190a5f2-2222-7222-8333-444455556666")
ROOT_ID = UUID("0190a5f2-3333-7222-8333-444455556666")
STATE_OF_PHASE = {
    RunPhase.RESEARCH: "SESSION_OPEN",
    RunPhase.DISCOVERY: "INDEPENDENT_DISCOVERY",
    RunPhase.REFINEMENT: "SELECTIVE_TRANSFER",
    RunPhase.CONVERGENCE: "CONTROLLED_CONVERGENCE",
    RunPhase.ARBITRATION: "ARBITRATION",
    RunPhase.EXECUTION: "EXECUTION",
    RunPhase.VALIDATION: "VALIDATION",
    RunPhase.PROMOTION: "PROMOTION",
}
HOME_PHASE = {
    PacketType.TRANSFER: RunPhase.PROMOTION,
    PacketType.ARBITRATION: RunPhase.CONVERGENCE,
    PacketType.DECISION: RunPhase.CONVERGENCE,
}
"""Where a type is accepted on arrival; DISCOVERY for the others."""

_CLAIM = {"hypothesis_id": "h-1", "text": "it holds", "confidence_pre": 0.5, "confidence_post": 0.9}
_GATES = {
    "rtf": 1.0,
    "stability": 0.95,
    "audit": 1.0,
    "outcome": 0.6,
    "learnability": 0.8,
    "generalization_ratio": 1.0,
}
SPEC = {
    "swarms": [{"swarm_id": "linear", "agents": ["builder-1"]}, {"swarm_id": "trees", "agents": ["sentinel-1"]}],
    "task_ids": ["task-01"],
    "generation_limit": 23,
    "generation_deadline_ms": 60_000,
    "state_deadline_ms": 600_000,
}
_PAYLOADS: dict[PacketType, dict[str, Any]] = {
    PacketType.TASK_IR: {
        "ir_header": {
            "task_id": "task-01",
            "run_id": "run-01",
            "swarm_id": "linear",
            "dialect_id": "ir",
            "dialect_hash": "00",
        },
        "objects": [{"type": "Claim", "id": "c-1", **_CLAIM}],
    },
    PacketType.IDEA: {
        "method_id": "m-1",
        "intent": "boost",
        "assumptions": [],
        "required_capabilities": [],
        "expected_impact": {"quality_gain": 0.1, "cost_change": 0.0, "risk_change": 0.0},
        "failure_modes": [],
    },
    PacketType.CLAIM: {"claim_id": "c-1", **_CLAIM},
    PacketType.ARTIFACT: {
        "artifact_id": "a-1",
        "artifact_kind": "MODEL_SNAPSHOT",
        "artifact_uri": "apc://a-1",
        "artifact_hash": "sha256:" + "0a" * 32,
    },
    PacketType.SIGNAL: {"signal": "QUERY"},
    PacketType.HEARTBEAT: {"signal": "HEARTBEAT"},
    PacketType.EVAL: {"metric_set": _GATES, "thresholds": _GATES, "pass": True},
    PacketType.TRANSFER: {
        "protocol_id": "proto-1",
        "from_swarm": "linear",
        "to_swarm": "trees",
        "sender_score": 0.9,
        "receiver_score": 0.6,
        "transfer_policy": {"mode": "WINNER_TO_LOSERS", "top_k": 2},
    },
    PacketType.ARBITRATION: {
        "arbitration_id": "arb-1",
        "candidates": [
            {"candidate_id": name, "packet_ref_ids": [], "score_components": {}, "total_score": 0.5}
            for name in ("one", "two")
        ],
        "winner_candidate_id": "one",
        "scoring": {},
    },
    PacketType.DECISION: {
        "decision_id": "d-1",
        "recommendation": "go",
        "priority_distribution": {},
        "next_actions": [],
    },
    PacketType.RETRACTION: {"target_packet_id": str(TARGET_ID), "reason": "wrong"},
    PacketType.ACK: {"acked_packet_id": str(PARENT_ID), "ack_status": "ACCEPTED"},
    PacketType.NACK: {"acked_packet_id": str(PARENT_ID), "ack_status": "REJECTED"},
    PacketType.ERROR: {"error_code": "HANDLER", "message": "boom", "retryable": False},
    PacketType.MESSAGE: {"schema": "finding/1", "content": {"file": "a.py"}},
}


def document(packet_type: PacketType, **changes: Any) -> dict[str, Any]:
    """Return a good packet; a change is a dotted path with `__` for `.`, None takes the field away."""
    built: dict[str, Any] = {
        "protocol_version": PROTOCOL_1_1 if packet_type in TYPES_OF_1_1 else PROTOCOL_VERSION,
        "packet_id": PACKET_ID,
        "packet_type": packet_type.value,
        "channel": "INTER_AGENT",
        "run_phase": HOME_PHASE.get(packet_type, RunPhase.DISCOVERY).value,
        "created_at": CREATED.isoformat().replace("+00:00", "Z"),
        "sender": {"agent_id": "builder-1", "role": "builder", "swarm_id": "linear"},
        "recipients": [{"agent_id": "sentinel-1"}],
        "trace": {
            "session_id": "sess-01",
            "run_id": "run-01",
            "task_id": "task-01",
            "root_packet_id": PACKET_ID,
            "generation": 21,
            "step": 12,
        },
        "routing": {"delivery_mode": "DIRECT", "priority": 4, "ttl_ms": 60_000, "requires_ack": False},
        "confidence": 0.8,
        "symbolic_keys": ["fresh"],
        "payload": deepcopy(_PAYLOADS[packet_type]),
    }
    if packet_type in (PacketType.CLAIM, PacketType.EVAL):
        built["proof_bundle"] = {"evidence_refs": ["sha256:00"]}
    if packet_type is PacketType.TRANSFER:
        built["lineage"] = {"protocol_id": "proto-1", "transfer_mode": "WINNER_TO_LOSERS"}
    for path, value in changes.items():
        _put(built, path.split("__"), deepcopy(value))
    return built


def received(packet_type: PacketType, **changes: Any) -> ReceivedPacket:
    """Return the packet of `document`, read from its bytes."""
    return read_packet(json.dumps(document(packet_type, **changes)).encode())


def under_parent(root: UUID = ROOT_ID) -> dict[str, Any]:
    """Changes that give a packet the parent PARENT_ID."""
    return {"trace__parent_packet_id": str(PARENT_ID), "trace__root_packet_id": str(root)}


def identity(**known: Any) -> Identity:
    """Return what the session remembers of a packet of sentinel-1 that was routed in its first steps."""
    fields: dict[str, Any] = {
        "packet_hash": b"other",
        "payload_hash": b"other",
        "packet_type": PacketType.IDEA,
        "sender": "sentinel-1",
        "swarm_id": "trees",
        "recipients": ("builder-1",),
        "addressed": ("builder-1",),
        "cause": None,
        "root": ROOT_ID,
        "verdict": VerdictKind.ACCEPTED,
        "refusal": None,
        "run_phase": RunPhase.DISCOVERY,
        "round": 1,
        "generation": 0,
        "step": 1,
    }
    return Identity(**(fields | known))


def registration(agent_id: str, role: str, swarm_id: str, *rights: Right) -> Registration:
    """Return an agent with its own broker user that handles every type."""
    handles = frozenset(PacketType) - CONTROL_TYPES
    return Registration(
        agent_id,
        f"agent.{agent_id}",
        role,
        swarm_id,
        frozenset(rights),
        handles,
        schemas=frozenset({ANY_SCHEMA}),
        speaks=SPEAKS_ALL,
    )


def registry() -> dict[str, Registration]:
    """Builder and sentinel of two swarms, an operator, and the orchestrator."""
    agents = [
        registration("builder-1", "builder", "linear"),
        registration("sentinel-1", "sentinel", "trees"),
        registration("operator-1", "operator", "office", Right.OPERATE),
        replace(registration(ORCHESTRATOR, ORCHESTRATOR, ORCHESTRATOR), broker_user=ORCHESTRATOR),
    ]
    return {agent.agent_id: agent for agent in agents}


def session_in(phase: RunPhase, **changes: Any) -> SessionSnapshot:
    """Return a session of generation 21 that knows the usual packets; parents were routed before its phase began."""
    fields: dict[str, Any] = {
        "session_id": "sess-01",
        "state": STATE_OF_PHASE[phase],
        "run_phase": phase,
        "generation": 21,
        "step": 30,
        "phase_step": 10,
        "generation_limit": 23,
        "swarms": {name: () for name in ("linear", "trees", "knn", "bayes")},
        "identities": {
            PARENT_ID: identity(),
            TARGET_ID: identity(sender="builder-1", swarm_id="linear", recipients=("sentinel-1",)),
        },
        "members": frozenset({"builder-1", "sentinel-1", ORCHESTRATOR}),
        "tasks": frozenset({"task-01"}),
        "roots": frozenset({ROOT_ID}),
        "symbolic_keys": frozenset({"stale"}),
        "protocols": {},
    }
    return SessionSnapshot(**(fields | changes))


@dataclass
class Scene:
    """One judgement. `facts`, `session` and `packet` hold what a test changes; `agents` replaces registrations."""

    packet_type: PacketType = PacketType.IDEA
    packet: Mapping[str, Any] = field(default_factory=dict)
    session: Mapping[str, Any] | None = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    agents: Mapping[str, Registration | None] = field(default_factory=dict)

    @property
    def received(self) -> ReceivedPacket:
        """The packet as it came."""
        return received(self.packet_type, **self.packet)

    @property
    def view(self) -> SessionSnapshot | None:
        """The session; in the packet's phase unless told otherwise."""
        if self.session is None:
            return None
        changes = dict(self.session)
        phase = changes.pop("phase", self.received.packet.run_phase)
        return session_in(phase, **changes)

    @property
    def given(self) -> Facts:
        """The facts of the input."""
        agents = registry() | dict(self.agents)
        packet = self.received
        fields: dict[str, Any] = {
            "now": CREATED + timedelta(seconds=1),
            "registry": {agent_id: agent for agent_id, agent in agents.items() if agent is not None},
            "user_id": f"agent.{packet.packet.sender.agent_id}",
            "packet_hash": packet.packet_hash,
            "payload_hash": packet.payload_hash,
            "outstanding": {"sentinel-1": 3},
            "outstanding_bound": 100,
        }
        return Facts(**(fields | dict(self.facts)))

    def judge(self, contract: Contract) -> Verdict:
        """Return the verdict on arrival."""
        return admit(self.received.packet, self.view, self.given, contract)


def _put(built: dict[str, Any], path: list[str], value: Any) -> None:
    target: Any = built
    *parents, name = path
    for parent in parents:
        target = target[int(parent)] if isinstance(target, list) else target.setdefault(parent, {})
    if value is None:
        target.pop(name, None)
    elif isinstance(target, list):
        target[int(name)] = value
    else:
        target[name] = value
