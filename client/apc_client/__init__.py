"""Sessions of agents from ordinary code: start a team on an input, follow its session, get its typed result.

```python
import apc_client


@desk.on(Question)
async def reply(question: Question, ctx: HandlerContext) -> None:
    await ctx.complete(Answer(text=question.text.upper()))


team = Team("support", agents=[desk], entry="desk", input=Question)
async with apc_client.connect() as bus:
    session = await bus.start(team, Question(text="why"), key="ticket-4711")
    assert await session.result(Answer, timeout=60) == Answer(text="WHY")
```

The examples begin as those of `apc_agents`.
"""

from apc_client.callers import Callers
from apc_client.client import Client, SessionPage
from apc_client.connecting import connect, run
from apc_client.errors import (
    ClientError,
    KeyConflict,
    ResultUnusable,
    SessionHalted,
    SessionRefused,
    StartUnconfirmed,
)
from apc_client.session import ClientSession, SessionEvent, SessionStatus
from apc_client.testing import TeamTestClient, run_rule_tests

__all__ = [
    "Callers",
    "Client",
    "ClientError",
    "ClientSession",
    "KeyConflict",
    "ResultUnusable",
    "SessionEvent",
    "SessionHalted",
    "SessionPage",
    "SessionRefused",
    "SessionStatus",
    "StartUnconfirmed",
    "TeamTestClient",
    "connect",
    "run",
    "run_rule_tests",
]
