"""The worker SDK: handlers for packets, with everything around them done.

Write an `Agent`, register handlers with `@agent.on(...)`, run it with `apc worker module:agent`, test it with
`AgentTestClient`. A packet is handed to a handler at least once and takes effect once.

The examples in the docstrings of this package and of `apc_client` begin with these lines, and tests run them:

```python
import asyncio
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from apc_agents import *


@message("question/1")
class Question(BaseModel):
    text: str


@message("answer/1")
class Answer(BaseModel):
    text: str


desk = Agent("desk", role="desk", swarm="support")
```

They await at their top level, as `python -m asyncio` allows.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from apc_contracts.late import late_names

if TYPE_CHECKING:
    from apc_agents.agent import Agent
    from apc_agents.effects import EffectError, EffectNotMade, EffectResultLost, EffectSettled, EffectUnknown
    from apc_agents.emission import ALL, ROOT, SUBSTRATE, EmitOptions, Role
    from apc_agents.errors import (
        AgentError,
        AgentInvalid,
        AgentNotFound,
        AnswerUnusable,
        AskTimeout,
        ContinuationDiverged,
        EmitError,
        EmitRefused,
        EmitRejected,
        EmitTimeout,
        EmitUnconfirmed,
        HandlerFailed,
        Reject,
        RequestFailed,
        Retry,
        StateError,
        StateInvalid,
        StateStale,
        StateUnavailable,
        WaitError,
    )
    from apc_agents.handling.handler_context import HandlerContext
    from apc_agents.handling.inquiry import Approval
    from apc_agents.handling.state import InMemoryStateStore, PostgresStateStore, SavedState, StateStore
    from apc_agents.running.service import run_worker
    from apc_agents.running.worker import Worker
    from apc_agents.scheduling import Tick
    from apc_agents.sqlite_effects import SQLiteEffectStore
    from apc_agents.team import Team, load_agent, load_team
    from apc_agents.testing import AgentTestClient
    from apc_agents.tool_effects import once
    from apc_agents.typed import content_of, message
    from apc_bus.settings import WorkerSettings

__all__ = [
    "ALL",
    "ROOT",
    "SUBSTRATE",
    "Agent",
    "AgentError",
    "AgentInvalid",
    "AgentNotFound",
    "AgentTestClient",
    "AnswerUnusable",
    "Approval",
    "AskTimeout",
    "ContinuationDiverged",
    "EffectError",
    "EffectNotMade",
    "EffectResultLost",
    "EffectSettled",
    "EffectUnknown",
    "EmitError",
    "EmitOptions",
    "EmitRefused",
    "EmitRejected",
    "EmitTimeout",
    "EmitUnconfirmed",
    "HandlerContext",
    "HandlerFailed",
    "InMemoryStateStore",
    "PostgresStateStore",
    "Reject",
    "RequestFailed",
    "Retry",
    "Role",
    "SQLiteEffectStore",
    "SavedState",
    "StateError",
    "StateInvalid",
    "StateStale",
    "StateStore",
    "StateUnavailable",
    "Team",
    "Tick",
    "WaitError",
    "Worker",
    "WorkerSettings",
    "content_of",
    "load_agent",
    "load_team",
    "message",
    "once",
    "run_worker",
]


# What is now above the SDK, in apc_minds, or in another file here: importable by its former name for one minor release.

MOVED = {
    "action_context": "apc_minds.action_context",
    "actions": "apc_minds.actions",
    "agent_context": "apc_minds.situation",
    "context": "apc_minds.context",
    "context.compression": "apc_minds.context.compression",
    "context.conversation": "apc_minds.context.conversation",
    "context.polynomial": "apc_minds.context.polynomial",
    "context.prompt_assembly": "apc_minds.context.prompt_assembly",
    "context.session": "apc_minds.context.session",
    "context.store": "apc_minds.context.store",
    "context.stream_paths": "apc_minds.context.stream_paths",
    "context.turns": "apc_minds.context.turns",
    "context.window": "apc_minds.context.window",
    "language_model": "apc_minds.language_model",
    "llm": "apc_minds.llm",
    "llm.agent": "apc_minds.llm.agent",
    "llm.dialogue": "apc_minds.llm.dialogue",
    "llm.mind": "apc_minds.llm.mind",
    "llm.prompting": "apc_minds.llm.prompting",
    "memory": "apc_minds.memory",
    "memory.conversation": "apc_minds.memory.conversation",
    "memory.in_memory": "apc_minds.memory.in_memory",
    "memory.postgres": "apc_minds.memory.postgres",
    "memory.store": "apc_agents.ports",
    "pydantic_ai": "apc_minds.pydantic_ai",
    "relevance": "apc_minds.situation",
    "situation": "apc_minds.situation",
    "tasks": "apc_minds.tasks",
    "tasks.in_memory": "apc_minds.tasks.in_memory",
    "tasks.postgres": "apc_minds.tasks.postgres",
    "tasks.runner": "apc_minds.tasks.runner",
    "tasks.store": "apc_agents.task_port",
    "text": "apc_minds.text",
    "tools": "apc_minds.tools",
    "variable_references": "apc_minds.tasks.references",
}
"""Former name in this package -> the module that is meant."""
STAYED = {
    "memory.conversation": ("apc_agents.errors", "apc_agents.ports"),
    "tools": ("apc_agents.errors", "apc_agents.json_values", "apc_agents.task_port"),
}
"""Where names of a former module are that did not move with it."""


class _MovedModules(MetaPathFinder, Loader):
    """Finds a module by its former name: the module itself, with a DeprecationWarning."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        former = fullname.removeprefix(f"{__name__}.")
        if former == fullname or former not in MOVED:
            return None
        text = f"{fullname} is now {MOVED[former]}; the old name goes in the next minor release"
        warnings.warn(text, DeprecationWarning, 2)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name.removeprefix(f"{__name__}.")])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the names that did not move with it, and its spec back."""
        spec = cast(ModuleSpec, module.__spec__)
        for other in STAYED.get(spec.name.removeprefix(f"{__name__}."), ()):
            vars(module).update(vars(import_module(other)) | vars(module))
        module.__spec__ = spec.loader_state


# First: below a package that has moved, the files lie where the ordinary finder would make second modules of them.
sys.meta_path.insert(0, _MovedModules())


if not TYPE_CHECKING:
    _late = late_names(
        __name__,
        {
            "apc_agents.agent": "Agent",
            "apc_agents.effects": "EffectError EffectNotMade EffectResultLost EffectSettled EffectUnknown",
            "apc_agents.emission": "ALL ROOT SUBSTRATE EmitOptions Role",
            "apc_agents.errors": (
                "AgentError AgentInvalid AgentNotFound AnswerUnusable AskTimeout ContinuationDiverged EmitError "
                "EmitRefused EmitRejected EmitTimeout EmitUnconfirmed HandlerFailed Reject RequestFailed Retry "
                "StateError StateInvalid StateStale StateUnavailable WaitError"
            ),
            "apc_agents.handling.handler_context": "HandlerContext",
            "apc_agents.handling.inquiry": "Approval",
            "apc_agents.handling.state": "InMemoryStateStore PostgresStateStore SavedState StateStore",
            "apc_agents.running.service": "run_worker",
            "apc_agents.running.worker": "Worker",
            "apc_agents.scheduling": "Tick",
            "apc_agents.sqlite_effects": "SQLiteEffectStore",
            "apc_agents.team": "Team load_agent load_team",
            "apc_agents.testing": "AgentTestClient",
            "apc_agents.tool_effects": "once",
            "apc_agents.typed": "content_of message",
            "apc_bus.settings": "WorkerSettings",
        },
    )

    def __getattr__(name: str) -> Any:
        """Return what is imported late, and what has another name now, with a DeprecationWarning."""
        if name in MOVED:
            return import_module(f"{__name__}.{name}")
        if name != "MemoryStateStore":
            return _late(name)
        warnings.warn(
            "MemoryStateStore is now InMemoryStateStore; the old name goes in the next minor release",
            DeprecationWarning,
            2,
        )
        return _late("InMemoryStateStore")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
