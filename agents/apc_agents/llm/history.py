"""The turns of a conversation as messages of conversation_history: what is searched, shown, exported and erased."""

from collections.abc import Iterable
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pydantic import JsonValue

from apc_agents.context import Turn, TurnRole
from apc_agents.context.render import IS_FOR_MODEL
from apc_agents.llm.fencing import SOURCE
from apc_agents.memory import ConversationMessage
from apc_agents.memory.conversation import MAX_MESSAGE_BYTES

_KEPT = ("status", "step", "packet_id", SOURCE)
"""Metadata of a turn that its message keeps; thoughts stay in the state."""


def messages_of_turns(turns: Iterable[Turn], place: str, agent_id: str, user_id: str) -> list[ConversationMessage]:
    """Return the turns as messages, without what a model alone is told.

    Args:
        turns: in their order.
        place: names the conversation; with it a turn has the same message_id whenever it is stored again.
        agent_id: who answers; other agents of the session are not shown what it was told and answers.
        user_id: who asks.
    """
    return [_message(turn, place, agent_id, user_id) for turn in turns if IS_FOR_MODEL not in turn.metadata]


def _message(turn: Turn, place: str, agent_id: str, user_id: str) -> ConversationMessage:
    asked = turn.metadata.get("packet_id") if turn.role is TurnRole.USER else None
    told: dict[str, Any] = {
        "message_id": str(asked or uuid5(NAMESPACE_URL, f"apc:turn/{place}/{turn.resource_id}")),
        "sender_id": user_id if turn.role is TurnRole.USER else agent_id,
        "recipients": [agent_id],
        "resource_id": turn.resource_id,
    }
    kept: dict[str, JsonValue] = {name: turn.metadata[name] for name in _KEPT if name in turn.metadata}
    content = turn.content.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return ConversationMessage(
        role=turn.role.value, content=content, timestamp=turn.timestamp, metadata={**kept, **told}
    )
