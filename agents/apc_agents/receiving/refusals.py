"""Tell the sender's log what the gate refused."""

from typing import Any

import structlog

from apc_contracts.judging.verdict import remedy_of
from apc_contracts.packet import NackPacket, Packet

_log = structlog.get_logger("apc_agents")


def log_refusal(agent_id: str, nack: Packet) -> None:
    """Log a warning `packet_refused` for the gate's NACK of a packet that this agent sent."""
    if not isinstance(nack, NackPacket):
        return
    document = (nack.metadata or {}).get("refusal")
    refusal: dict[str, Any] = document if isinstance(document, dict) else {}
    code = str(refusal.get("code", ""))
    _log.warning(
        "packet_refused",
        agent_id=agent_id,
        packet_id=str(nack.payload.acked_packet_id),
        session_id=nack.trace.session_id,
        code=code,
        field=str(refusal.get("path", "")),
        reason=str(refusal.get("message", nack.payload.reason)),
        remedy=remedy_of(code),
    )
