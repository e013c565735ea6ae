"""What a model is told: the system prompt, the tools, what is remembered, and the conversation as its messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template

import orjson
from pydantic import JsonValue
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from apc_agents.actions import ToolRegistry
from apc_agents.context import ContextSession, Turn, TurnRole
from apc_contracts.actions import SecurityLevel

_EMIT = (
    'emit {"packet_type", "payload", "to", "confidence", "symbolic_keys", "proof_bundle"} sends a packet to other '
    "agents; all but the first two may be left out"
)
_PROTOCOL = Path(__file__).parent / "templates" / "protocol.txt"


@dataclass(frozen=True, slots=True)
class Persona:
    """Who the agent is for its model; no frontend sees any of it. As ContextSession.build_system_prompt takes it."""

    agent_type: str = "assistant"
    eigenvectors: Mapping[str, float] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    """The template's other fields."""


def system_prompt(
    session: ContextSession,
    persona: Persona,
    tools: ToolRegistry,
    level: SecurityLevel,
    *,
    can_emit: bool,
    constraints: Sequence[str] = (),
    remembered: Mapping[str, JsonValue] | None = None,
    tasks: str = "",
) -> str:
    """Persona, constraints with those of the moment, protocol, tools, what is remembered. Raises PromptInvalid."""
    who = session.build_system_prompt(
        persona.agent_type, persona.eigenvectors, [*persona.constraints, *constraints], **persona.details
    )
    described = [orjson.dumps(tool).decode() for tool in tools.described(level)]
    protocol = Template(_protocol()).safe_substitute(
        tools="\n".join(described) or "none",
        emit=f"; {_EMIT}" if can_emit else "",
        remembered=f"\nYou remember: {orjson.dumps(dict(remembered)).decode()}" if remembered else "",
        tasks=f"\nTasks of this session, newest first: {tasks}" if tasks else "",
    )
    return f"{who}\n\n{protocol.strip()}"


def messages_of(turns: Sequence[Turn]) -> list[ModelMessage]:
    """The turns as a model's messages: what a tool gave is told by the user's side, since its call may be folded."""
    messages: list[ModelMessage] = []
    for turn in turns:
        if turn.role is TurnRole.ASSISTANT:
            messages.append(ModelResponse(parts=[TextPart(turn.content)]))
        else:
            part = SystemPromptPart(turn.content) if turn.role is TurnRole.SYSTEM else UserPromptPart(turn.content)
            messages.append(ModelRequest(parts=[part]))
    return messages


@cache
def _protocol() -> str:
    return _PROTOCOL.read_text(encoding="utf-8")
