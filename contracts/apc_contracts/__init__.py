"""The APC/1.0 contract: packets, parsing, sealing, policy and state machines.

Pure: no I/O beyond its own data files, no clock, no broker, no database.

`parse_packet` returns a packet or raises PacketRefused with one code, one path and one sentence.

The examples in the docstrings of this package begin with these lines, and tests run them:

```python
from datetime import UTC, datetime

from apc_contracts import *

packet_id = new_packet_id()
packet = MessagePacket(
    protocol_version="apc/1.1",
    packet_id=packet_id,
    channel=Channel.INTER_AGENT,
    run_phase=RunPhase.EXECUTION,
    created_at=datetime(2026, 11, 27, 6, tzinfo=UTC),
    sender=Actor(agent_id="clerk", role="clerk", swarm_id="shop"),
    recipients=(Recipient(agent_id="cashier"),),
    trace=Trace(session_id="s-1", run_id="r-1", task_id="t-1", root_packet_id=packet_id, generation=0, step=0),
    routing=Routing(delivery_mode=DeliveryMode.DIRECT, priority=4, ttl_ms=600_000, requires_ack=False),
    confidence=1.0,
    symbolic_keys=(),
    payload=MessagePayload(schema_id="refund/1", content={"order": "A-17", "euros": 120}),
)
```
"""

from typing import TYPE_CHECKING

from apc_contracts.late import late_names

if TYPE_CHECKING:
    from apc_contracts.admission.admit import admit, judge_transfer, validate_offline
    from apc_contracts.agent import (
        Action,
        ActionType,
        AgentResponse,
        Execution,
        ResponseContext,
        ResponseInvalid,
        SecurityLevel,
        Thought,
        parse_response,
    )
    from apc_contracts.contract.contract import Contract, PromotionResult, load_contract, passes_promotion
    from apc_contracts.contract.machines import Machine
    from apc_contracts.errors import (
        ApcError,
        ContractError,
        ContractInvalid,
        PacketRefused,
        SignatureInvalid,
        TransitionRefused,
    )
    from apc_contracts.identity.ids import new_packet_id, reply_id, shard_of, slot_of, timer_id
    from apc_contracts.identity.registry import Registration
    from apc_contracts.identity.registry_change import (
        AgentAdded,
        AgentRevoked,
        RegistryAction,
        RegistryChange,
        encode_registry_change,
        parse_registry_change,
    )
    from apc_contracts.identity.signing import sign, verify
    from apc_contracts.judging.facts import Facts, SignatureState
    from apc_contracts.judging.session_view import Identity, SessionView
    from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
    from apc_contracts.limits import DocumentLimits
    from apc_contracts.packet import (
        PACKET_TYPES,
        PAYLOAD_TYPES,
        TYPE_OF_PAYLOAD,
        AckPacket,
        Actor,
        ArbitrationPacket,
        ArtifactPacket,
        ClaimPacket,
        DecisionPacket,
        Endorsement,
        ErrorPacket,
        EvalPacket,
        Falsifier,
        GateScores,
        HeartbeatPacket,
        IdeaPacket,
        Lineage,
        MessagePacket,
        NackPacket,
        Packet,
        ProofBundle,
        Recipient,
        RetractionPacket,
        Routing,
        SignalPacket,
        TaskIrPacket,
        Trace,
        TransferPacket,
    )
    from apc_contracts.payloads.by_type import (
        AckPayload,
        ArbitrationPayload,
        ArtifactPayload,
        Candidate,
        ClaimPayload,
        Complexity,
        DecisionPayload,
        ErrorPayload,
        EvalPayload,
        ExpectedImpact,
        FailureMode,
        HeartbeatPayload,
        IdeaPayload,
        LanguageBinding,
        MessagePayload,
        MetricLimit,
        MetricSet,
        NackPayload,
        OpenEvalPayload,
        Payload,
        Result,
        RetractionPayload,
        SignalPayload,
        TaskIrPayload,
        Thresholds,
        TransferPayload,
        TransferPolicy,
        Veto,
    )
    from apc_contracts.payloads.session_signals import Budgets, SessionSpec, SessionState, SwarmSpec, TaskSessionSpec
    from apc_contracts.payloads.task_ir import (
        ConstraintKind,
        EvidenceKind,
        FalsifierCost,
        FormulaBundle,
        IrClaim,
        IrConstraint,
        IrDecision,
        IrEvidence,
        IrFalsifier,
        IrHeader,
        Normalization,
        OdeSystem,
    )
    from apc_contracts.protocol.transfers import rank_transfers
    from apc_contracts.vocabulary import (
        ALL_RECIPIENTS,
        CONTROL_TYPES,
        ORCHESTRATOR,
        PRESENCE_SESSION,
        PROTOCOL_VERSION,
        SUBSTRATE_RECIPIENT,
        AckStatus,
        ArtifactKind,
        Channel,
        CommitmentLevel,
        DeliveryMode,
        PacketType,
        Right,
        RunPhase,
        Signal,
        TransferMode,
    )
    from apc_contracts.wire.canonical import canonical_json
    from apc_contracts.wire.parsing import ReceivedPacket, SealedPacket, parse_packet, payload_hash, read_packet, seal
    from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage, encode_receipts, parse_receipts

