"""Lists in pages: opaque cursors, bound to their query, and the parameters that several routes take."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, Literal

import orjson
from fastapi import Path, Query
from pydantic import AfterValidator, AwareDatetime

from apc_web.errors import ApiError

LARGEST_SHARD = (1 << 31) - 1
LARGEST_SEQ = (1 << 63) - 1
"""What the columns `shard` and `seq` hold: the database refuses larger numbers, in words for programmers."""
_LONGEST = 2_000
"""Characters of a cursor; the longest that is written is shorter."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 1, 1, tzinfo=UTC)


def write_cursor(query: str, filters: Mapping[str, object], *values: int | str | float) -> str:
    """Return the cursor for these values of a query.

    Args:
        query: name of the list.
        filters: what narrows the list; another list cannot use the cursor.
    """
    content = [_digest(query, filters), *values]
    return urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")


def read_cursor(cursor: str | None, query: str, filters: Mapping[str, object], *types: type) -> list[Any] | None:
    """Return the values of a cursor, one of each type; None without a cursor. Raises ApiError for anything else."""
    if cursor is None:
        return None
    try:
        document = orjson.loads(urlsafe_b64decode(cursor[:_LONGEST] + "=" * (-len(cursor) % 4)))
    except ValueError:
        document = None
    if not isinstance(document, list) or len(document) != len(types) + 1 or document[0] != _digest(query, filters):
        raise _unusable()
    values = document[1:]
    if [type(value) for value in values] != list(types) or any(_is_too_large(value) for value in values):
        raise _unusable()
    return values


def _is_too_large(value: object) -> bool:
    return (isinstance(value, int) and abs(value) > LARGEST_SEQ) or (isinstance(value, str) and "\0" in value)


def _digest(query: str, filters: Mapping[str, object]) -> str:
    given = sorted((name, str(value)) for name, value in filters.items() if value is not None)
    return sha256(orjson.dumps([query, given])).hexdigest()[:12]


def _unusable() -> ApiError:
    return ApiError(
        400, "BAD_CURSOR", "this is no cursor of this list: take `next` of a page with the same filters", "after"
    )


def microseconds(at: datetime) -> int:
    """Return a time as a value for a cursor."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def time_of(value: int) -> datetime:
    """Return the time of a cursor's value. Raises ApiError when it is none."""
    try:
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError:
        raise _unusable() from None


NAME = r"^[^\x00]{1,256}$"
_PACKET = r"^([0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9]{1,9}-[0-9]{1,18})$"
_CODE = r"^[A-Z_]{1,64}$"

SessionName = Annotated[str, Path(pattern=NAME, description="A session.")]
PacketName = Annotated[
    str, Path(pattern=_PACKET, description="A packet_id, or SHARD-SEQ: the position of a packet in the log.")
]
InSession = Annotated[str | None, Query(alias="session", pattern=NAME, description="The packet's session.")]
OfRun = Annotated[str | None, Query(pattern=NAME, description="Only of this run.")]
OfSession = Annotated[str | None, Query(pattern=NAME, description="Only of this session.")]
OfTask = Annotated[str | None, Query(pattern=NAME, description="Only of this task.")]
OfAgent = Annotated[str | None, Query(pattern=NAME, description="Only of this agent.")]
SearchText = Annotated[
    str | None,
    Query(pattern=r"^[^\x00]{1,200}$", description="Words, each may be the beginning of one, or ends of ids."),
]
Code = Annotated[str | None, Query(pattern=_CODE, description="Only with this code.")]
Time = Annotated[AwareDatetime, AfterValidator(lambda at: max(_EPOCH, min(at, _LAST)))]
"""A time that the database holds and one can reckon with: earlier and later ones find the same."""
Since = Annotated[Time | None, Query(description="Only from this time on.")]
Until = Annotated[Time | None, Query(description="Only before this time.")]
After = Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=500, description="At most this many.")]
Order = Annotated[Literal["oldest", "newest"], Query(description="Which end of the log comes first.")]

__all__ = [
    "After",
    "Code",
    "InSession",
    "Limit",
    "OfAgent",
    "OfRun",
    "OfSession",
    "OfTask",
    "Order",
    "PacketName",
    "SearchText",
    "SessionName",
    "Since",
    "Time",
    "Until",
]
