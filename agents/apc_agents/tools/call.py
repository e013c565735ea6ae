"""What a tool is given beside its arguments, when it asks for it by a parameter of the type ToolCall."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from pydantic import JsonValue

from apc_agents.tools.errors import ActionError
from apc_agents.tools.knowledge import KnowledgeScope
from apc_contracts.agent import SecurityLevel


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that is to be made once.

    `key` is the same in every attempt: give it to a service that knows idempotency keys. `connection` is the
    transaction that also records the effect, so that what is written with it is written once; None where tasks are
    kept in memory.
    """

    key: str
    connection: Any = None


MakeEffect = Callable[[Effect], Awaitable[JsonValue]]


class Once(Protocol):
    """Makes an effect of a handler once, as HandlerContext.once."""

    def __call__(self, key: str, fn: Callable[[], Awaitable[JsonValue]]) -> Awaitable[JsonValue]:
        """Make the effect, or return its result. Raises EffectUnknown, EffectResultLost."""
        ...


class TaskHandle(Protocol):
    """How a running task tells of itself."""

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of the task. Raises TaskLost."""
        ...

    async def once(self, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect unless an attempt of this task has made it. Raises TaskLost."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    action_id: str
    agent_id: str
    session_id: str
    security_level: SecurityLevel
    key: UUID
    """The same whenever this action runs again after a crash: an idempotency key for what it calls."""
    scope: KnowledgeScope | None = None
    task: TaskHandle | None = None
    task_id: str | None = None
    """None for a SYNC action."""
    of_handler: Once | None = None
    """Makes the effects of a SYNC action once; None where its handler keeps no record of effects."""

    @property
    def knowledge(self) -> KnowledgeScope:
        """The knowledge that this tool may read. Raises ActionError when it was registered without reads=True."""
        if self.scope is None:
            raise ActionError("this tool reads no knowledge: register it with reads=True")
        return self.scope

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of a task, 0..1; ignored in a SYNC action.

        Raises:
            ActionError: a fraction outside 0..1.
            TaskLost: another worker has the task now.
        """
        if not 0 <= fraction <= 1:
            raise ActionError(f"progress {fraction} is outside 0..1")
        if self.task is not None:
            await self.task.progress(fraction, note)

    async def once(self, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect that was not made before by this action, and return what it gave the first time.

        In a task `make` runs inside the transaction that records the effect: keep it short. What it writes with the
        connection takes effect once. What it does elsewhere may happen again when the worker dies between that and the
        record: pass the key on.

        In a SYNC action it is `ctx.once` of the handler (docs/how-to/effects.md): there is no connection, and an effect
        that was interrupted is told as unknown.

        Raises:
            TaskLost: another worker has the task now.
            EffectUnknown, EffectResultLost: in a SYNC action.
        """
        if self.task is not None:
            return await self.task.once(name, make)
        effect = Effect(f"{self.key}/{name}")
        if self.of_handler is None:
            return await make(effect)

        async def made() -> JsonValue:
            return await make(effect)

        return await self.of_handler(effect.key, made)