__all__ = [
    "ALL_RECIPIENTS",
    "CONTROL_TYPES",
    "ORCHESTRATOR",
    "PACKET_TYPES",
    "PAYLOAD_TYPES",
    "PRESENCE_SESSION",
    "PROTOCOL_VERSION",
    "SUBSTRATE_RECIPIENT",
    "TYPE_OF_PAYLOAD",
    "AckPacket",
    "AckPayload",
    "AckStatus",
    "Action",
    "ActionType",
    "Actor",
    "AgentAdded",
    "AgentResponse",
    "AgentRevoked",
    "ApcError",
    "ArbitrationPacket",
    "ArbitrationPayload",
    "ArtifactKind",
    "ArtifactPacket",
    "ArtifactPayload",
    "Budgets",
    "Candidate",
    "Channel",
    "ClaimPacket",
    "ClaimPayload",
    "CommitmentLevel",
    "Complexity",
    "ConstraintKind",
    "Contract",
    "ContractError",
    "ContractInvalid",
    "DecisionPacket",
    "DecisionPayload",
    "DeliveryMode",
    "DocumentLimits",
    "Endorsement",
    "ErrorPacket",
    "ErrorPayload",
    "EvalPacket",
    "EvalPayload",
    "EvidenceKind",
    "Execution",
    "ExpectedImpact",
    "Facts",
    "FailureMode",
    "Falsifier",
    "FalsifierCost",
    "FormulaBundle",
    "GateScores",
    "HeartbeatPacket",
    "HeartbeatPayload",
    "IdeaPacket",
    "IdeaPayload",
    "Identity",
    "IrClaim",
    "IrConstraint",
    "IrDecision",
    "IrEvidence",
    "IrFalsifier",
    "IrHeader",
    "LanguageBinding",
    "Lineage",
    "Machine",
    "MessagePacket",
    "MessagePayload",
    "MetricLimit",
    "MetricSet",
    "NackPacket",
    "NackPayload",
    "Normalization",
    "OdeSystem",
    "OpenEvalPayload",
    "Packet",
    "PacketRefused",
    "PacketType",
    "Payload",
    "PromotionResult",
    "ProofBundle",
    "Receipt",
    "ReceiptKind",
    "ReceivedPacket",
    "Recipient",
    "Refusal",
    "Registration",
    "RegistryAction",
    "RegistryChange",
    "ResponseContext",
    "ResponseInvalid",
    "Result",
    "RetractionPacket",
    "RetractionPayload",
    "Right",
    "Routing",
    "RunPhase",
    "SealedPacket",
    "SecurityLevel",
    "SessionSpec",
    "SessionState",
    "SessionView",
    "Signal",
    "SignalPacket",
    "SignalPayload",
    "SignatureInvalid",
    "SignatureState",
    "SwarmSpec",
    "TaskIrPacket",
    "TaskIrPayload",
    "TaskSessionSpec",
    "Thought",
    "Thresholds",
    "Trace",
    "TransferMode",
    "TransferPacket",
    "TransferPayload",
    "TransferPolicy",
    "TransitionRefused",
    "Usage",
    "Verdict",
    "VerdictKind",
    "Veto",
    "admit",
    "canonical_json",
    "encode_receipts",
    "encode_registry_change",
    "judge_transfer",
    "load_contract",
    "new_packet_id",
    "parse_packet",
    "parse_receipts",
    "parse_registry_change",
    "parse_response",
    "passes_promotion",
    "payload_hash",
    "rank_transfers",
    "read_packet",
    "reply_id",
    "seal",
    "shard_of",
    "sign",
    "slot_of",
    "timer_id",
    "validate_offline",
    "verify",
]

