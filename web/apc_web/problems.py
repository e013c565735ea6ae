"""An error as an `application/problem+json` answer (RFC 9457), of every HTTP service; the log gets the cause."""

from collections.abc import Callable
from http import HTTPStatus

import asyncpg
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError, DatabasePartAway, DatabaseUnavailable
from apc_bus.telemetry import get_logger
from apc_contracts.errors import ApcError, InputUnusable, ServiceAway
from apc_log.errors import ArchiveDiffers, ArchiveUnavailable, SearchUnusable
from apc_persister.errors import ProofImpossible, TreeBroken
from apc_web.errors import ApiError
from apc_web.models import ProblemDocument

MEDIA_TYPE = "application/problem+json"


def problem_response(error: ApiError) -> Response:
    """Return the answer for an error."""
    problem = ProblemDocument(
        title=error.title, status=error.status, detail=error.detail, code=error.code, field=error.field
    )
    headers = {"Cache-Control": "no-store"}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "2"
    return Response(problem.model_dump_json(), error.status, headers, MEDIA_TYPE)


Refuses = Callable[[Scope, ApiError], Response]
"""Puts an error of a request into the form of what it asked for."""


def as_problem(scope: Scope, error: ApiError) -> Response:
    """Return the answer for an error of any request."""
    return problem_response(error)


_KINDS: tuple[type[Exception], ...] = (
    Exception,
    ApcError,
    HTTPException,
    RequestValidationError,
    *DATABASE_AWAY,
)
_log = get_logger("apc_web")


def add_failures(app: FastAPI) -> None:
    """Answer every error of a route as a problem."""
    for kind in _KINDS:
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    problem = error_of(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("web_request_failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
    return problem_response(problem)


def error_of(error: BaseException) -> ApiError:
    """Return what the caller is told of an error."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException(status_code=405):
            return ApiError(405, "NO_SUCH_METHOD", "this path does not take this method")
        case HTTPException(status_code=404):
            said = (
                "there is no such path: docs/reference/web-api.md lists all, docs/how-to/web-console.md explains them"
            )
            return ApiError(404, "NO_SUCH_PATH", said)
        case HTTPException():
            return ApiError(error.status_code, "REFUSED", str(error.detail))
        case SearchUnusable():
            return ApiError(422, "INVALID", str(error), "text")
        case InputUnusable():
            return ApiError(409, "NOT_POSSIBLE", str(error))
        case ServiceAway():
            return ApiError(503, "AWAY", str(error))
        case ProofImpossible():
            return ApiError(409, "PROOF_IMPOSSIBLE", str(error))
        case ArchiveUnavailable() | ArchiveDiffers():
            return ApiError(503, "ARCHIVE_UNAVAILABLE", str(error))
        case TreeBroken():
            return ApiError(503, "TREE_BROKEN", str(error))
        case asyncpg.QueryCanceledError():
            return ApiError(503, "TOO_SLOW", "the database took too long: narrow the request, or try again")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.UndefinedFunctionError():
            return ApiError(503, "OLD_DATABASE", "the database is older than this server: run `apc migrate`")
        case asyncpg.InsufficientPrivilegeError():
            return ApiError(503, "NO_RIGHT", "the database user may not read this: grant it the role apc_reader")
        case DatabasePartAway():
            return ApiError(503, "DATABASE_AWAY", str(error))
        case BusError() if not isinstance(error, DatabaseUnavailable):
            return ApiError(503, "BROKER_AWAY", "the broker does not answer: try again when it does")
        case _ if isinstance(error, DATABASE_AWAY):
            return ApiError(503, "DATABASE_AWAY", "the database does not answer: try again when it does")
        case _:
            return ApiError(500, "FAILED", "the server failed; its log has the reason")


def _invalid(error: RequestValidationError) -> ApiError:
    """Return the first fault, with the parameter that has it."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]] or [str(part) for part in first["loc"]]
    field = ".".join(place)[:200]
    return ApiError(422, "INVALID", f"{field}: {first['msg']}", field)
