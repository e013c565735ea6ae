"""Snapshots of folded sessions in the server's memory: one every 500 entries."""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field

from apc_web.fold.fold import Folded

EVERY = 500
"""Entries between two snapshots."""
MOST_SESSIONS = 32
"""Sessions whose snapshots are kept; the one that was asked for longest ago is forgotten first."""
MOST_SNAPSHOTS = 2_000
"""Snapshots of one session: further ones are not kept."""


@dataclass(slots=True)
class SessionSnapshots:
    """Snapshots of one session, in the order of the log."""

    seqs: list[int] = field(default_factory=list)
    states: list[Folded] = field(default_factory=list)

    def before(self, seq: int) -> Folded:
        """Return a copy of the last snapshot at or before a position."""
        at = bisect_right(self.seqs, seq)
        return self.states[at - 1].copy() if at else Folded()

    def keep(self, state: Folded) -> None:
        """Keep a copy of a state, if it is a further one."""
        if len(self.seqs) < MOST_SNAPSHOTS and (not self.seqs or state.seq > self.seqs[-1]):
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
