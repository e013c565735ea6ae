"""The bodies of requests."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from apc_console.api.error_answers import RequestRefused
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import DocumentLimits
from apc_contracts.wire.parsing import refusal_of
from apc_contracts.wire.strict_json import read_strict_json

MAX_BODY_BYTES = 1_048_576
MAX_DIGITS = 18
"""Digits of a revision; a longer one cannot exist."""

BodyT = TypeVar("BodyT", bound=BaseModel)


class Body(BaseModel):
    """A JSON object with no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewMessage(Body):
    """A user's message."""

    content: Annotated[str, Field(min_length=1)]


class Nothing(Body):
    """No fields: the server decides how a context is compressed."""


async def read_body(request: Request, model: type[BodyT], *, default: bytes | None = None) -> BodyT:
    """Return the body of a request; `default` stands for an empty one. Raises Refusal: 413, 422 with the field."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestRefused(413, "TOO_LONG", f"more than {MAX_BODY_BYTES} bytes: shorten it", "$")
    document = bytes(body) or default or b""
    try:
        read_strict_json(document, DocumentLimits(size_bytes=MAX_BODY_BYTES))  # a duplicate key is never an accident
        return model.model_validate_json(document)
    except PacketRefused as refused:
        raise RequestRefused(422, "INVALID", refused.message, refused.path) from refused
    except ValidationError as error:
        first = refusal_of(error)
        is_unknown = error.errors()[0]["type"] == "extra_forbidden"
        raise RequestRefused(
            422, "INVALID", "unknown field: remove it" if is_unknown else first.message, first.path
        ) from error


def revision_of(request: Request) -> int | None:
    """Return the revision that If-Match names, as ETag gave it. Raises Refusal."""
    given = request.headers.get("if-match")
    if given is None or given == "*":
        return None
    revision = given.strip().strip('"')
    if not (revision.isascii() and revision.isdecimal()):
        raise RequestRefused(422, "INVALID", "give the ETag of the props that you have read", "If-Match")
    return int(revision[:MAX_DIGITS])
