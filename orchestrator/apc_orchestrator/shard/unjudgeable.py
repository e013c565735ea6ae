"""Inputs on which the gate fails. A defect of ours must not stop the shard."""

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import sha256

import structlog

from apc_bus import headers
from apc_bus.port import Delivery
from apc_orchestrator.errors import ShardLost

KEPT = 10_000
"""Tags that are remembered; the oldest is forgotten first, and its input fails once more when it arrives again."""

_log = structlog.get_logger("apc_orchestrator")


class Unjudgeable:
    """Tags of inputs that were given up. A process keeps them across its leases of a shard."""

    def __init__(self) -> None:
        self._tags: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, tag: Hashable) -> bool:
        return tag in self._tags

    def holds(self, delivery: Delivery) -> bool:
        """Return whether a gate of this process failed on this delivery before."""
        return bool(self._tags) and tag_of(delivery) in self._tags

    def give_up(self, tag: Hashable, error: Exception) -> ShardLost:
        """Remember the input, and return the error to raise: memory may be half changed, so the shard is left."""
        self._tags[tag] = None
        if len(self._tags) > KEPT:
            self._tags.popitem(last=False)
        _log.exception("input_unjudgeable", tag=repr(tag))
        return ShardLost(f"an input cannot be judged: {error!r}")


def tag_of(delivery: Delivery) -> Hashable:
    """Return the tag by which an input is recognised when it arrives again, with the receipts that ride on it."""
    message = delivery.message
    return sha256(message.body).digest(), repr(message.headers.get(headers.RECEIPTS))
