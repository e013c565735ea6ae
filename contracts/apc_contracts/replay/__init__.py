"""Replay: every verdict and every transition of a session again, from its log alone.

The pair `judge` and `advance` that the gate used is run over the recorded inputs; what it says must be what was
recorded. Pure: the entries are handed in, a log batch at a time, by whoever reads them.
"""

from apc_contracts.replay.entries import Entry, RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.replay.errors import ReplayDiffers, ReplayImpossible
from apc_contracts.replay.session_replay import SessionReplay
from apc_contracts.replay.what_if import Change

__all__ = [
    "Change",
    "Entry",
    "RecordedHop",
    "RecordedPacket",
    "RecordedTransition",
    "ReplayDiffers",
    "ReplayImpossible",
    "SessionReplay",
]
