"""Deliveries that failed permanently: the sender is told, once for each recipient.

Source: docs/specification/contract.md section 8.
"""

from apc_contracts.payloads.by_type import ErrorPayload
from apc_contracts.session import emissions
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import OpenPacket
from apc_contracts.session.session_effects import Hop
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType

HANDLER_ERROR = "handler_error"
"""The recipient gave the delivery up; its SDK has sent an ERROR already."""
OVERFLOW = "overflow"
"""The recipient's inbox was full: a later packet may find room."""
DELIVERY_FAILED = "DELIVERY_FAILED"
_MAX_REASON = 1_000


def tell_sender(moment: Advance, opened: OpenPacket, hop: Hop) -> None:
    """Send an ERROR of the orchestrator for a dead letter that its recipient could not report.

    Causes are crashes, a full or missing inbox, and retries beyond the limit. No ERROR is sent about packets that are
    never answered, nor to the orchestrator about its own.
    """
    packet, contract = opened.packet, moment.contract
    reason = str((hop.metadata or {}).get("error") or "no reason given")[:_MAX_REASON]
    sender = packet.sender.agent_id
    if reason == HANDLER_ERROR or sender == ORCHESTRATOR or packet.packet_type in contract.refusals.never_answered:
        return
    error = ErrorPayload(
        error_code=DELIVERY_FAILED,
        message=f"{hop.recipient} has not handled packet {packet.packet_id}: {reason}",
        retryable=reason == OVERFLOW,
        details={
            "packet_id": str(packet.packet_id),
            "recipient": hop.recipient,
            "attempt": hop.attempt,
            "reason": reason,
        },
    )
    emissions.emit(moment, PacketType.ERROR, error, parent=packet.packet_id, recipient=sender)
