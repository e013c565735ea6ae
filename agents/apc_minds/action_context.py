"""What the actions of a response run in, and the internal verbs: remember, forget, recall, emit, stop."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol
from uuid import UUID, uuid4, uuid5

import orjson
from pydantic import Field, JsonValue, ValidationError

from apc_agents.clearance import PROVENANCE, Trigger, lowest
from apc_agents.emission import Emits
from apc_agents.errors import ActionError
from apc_agents.json_values import Stateful
from apc_agents.ports import encoded
from apc_agents.task_port import TaskOrigin, TaskStore
from apc_contracts.agent import SecurityLevel
from apc_contracts.contract_model import Fraction, Name
from apc_contracts.packet import PAYLOAD_TYPES, Packet, ProofBundle
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import refusal_of
from apc_minds.tools import Once, Tool, ToolCall, make_tool

REMEMBERED: Final = "remembered"
"""The key in ctx.state under which `remember` keeps what it is given."""
MAX_REMEMBERED_BYTES: Final = 16 * 1024
"""Of all that is remembered in a session, as JSON: a model is told all of it whenever it is asked."""


class ActionMemory(Protocol):
    """Where the verbs `remember` and `forget` keep things."""

    async def remember(self, key: str, value: JsonValue) -> None:
        """Keep a value; a former one under this key is replaced."""
        ...

    async def forget(self, key: str) -> bool:
        """Forget it; says whether there was something."""
        ...


class StateMemory:
    """Keeps things in ctx.state: durable with the handler's outcome, and undone when the handler fails."""

    def __init__(self, ctx: Stateful) -> None:
        self._ctx = ctx

    async def remember(self, key: str, value: JsonValue) -> None:
        """Keep a value. Raises ValueInvalid: JSONB cannot hold it. ActionError: there is too much already."""
        kept = {**self._ctx.state.get(REMEMBERED, {}), key: value}
        size = len(encoded(kept))
        if size > MAX_REMEMBERED_BYTES:
            raise ActionError(
                f"{size} bytes would be remembered, {MAX_REMEMBERED_BYTES} are allowed: forget some first"
            )
        self._ctx.state[REMEMBERED] = kept

    async def forget(self, key: str) -> bool:
        """Forget it."""
        kept = self._ctx.state.get(REMEMBERED, {})
        if key not in kept:
            return False
        del kept[key]
        return True


class Recall(Protocol):
    """Gives the verb `recall` an earlier turn of the conversation."""

    async def __call__(self, turn: str, start: int, level: SecurityLevel) -> JsonValue:
        """Return {"turn", "role", "text", "next"?}: the text from a character on, and where the rest of it begins.

        Raises:
            ActionError: there is no such turn, or its text is of a lower level than `level`.
        """
        ...


class Handling(Emits, Stateful, Protocol):
    """What actions need of a HandlerContext."""

    @property
    def trigger(self) -> Trigger: ...

    @property
    def tasks(self) -> TaskStore | None: ...

    @property
    def once(self) -> Once: ...

    @property
    def new_origin(self) -> Callable[[], UUID]: ...


class WithheldMemory:
    """The memory of a response that has seen text of a lower level: nothing of it is kept for a higher one."""

    def __init__(self, level: SecurityLevel) -> None:
        self._level = level

    async def remember(self, key: str, value: JsonValue) -> None:
        """Raise ActionError."""
        raise ActionError(f"text of the level {self._level} is in the window: nothing is remembered until it is gone")

    async def forget(self, key: str) -> bool:
        """Raise ActionError."""
        raise ActionError(f"text of the level {self._level} is in the window: nothing is forgotten until it is gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionContext:
    """Where the actions of a response run.

    Args:
        agent_id, session_id: who runs them, and in which session.
        security_level: the highest at which they may run; a response may ask for less.
        trigger: whose packet caused the response; None = the agent's own operator or user.
        compartment: names what may be remembered together; tasks are told within it only.
        allowed_knowledge: the ids that a response may list in knowledge_relics; None = any.
        variables: for `${{variables.x}}`; those of the response come first.
        results: of earlier responses, by action_id, for `${{results.action_id.path}}`.
        memory: for `remember` and `forget`; without one they fail.
        recall: for `recall`; without it the verb fails.
        emit: how the verb `emit` emits; without it the verb fails.
        once: makes the effects of SYNC actions once; without it a handler that runs again makes them again.
        tasks: where ASYNC actions go; without it they are refused.
        task_origin: the handled packet, for the trace of what is announced of the tasks.
        announce_to: the agents that are told of the tasks; none = the agent itself.
        new_origin: asked once for each response; the keys of its calls and the ids of its tasks follow from it. That
            of a handler gives the same ones when the handler runs again after a crash.
    """

    agent_id: str
    session_id: str
    security_level: SecurityLevel = SecurityLevel.USER
    trigger: Trigger | None = None
    compartment: str = ""
    allowed_knowledge: Collection[str] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, JsonValue] = field(default_factory=dict)
    memory: ActionMemory | None = None
    recall: Recall | None = None
    emit: Callable[..., Awaitable[Packet]] | None = None
    once: Once | None = None
    tasks: TaskStore | None = None
    task_origin: TaskOrigin | None = None
    announce_to: tuple[str, ...] = ()
    new_origin: Callable[[], UUID] = uuid4

    @classmethod
    def of(cls, ctx: Handling, **settings: Any) -> "ActionContext":
        """Return the context of a handler, at most at the level of the packet's sender.

        `settings` are further arguments, or others than the handler's.
        """
        trace, trigger = ctx.packet.trace, ctx.trigger
        level = lowest(trigger.level, SecurityLevel(settings.pop("security_level", ctx.agent.security_level)))
        given: dict[str, Any] = {
            "agent_id": ctx.agent.agent_id,
            "session_id": trace.session_id,
            "security_level": level,
            "trigger": trigger,
            "memory": StateMemory(ctx),
            "emit": ctx.emit,
            "once": ctx.once,
            "tasks": ctx.tasks,
            "task_origin": TaskOrigin(
                packet_id=ctx.packet.packet_id,
                root_packet_id=trace.root_packet_id,
                run_id=trace.run_id,
                task_id=trace.task_id,
            ),
            "new_origin": ctx.new_origin,
        }
        return cls(**{**given, **settings})


def key_of(origin: UUID, action_id: str) -> UUID:
    """Return the idempotency key of an action, and the id of its task."""
    return uuid5(origin, f"action/{action_id}")


# The internal verbs: remember, forget, recall, emit, stop.

STOP = "stop"
ANSWERS = frozenset({PacketType.CLAIM, PacketType.IDEA})
"""What `emit` may send below the level `user`: packets that need no right and move no session."""


async def remember(key: Name, value: JsonValue, context: ActionContext) -> None:
    """Keep a value under a key, for later responses of this session."""
    await _memory(context).remember(key, value)


async def forget(key: Name, context: ActionContext) -> bool:
    """Forget the value under a key; return whether there was one."""
    return await _memory(context).forget(key)


async def recall(
    turn: Name, context: ActionContext, call: ToolCall, *, start: Annotated[int, Field(ge=0)] = 0
) -> JsonValue:
    """Return an earlier turn of the conversation from a character on, whether the window still holds it or not."""
    if context.recall is None:
        raise ActionError("there is no conversation: recall is for a model that has one")
    return await context.recall(turn, start, call.security_level)


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
            (recall, SecurityLevel.PUBLIC),
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
