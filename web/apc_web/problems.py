"""An error as an `application/problem+json` answer (RFC 9457), of every HTTP service."""

from http import HTTPStatus

from starlette.responses import Response

from apc_web.errors import ApiError
from apc_web.models.model_base import ProblemDocument

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
