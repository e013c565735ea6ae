"""Error answers to a caller: a status, a code, the field, one sentence."""

from dataclasses import dataclass

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from apc_agents import AgentError
from apc_agents.context import (
    ContextPressureError,
    ContextStale,
    InvalidTransition,
    MessageTooLong,
    TurnInvalid,
)
from apc_agents.llm import DialogueBusy, LLMError, ModelAway
from apc_agents.memory import MemoryArgumentInvalid, MemoryUnavailable, UnknownSession
from apc_console.api.identity import Unauthorized

_log = structlog.get_logger("apc_console")


@dataclass(slots=True)
class RequestRefused(Exception):
    """A request that cannot be used."""

    status: int
    code: str
    message: str
    field: str | None = None

    def response(self) -> JSONResponse:
        """Return `{"error": {"code", "message", "field"}}`."""
        error = {"code": self.code, "message": self.message}
        if self.field is not None:
            error["field"] = self.field
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse({"error": error}, self.status, headers)


def refusal_of(error: Exception) -> RequestRefused:
    """Return the answer to the caller for an error.

    What failed behind the service goes to its log, not to the caller.
    """
    match error:
        case RequestRefused():
            return error
        case HTTPException(status_code=405):
            return RequestRefused(405, "NO_SUCH_METHOD", "this path does not take this method")
        case HTTPException():
            return RequestRefused(
                error.status_code, "NO_SUCH_PATH", "there is no such path: docs/how-to/chat.md lists those there are"
            )
        case Unauthorized():
            return RequestRefused(401, "UNAUTHORIZED", "send Authorization: Bearer TOKEN")
        case UnknownSession():
            return RequestRefused(404, "UNKNOWN_SESSION", "there is no such session: POST /sessions begins one", "id")
        case ContextStale():
            return RequestRefused(
                409, "STALE", "the session has changed since you read it: read its props again", "If-Match"
            )
        case DialogueBusy():
            return RequestRefused(409, "BUSY", "the agent is still answering: wait for its answer")
        case ContextPressureError() | InvalidTransition():
            return RequestRefused(
                409, "NOT_NOW", "the session takes this not in the state that it is in: read its props"
            )
        case MessageTooLong():
            return RequestRefused(413, "TOO_LONG", f"{error.tokens} tokens, {error.limit} fit: shorten it", "content")
        case TurnInvalid():
            return RequestRefused(422, "INVALID", str(error), "content")
        case MemoryArgumentInvalid():
            return RequestRefused(422, "INVALID", str(error), error.place)
        case ModelAway() | MemoryUnavailable():
            return RequestRefused(503, "AWAY", "the service cannot answer now: try again later")
        case LLMError():
            return RequestRefused(502, "NO_ANSWER", "the agent gave no answer; the session is as it was")
        case _:
            return RequestRefused(500, "FAILED", "the service failed; the session is as it was")


async def answer_refusal(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request that raised."""
    refusal = refusal_of(error)
    if refusal.status >= 500:
        _log.error("chat_request_failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
    return refusal.response()


REFUSED = (RequestRefused, Unauthorized, AgentError, HTTPException)
"""The exceptions that a route may raise."""
