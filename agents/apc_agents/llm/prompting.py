"""What a model is told: the system prompt with the tools; what is remembered, and the conversation, as messages."""

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
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from apc_agents.actions import ToolRegistry
from apc_agents.clearance import Trigger
from apc_agents.context import ContextSession, Turn, TurnRole
from apc_agents.llm.fencing import fenced, source_of
from apc_contracts.agent import SecurityLevel

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
    told = [fenced(orjson.dumps(dict(remembered)).decode(), fence, {"from": "memory"})] if remembered else []
    told += [fenced(tasks, fence, {"from": "tasks", "order": "newest first"})] if tasks else []
    return [ModelRequest(parts=[UserPromptPart(text)]) for text in told]


@cache
def _protocol() -> str:
    return _PROTOCOL.read_text(encoding="utf-8")
