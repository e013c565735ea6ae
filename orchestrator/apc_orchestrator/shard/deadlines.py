"""The next timer of any session."""

import heapq
from collections.abc import Iterator
from datetime import datetime

OUTDATED_KEPT = 1024
"""Outdated heap entries that are kept at least; beyond twice the sessions the heap is rebuilt."""


class Deadlines:
    """The earliest deadline of each session; a heap whose outdated entries are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, str]] = []
        self._current: dict[str, datetime] = {}

    def note(self, session_id: str, due: datetime | None) -> None:
        """Set the session's next deadline; None = it has none."""
        if due is None:
            self._current.pop(session_id, None)
        elif self._current.get(session_id) != due:
            self._current[session_id] = due
            heapq.heappush(self._heap, (due, session_id))
            if len(self._heap) > 2 * len(self._current) + OUTDATED_KEPT:
                self._heap = [(moment, name) for name, moment in self._current.items()]
                heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Return the number of heap entries, outdated ones included."""
        return len(self._heap)

    @property
    def next(self) -> datetime | None:
        """Return the earliest deadline of all, None without one."""
        while self._heap and self._current.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: datetime) -> Iterator[str]:
        """Yield the sessions with a deadline at or before `now`, the earliest first.

        Each is removed when it is yielded and must be noted again, later than `now`; the others keep their place.
        """
        while (earliest := self.next) is not None and earliest <= now:
            _, session_id = heapq.heappop(self._heap)
            del self._current[session_id]
            yield session_id
