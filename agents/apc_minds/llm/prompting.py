"""What a model is told: the system prompt with the tools; what is remembered, and the conversation, as messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson
from pydantic import JsonValue
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from apc_agents.clearance import Trigger
from apc_agents.ports import MAX_MESSAGE_BYTES, ConversationMessage
from apc_contracts.agent import SecurityLevel
from apc_minds.context.polynomial import IS_FOR_MODEL
from apc_minds.context.prompt_assembly import SOURCE, TOOL_SOURCE
from apc_minds.context.session import ContextSession
from apc_minds.context.turns import Turn, TurnRole
from apc_minds.text import fenced
from apc_minds.tools import ToolRegistry


def source_of(turn: Turn) -> Mapping[str, JsonValue] | None:
    """Return where a turn's text comes from; None for what the user, the operator or the model itself has said."""
    source = turn.metadata.get(SOURCE)
    if isinstance(source, Mapping):
        return source
    return TOOL_SOURCE if turn.role is TurnRole.TOOL else None


# The turns of a conversation as messages of conversation_history: what is searched, shown, exported and erased.

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
    metadata: dict[str, Any] = {
        "message_id": str(asked or uuid5(NAMESPACE_URL, f"apc:turn/{place}/{turn.resource_id}")),
        "sender_id": user_id if turn.role is TurnRole.USER else agent_id,
        "recipients": [agent_id],
        "resource_id": turn.resource_id,
    }
    kept: dict[str, JsonValue] = {name: turn.metadata[name] for name in _KEPT if name in turn.metadata}
    content = turn.content.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return ConversationMessage(
        role=turn.role.value, content=content, timestamp=turn.timestamp, metadata={**kept, **metadata}
    )


_EMIT = (
    'emit {"packet_type", "payload", "to", "confidence", "symbolic_keys", "proof_bundle"} sends a packet to other '
    "agents; all but the first two may be left out"
)
_PROTOCOL = Path(__file__).parent / "templates" / "protocol.txt"


@dataclass(frozen=True, slots=True)
class Persona:
    """Who the agent is for its model; no frontend sees any of it. As ContextSession.build_system_prompt takes it.

    Attributes:
        agent_type: the name of its template; default `assistant`.
        eigenvectors: traits and their weights, 0..1.
        constraints: sentences that it has to keep to.
        details: the template's other fields.
    """

    agent_type: str = "assistant"
    eigenvectors: Mapping[str, float] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    details: Mapping[str, str] = field(default_factory=dict)


def system_prompt(
    session: ContextSession,
    persona: Persona,
    tools: ToolRegistry,
    level: SecurityLevel,
    *,
    fence: str,
    can_emit: bool,
    trigger: Trigger | None = None,
    constraints: Sequence[str] = (),
) -> str:
    """Return persona, constraints of the moment, protocol and tools; no foreign text. Raises PromptInvalid."""
    who = session.build_system_prompt(
        persona.agent_type, persona.eigenvectors, [*persona.constraints, *constraints], **persona.details
    )
    described = [orjson.dumps(tool).decode() for tool in tools.described(level, trigger)]
    protocol = Template(_protocol()).safe_substitute(
        tools="\n".join(described) or "none",
        emit=f"; {_EMIT}" if can_emit else "",
        fence=fence,
    )
    return f"{who}\n\n{protocol.strip()}"


def messages_of(
    turns: Sequence[Turn], fence: str, *, remembered: Mapping[str, JsonValue] | None = None, tasks: str = ""
) -> list[ModelMessage]:
    """Return the turns as a model's messages, behind what is remembered and how the tasks are.

    What a tool gave is told by the user's side, since its call may be folded. Foreign text is fenced.
    """
    messages = _background(fence, remembered, tasks)
    for turn in turns:
        if turn.role is TurnRole.ASSISTANT:
            messages.append(ModelResponse(parts=[TextPart(turn.content)]))
        else:
            messages.append(ModelRequest(parts=[_part(turn, fence)]))
    return messages


def _part(turn: Turn, fence: str) -> ModelRequestPart:
    source = source_of(turn)
    if source is not None:
        return UserPromptPart(fenced(turn.content, fence, source))
    return SystemPromptPart(turn.content) if turn.role is TurnRole.SYSTEM else UserPromptPart(turn.content)


def _background(fence: str, remembered: Mapping[str, JsonValue] | None, tasks: str) -> list[ModelMessage]:
    texts = [fenced(orjson.dumps(dict(remembered)).decode(), fence, {"from": "memory"})] if remembered else []
    texts += [fenced(tasks, fence, {"from": "tasks", "order": "newest first"})] if tasks else []
    return [ModelRequest(parts=[UserPromptPart(text)]) for text in texts]


@cache
def _protocol() -> str:
    return _PROTOCOL.read_text(encoding="utf-8")
