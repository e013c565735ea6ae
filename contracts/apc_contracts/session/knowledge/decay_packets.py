"""The DECISION packets about blocks and recoveries of protocols.

Source: docs/specification/contract.md section 6.
"""

from datetime import datetime
from hashlib import sha256

from apc_contracts.contract.contract import Contract
from apc_contracts.contract_model import MAX_NAME_LENGTH
from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.ids import reply_id
from apc_contracts.payloads.by_type import DecisionPayload
from apc_contracts.protocol.decay import PROTOCOL_DECAY_DECISION, DecayDecision, DecayKind
from apc_contracts.session.emissions import emission
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType


def decay_packet(session: Session, decision: DecayDecision, cause: Packet, now: datetime, contract: Contract) -> Packet:
    """Return the DECISION, in the session whose packet caused it.

    That packet is its parent; a TRANSFER's lineage becomes its own. decision_id names the subject, the same for a block
    and its recovery. `priority_distribution` holds the figures, `next_actions` the consequences, for people; a gate
    reads the record that the packet is logged with.
    """
    payload = DecisionPayload(
        decision_id=_name(decision),
        recommendation=f"{PROTOCOL_DECAY_DECISION}: {decision.subject.scope} {decision.kind}",
        priority_distribution=_figures(decision, contract),
        next_actions=_actions(decision),
    )
    return emission(
        session,
        PacketType.DECISION,
        payload,
        cause.packet_id,
        now,
        contract,
        packet_id=reply_id(cause.packet_id, ORCHESTRATOR, f"{decision.kind}:{payload.decision_id}"),
        parent=cause.packet_id,
        lineage=cause.lineage,
    )


def _name(decision: DecayDecision) -> str:
    """Return the subject's name; for a protocol_id that is too long, its hash."""
    scope, protocol_id = decision.subject
    name = f"{PROTOCOL_DECAY_DECISION}:{scope}:{protocol_id}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    return f"{PROTOCOL_DECAY_DECISION}:{scope}:sha256:{sha256(protocol_id.encode()).hexdigest()}"


def _figures(decision: DecayDecision, contract: Contract) -> dict[str, float]:
    figures = decision.figures(contract.effectiveness)
    return {
        "acceptance_rate": figures.acceptance_rate,
        "average_outcome": figures.average_outcome,
        "average_drift_risk": figures.average_drift_risk,
        "effectiveness": figures.effectiveness,
    }


def _actions(decision: DecayDecision) -> tuple[str, ...]:
    evidence = (
        f"evidence: {decision.accepted} of {decision.transfers} transfers accepted, {decision.scores.evals} EVALs"
    )
    if decision.kind is DecayKind.RECOVERED:
        return "accept its TRANSFERs again; what led to the block no longer counts", evidence
    until = f"until {decision.blocked_until.isoformat()}"
    return f"refuse its TRANSFERs and those of its descendants (PROTOCOL_DECAYED) {until}", evidence
