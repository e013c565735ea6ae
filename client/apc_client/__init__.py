"""Sessions of agents from ordinary code: start a team on an input, follow its session, get its typed result.

```python
async with apc_client.connect() as bus:
    session = await bus.start(team, PullRequest(number=4711), key="pr-4711")
    verdict = await session.result(Verdict, timeout=60)
```
"""

from apc_client.client import Client
from apc_client.connecting import connect, run
from apc_client.errors import ClientError, KeyConflict, ResultUnusable, SessionHalted, SessionRefused
from apc_client.session import ClientSession, SessionEvent
from apc_client.testing import TeamTestClient, run_rule_tests

__all__ = [
    "Client",
    "ClientError",
    "ClientSession",
    "KeyConflict",
    "ResultUnusable",
    "SessionEvent",
    "SessionHalted",
    "SessionRefused",
    "TeamTestClient",
    "connect",
    "run",
    "run_rule_tests",
]
