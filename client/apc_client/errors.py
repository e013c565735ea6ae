"""Errors of the client.

ApcError
  ClientError
    SessionRefused   the gate refused the start or the input of a session
    SessionHalted    the session ended without a result
    KeyConflict      the key was used for another input
    ResultUnusable   the session closed, and its result is not what was asked for
    StillRunning     the session has not ended in time
  ServiceAway        (apc_contracts.errors)
    StartUnconfirmed   a start that was sent, and has no verdict in time
    ShardsUnconfirmed  a change of the registry that some shards have not logged in time
"""

from typing import ClassVar

from apc_contracts.errors import ApcError, ServiceAway


class ClientError(ApcError):
    """The client could not do what was asked.

    ```python
    from apc_client import (
        Client,
        ClientError,
        KeyConflict,
        ResultUnusable,
        SessionHalted,
        SessionRefused,
        StartUnconfirmed,
    )


    async def answer_to(bus: Client, team: Team, question: Question, ticket: str) -> str:
        try:
            session = await bus.start(team, question, key=ticket)
            return (await session.result(Answer, timeout=60)).text
        except KeyConflict:
            return f"{ticket} was another question"
        except SessionRefused as error:
            return f"{error.code} at {error.place}: {error.remedy}"
        except SessionHalted as error:
            return f"session {error.session_id} halted: {error.reason}"
        except ResultUnusable as error:
            return str(error)
        except StartUnconfirmed as error:
            return f"session {error.session_id} begins when the gate is back"
        except TimeoutError:
            return "it takes longer; ask again with the same key"


    assert issubclass(SessionHalted, ClientError)
    ```
    """


class SessionRefused(ClientError):
    """The gate refused a packet that starts a session: `code`, `place` and `message` say why, `remedy` what to do.

    `session_id` names the session that was sent to the gate; None when nothing was sent.
    """

    def __init__(
        self, code: str, place: str | None, message: str, remedy: str, *, session_id: str | None = None
    ) -> None:
        at = "" if place is None else f" at {place}"
        super().__init__(f"refused, {code}{at}: {message.removesuffix('.')}. Remedy: {remedy}")
        self.code, self.place, self.remedy = code, place, remedy
        self.session_id = session_id


class SessionHalted(ClientError):
    """The session `session_id` ended without a result; `reason` is that of the log, `failure` what failed, in words."""

    exit_code: ClassVar[int] = 3

    def __init__(self, session_id: str, reason: str, failure: str = "") -> None:
        said = f"{reason.partition(' ')[0]} {failure} See" if failure else f"{reason}; see"
        super().__init__(f"session {session_id} halted: {said} `apc session explain {session_id}`")
        self.session_id, self.reason, self.failure = session_id, reason, failure


class KeyConflict(ClientError):
    """The key of a start was used before, for another input."""


class ResultUnusable(ClientError):
    """The session closed without a result, or with one of another schema."""


class StillRunning(ClientError):
    """The session has not ended within the time that a command waits."""

    exit_code: ClassVar[int] = 5

    def __init__(self, session_id: str, seconds: float) -> None:
        super().__init__(f"session {session_id} goes on after {seconds:g} s; see `apc session explain {session_id}`")


class StartUnconfirmed(ServiceAway):
    """The start of session `session_id` was sent and is not judged yet, for a `reason`: it begins when they answer."""

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(f"session {session_id}: {reason}")
        self.session_id = session_id


class ShardsUnconfirmed(ServiceAway):
    """A change of the registry was sent, and some shards have not logged it in time; repeating it is safe."""

    exit_code: ClassVar[int] = 4
