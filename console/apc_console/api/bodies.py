"""What a request may hold."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from apc_console.api.refusals import Refusal
from apc_contracts.schema_errors import refusal_of

MAX_BODY_BYTES = 1_048_576

BodyT = TypeVar("BodyT", bound=BaseModel)


class Body(BaseModel):
    """A JSON object with no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewMessage(Body):
    """What the user says."""

    content: Annotated[str, Field(min_length=1)]


class Nothing(Body):
    """No fields: how a context is compressed is the server's business."""


async def read_body(request: Request, model: type[BodyT], *, default: bytes | None = None) -> BodyT:
    """The body of a request; `default` stands for an empty one. Raises Refusal: 413, 422 with the field."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, "TOO_LONG", f"more than {MAX_BODY_BYTES} bytes: shorten it", "$")
    try:
        return model.model_validate_json(bytes(body) or default or b"")
    except ValidationError as error:
        first = refusal_of(error)
        raise Refusal(422, "INVALID", first.message, first.path) from error


def revision_of(request: Request) -> int | None:
    """The revision that If-Match names, as ETag gave it. Raises Refusal."""
    given = request.headers.get("if-match")
    if given is None or given == "*":
        return None
    try:
        return int(given.strip().strip('"'))
    except ValueError as error:
        raise Refusal(422, "INVALID", "give the ETag of the props that you have read", "If-Match") from error
