"""Replay: recompute every verdict and every transition of a session from its log alone.

The gate's own `judge` and `advance` run over the recorded inputs; their results must equal the record. Pure: the caller
reads the entries and passes them in, one log batch at a time.
"""

from apc_contracts.replay.entries import (
    Entry,
    RecordedHop,
    RecordedPacket,
    RecordedTransition,
    ReplayDiffers,
    ReplayImpossible,
)
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
