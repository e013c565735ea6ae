"""The columns of an entry that follow from its packet, and values in the form that JSON gives them."""

from typing import Any

import orjson

from apc_contracts.envelope.packet import Packet


def envelope_columns(packet: Packet) -> dict[str, Any]:
    """Return the columns of agent_packets that repeat the packet."""
    trace, sender = packet.trace, packet.sender
    return {
        "packet_type": packet.packet_type.value,
        "channel": packet.channel.value,
        "run_phase": packet.run_phase.value,
        "session_id": trace.session_id,
        "run_id": trace.run_id,
        "task_id": trace.task_id,
        "root_packet_id": trace.root_packet_id,
        "parent_packet_id": trace.parent_packet_id,
        "sender_agent_id": sender.agent_id,
        "sender_role": sender.role,
        "sender_swarm_id": sender.swarm_id,
        "generation": trace.generation,
        "confidence": packet.confidence,
        "created_at": packet.created_at,
        "expires_at": packet.expires,
    }


ENVELOPE_COLUMNS = (
    "packet_type",
    "channel",
    "run_phase",
    "session_id",
    "run_id",
    "task_id",
    "root_packet_id",
    "parent_packet_id",
    "sender_agent_id",
    "sender_role",
    "sender_swarm_id",
    "generation",
    "confidence",
    "created_at",
    "expires_at",
)
"""The names that `envelope_columns` returns."""


def as_json(value: Any) -> Any:
    """Return the value as it comes back from a JSON column."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
