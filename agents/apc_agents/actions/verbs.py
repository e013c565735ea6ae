"""The internal verbs: remember, forget, emit, stop."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import orjson
from pydantic import Field, JsonValue, ValidationError

from apc_agents.actions.action_context import ActionContext, ActionMemory
from apc_agents.clearance import PROVENANCE
from apc_agents.tools import ActionError, Tool, ToolCall, make_tool
from apc_contracts.agent import SecurityLevel
from apc_contracts.contract_model import Fraction, Name
from apc_contracts.packet import PAYLOAD_TYPES, ProofBundle
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import refusal_of

STOP = "stop"
ANSWERS = frozenset({PacketType.CLAIM, PacketType.IDEA})
"""What `emit` may send below the level `user`: packets that need no right and move no session."""


async def remember(key: Name, value: JsonValue, context: ActionContext) -> None:
    """Keep a value under a key, for later responses of this session."""
    await _memory(context).remember(key, value)


async def forget(key: Name, context: ActionContext) -> bool:
    """Forget the value under a key; return whether there was one."""
    return await _memory(context).forget(key)


async def emit(
    packet_type: PacketType,
    payload: Mapping[str, JsonValue],
    context: ActionContext,
    call: ToolCall,
    *,
    to: Annotated[tuple[Name, ...], Field(description="agent_ids; none = the sender of the current packet")] = (),
    confidence: Fraction = 1.0,
    symbolic_keys: tuple[Name, ...] = (),
    proof_bundle: ProofBundle | None = None,
) -> dict[str, str]:
    """Emit a packet through the gate; return its packet_id."""
    if context.emit is None:
        raise ActionError("there is no current packet: emit is for handlers")
    _check_answer(packet_type, to, call.security_level)
    try:
        made = PAYLOAD_TYPES[packet_type].model_validate_json(
            orjson.dumps(payload), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        refused = refusal_of(error)
        raise ActionError(f"payload of {packet_type}, {refused.path}: {refused.message}") from error
    options: dict[str, Any] = {
        "confidence": confidence,
        "symbolic_keys": symbolic_keys,
        "proof_bundle": proof_bundle,
    }
    if context.trigger is not None:
        options["metadata"] = {PROVENANCE: context.trigger.provenance(call.security_level)}
    if to:
        options["to"] = to
    packet = await context.emit(made, **options)
    return {"packet_id": str(packet.packet_id)}


async def stop(reason: str | None = None) -> str | None:
    """End the loop after this response."""
    return reason


VERBS: Mapping[str, Tool] = MappingProxyType(
    {
        verb.__name__: make_tool(verb, (ActionContext, ToolCall), name=verb.__name__, security_level=level)
        for verb, level in (
            (remember, SecurityLevel.PUBLIC),
            (forget, SecurityLevel.PUBLIC),
            (emit, SecurityLevel.PUBLIC),
            (stop, SecurityLevel.PUBLIC),
        )
    }
)
"""Every internal verb by name, each with the level that it needs."""


def _check_answer(packet_type: PacketType, to: tuple[str, ...], level: SecurityLevel) -> None:
    """Raise ActionError unless the level permits the packet: below `user` it answers its sender, with no right."""
    if level.rank >= SecurityLevel.USER.rank or (packet_type in ANSWERS and not to):
        return
    allowed = ", ".join(sorted(ANSWERS))
    raise ActionError(f"at the level {level} emit answers the sender only, with {allowed}: leave out `to`")


def _memory(context: ActionContext) -> ActionMemory:
    if context.memory is None:
        raise ActionError("this agent remembers nothing: give ActionContext(memory=...)")
    return context.memory
