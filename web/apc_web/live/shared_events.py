"""Events that several streams send: written once, because 100 streams would write the same text 100 times."""

from dataclasses import dataclass

_KEPT = 64
"""Streams that follow the end of the log need the last ones."""


@dataclass(frozen=True, slots=True)
class EventKey:
    """What the text of an event depends on."""

    session_id: str | None
    is_viewer: bool
    """A viewer's events have fewer columns."""
    part: tuple[int, int, int]
    """Shard, and the entries after < seq <= last."""
    heads: tuple[tuple[int, int], ...]


class WrittenEvents:
    """Keeps the last events as they are sent."""

    def __init__(self) -> None:
        self._events: dict[EventKey, bytes] = {}

    def get(self, key: EventKey | None) -> bytes | None:
        """Return an event that was written before; None when there is none, and for the key None."""
        return None if key is None else self._events.get(key)

    def keep(self, key: EventKey | None, event: bytes) -> None:
        """Keep an event in place of the oldest one; the key None keeps nothing."""
        if key is None:
            return
        while len(self._events) >= _KEPT:
            self._events.pop(next(iter(self._events)))
        self._events[key] = event

    def clear(self) -> None:
        """Forget all."""
        self._events.clear()
