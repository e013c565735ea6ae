"""Snapshots of folded sessions in the server's memory: one about every 500 entries."""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field

from apc_web.fold.fold import Folded

EVERY = 500
"""Entries between two snapshots."""
MOST_SESSIONS = 32
"""Sessions whose snapshots are kept; the one that was asked for longest ago is forgotten first."""
MOST_SNAPSHOTS = 2_000
"""Snapshots of one session: when there are as many, every second one is forgotten."""


@dataclass(slots=True)
class SessionSnapshots:
    """Snapshots of one session, in the order of the log."""

    seqs: list[int] = field(default_factory=list)
    states: list[Folded] = field(default_factory=list)
    reached: int = 0
    """All entries up to this position are in a snapshot, or in none because there were too few."""
    growing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Only one request makes further snapshots."""

    def before(self, seq: int) -> Folded:
        """Return a copy of the last snapshot that is before a position."""
        at = bisect_left(self.seqs, seq)
        return self.states[at - 1].copy() if at else Folded()

    def keep(self, state: Folded) -> None:
        """Keep a copy of a state, if it is a further one."""
        if self.seqs and state.seq <= self.seqs[-1]:
            return
        if len(self.seqs) >= MOST_SNAPSHOTS:
            del self.seqs[::2], self.states[::2]
        self.seqs.append(state.seq)
        self.states.append(state.copy())


class Snapshots:
    """The snapshots of the sessions that were asked for last."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, SessionSnapshots] = OrderedDict()

    def of(self, session_id: str) -> SessionSnapshots:
        """Return the snapshots of a session."""
        found = self._sessions.setdefault(session_id, SessionSnapshots())
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return found
