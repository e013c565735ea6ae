"""Warnings of what others can provoke at will: one line a second, with a count."""

import asyncio
from typing import Any

import structlog

INTERVAL_SECONDS = 1.0


class CountedWarning:
    """One kind of event: the first is written at once, those of the next second together, with the last one's fields.

    Needs a running event loop.
    """

    def __init__(self, log: Any, event: str, interval: float = INTERVAL_SECONDS) -> None:
        self._log: structlog.stdlib.BoundLogger = log
        self._event = event
        self._interval = interval
        self._count = 0
        self._fields: dict[str, Any] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, **fields: Any) -> None:
        """Count one more event."""
        self._count += 1
        self._fields = fields
        if self._timer is None:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._count:
            return
        count, self._count = self._count, 0
        self._log.warning(self._event, count=count, **self._fields)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._write)
