"""What the actions of a response run in: who runs them, what they may do, and what they reach."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID, uuid4, uuid5

from pydantic import JsonValue

from apc_agents.clearance import Trigger, lowest
from apc_agents.emitting.draft import Emits
from apc_agents.json_values import Stateful
from apc_agents.memory.errors import encoded
from apc_agents.tasks.store import TaskOrigin, TaskStore
from apc_agents.tools import ActionError, Once
from apc_contracts.agent import SecurityLevel
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import Payload

REMEMBERED: Final = "remembered"
"""The key in ctx.state under which `remember` keeps what it is given."""
MAX_REMEMBERED_BYTES: Final = 16 * 1024
"""Of all that is remembered in a session, as JSON: a model is told all of it whenever it is asked."""


class Emit(Protocol):
    """Emits a packet, as HandlerContext.emit."""

    def __call__(self, payload: Payload, **options: Any) -> Awaitable[Packet]:
        """Emit a packet. Raises EmitError."""
        ...


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
    emit: Emit | None = None
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
