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

import warnings

from apc_agents.agent import Agent
from apc_agents.effects import EffectError, EffectNotMade, EffectResultLost, EffectSettled, EffectUnknown
from apc_agents.emission import ALL, ROOT, SUBSTRATE, EmitOptions, Role
from apc_agents.errors import (
    AgentError,
    AgentInvalid,
    AgentNotFound,
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
from apc_agents.handling.state import InMemoryStateStore, PostgresStateStore, StateStore
from apc_agents.running.service import run_worker
from apc_agents.running.worker import Worker
from apc_agents.scheduling import Tick
from apc_agents.team import Team, load_agent, load_team
from apc_agents.testing import AgentTestClient
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
    "run_worker",
]


def __getattr__(name: str) -> type[InMemoryStateStore]:
    """Return InMemoryStateStore for its former name, MemoryStateStore, with a DeprecationWarning."""
    if name != "MemoryStateStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "MemoryStateStore is now InMemoryStateStore; the old name goes in the next minor release", DeprecationWarning, 2
    )
    return InMemoryStateStore
