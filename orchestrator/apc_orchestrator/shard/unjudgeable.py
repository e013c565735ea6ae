"""Timers on which the gate fails. A defect of ours must not stop the shard."""

from collections import OrderedDict
from collections.abc import Hashable

import structlog

from apc_orchestrator.errors import ShardLost

KEPT = 10_000
"""Tags that are remembered; the oldest is forgotten first, and its timer fails once more."""

_log = structlog.get_logger("apc_orchestrator")


class UnjudgeableTimers:
    """Tags of timers that were given up. A process keeps them across its leases of a shard."""

    def __init__(self) -> None:
        self._tags: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, tag: Hashable) -> bool:
        return tag in self._tags

    def give_up(self, tag: Hashable, error: Exception) -> ShardLost:
        """Remember the timer, and return the error to raise: memory may be half changed, so the shard is left."""
        self._tags[tag] = None
        if len(self._tags) > KEPT:
            self._tags.popitem(last=False)
        _log.exception("timer_unjudgeable", tag=repr(tag))
        return ShardLost(f"a timer cannot be judged: {error!r}")
