"""A packet as a message of a conversation, and a message of a conversation in a context object."""

from apc_agents.memory import ConversationMessage
from apc_contracts.agent import ContextMessage, context_uuid
from apc_contracts.packet import Packet


def message_of(packet: Packet) -> ConversationMessage:
    """Return the packet as a message: its payload as JSON; in the metadata who is meant, and what it is about."""
    recipients = [one.agent_id for one in packet.recipients if one.agent_id is not None]
    return ConversationMessage(
        role=packet.sender.role,
        content=packet.payload.model_dump_json(exclude_unset=True),
        timestamp=packet.created_at,
        metadata={
            "sender_id": packet.sender.agent_id,
            "message_id": str(packet.packet_id),
            "packet_type": packet.packet_type.value,
            "symbolic_keys": list(packet.symbolic_keys),
            "recipients": recipients,
            "targets": [str(context_uuid("agent", one)) for one in recipients],
        },
    )


def context_message(message: ConversationMessage) -> ContextMessage:
    """Return the message as it stands in recent_messages; sender_id = metadata.sender_id, or the role."""
    sender = message.metadata.get("sender_id")
    return ContextMessage(
        sender_id=sender if isinstance(sender, str) else message.role,
        content=message.content,
        timestamp_utc=message.timestamp,
        metadata=dict(message.metadata),
    )


def is_visible(message: ConversationMessage, agent_id: str) -> bool:
    """Return whether an agent of the session has sent or received the message.

    One to nobody in particular is for all.
    """
    recipients = message.metadata.get("recipients")
    if not isinstance(recipients, list) or not recipients:
        return True
    return agent_id in recipients or message.metadata.get("sender_id") == agent_id
