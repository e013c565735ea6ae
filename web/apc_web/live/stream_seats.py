"""How many streams are open, of all people and of each: one person leaves room for the others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from apc_web.access.caller import LOCAL_USER
from apc_web.errors import ApiError

MOST_STREAMS = 128
"""Streams of one server at the same time."""
MOST_OF_ONE = 32
"""Streams of one account; a browser opens one, whatever number of tabs it has."""


class StreamSeats:
    """Counts the open streams."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Count a stream of a person while the context is open. Raises ApiError (429) when too many are open."""
        most = MOST_STREAMS if name == LOCAL_USER else MOST_OF_ONE
        if self._taken.total() >= MOST_STREAMS:
            raise ApiError(429, "TOO_MANY", f"{MOST_STREAMS} streams are open: close one")
        if self._taken[name] >= most:
            raise ApiError(429, "TOO_MANY", f"{most} streams of {name} are open: close one")
        self._taken[name] += 1
        try:
            yield
        finally:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]


class SeatedStream(EventSourceResponse):
    """A stream that is counted from the moment its answer begins, so that none slips in between look and count.

    Args:
        seats: count it.
        name: whose stream it is.
        content: the events.
        options: as of EventSourceResponse.
    """

    def __init__(self, seats: StreamSeats, name: str, content: Any, **options: Any) -> None:
        super().__init__(content, **options)
        self._seats = seats
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. Raises ApiError, before anything is sent, when too many streams are open."""
        with self._seats.taken(self._name):
            await super().__call__(scope, receive, send)