if not TYPE_CHECKING:
    __getattr__ = late_names(
        __name__,
        {
            "apc_contracts.admission.admit": "admit judge_transfer validate_offline",
            "apc_contracts.agent": (
                "Action ActionType AgentResponse Execution ResponseContext ResponseInvalid SecurityLevel Thought "
                "parse_response"
            ),
            "apc_contracts.contract.contract": "Contract PromotionResult load_contract passes_promotion",
            "apc_contracts.contract.machines": "Machine",
            "apc_contracts.errors": (
                "ApcError ContractError ContractInvalid PacketRefused SignatureInvalid TransitionRefused"
            ),
            "apc_contracts.identity.ids": "new_packet_id reply_id shard_of slot_of timer_id",
            "apc_contracts.identity.registry": "Registration",
            "apc_contracts.identity.registry_change": (
                "AgentAdded AgentRevoked RegistryAction RegistryChange encode_registry_change parse_registry_change"
            ),
            "apc_contracts.identity.signing": "sign verify",
            "apc_contracts.judging.facts": "Facts SignatureState",
            "apc_contracts.judging.session_view": "Identity SessionView",
            "apc_contracts.judging.verdict": "Refusal Verdict VerdictKind",
            "apc_contracts.limits": "DocumentLimits",
            "apc_contracts.packet": (
                "PACKET_TYPES PAYLOAD_TYPES TYPE_OF_PAYLOAD AckPacket Actor ArbitrationPacket ArtifactPacket "
                "ClaimPacket DecisionPacket Endorsement ErrorPacket EvalPacket Falsifier GateScores HeartbeatPacket "
                "IdeaPacket Lineage MessagePacket NackPacket Packet ProofBundle Recipient RetractionPacket Routing "
                "SignalPacket TaskIrPacket Trace TransferPacket"
            ),
            "apc_contracts.payloads.by_type": (
                "AckPayload ArbitrationPayload ArtifactPayload Candidate ClaimPayload Complexity DecisionPayload "
                "ErrorPayload EvalPayload ExpectedImpact FailureMode HeartbeatPayload IdeaPayload LanguageBinding "
                "MessagePayload MetricLimit MetricSet NackPayload OpenEvalPayload Payload Result RetractionPayload "
                "SignalPayload TaskIrPayload Thresholds TransferPayload TransferPolicy Veto"
            ),
            "apc_contracts.payloads.session_signals": "Budgets SessionSpec SessionState SwarmSpec TaskSessionSpec",
            "apc_contracts.payloads.task_ir": (
                "ConstraintKind EvidenceKind FalsifierCost FormulaBundle IrClaim IrConstraint IrDecision IrEvidence "
                "IrFalsifier IrHeader Normalization OdeSystem"
            ),
            "apc_contracts.protocol.transfers": "rank_transfers",
            "apc_contracts.vocabulary": (
                "ALL_RECIPIENTS CONTROL_TYPES ORCHESTRATOR PRESENCE_SESSION PROTOCOL_VERSION SUBSTRATE_RECIPIENT "
                "AckStatus ArtifactKind Channel CommitmentLevel DeliveryMode PacketType Right RunPhase Signal "
                "TransferMode"
            ),
            "apc_contracts.wire.canonical": "canonical_json",
            "apc_contracts.wire.parsing": "ReceivedPacket SealedPacket parse_packet payload_hash read_packet seal",
            "apc_contracts.wire.receipts": "Receipt ReceiptKind Usage encode_receipts parse_receipts",
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
