"""What was handled already, and what a deposed gate never committed (docs/specification/architecture.md section 2)."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from uuid import UUID

MAX_ENDED = 50_000
"""Ended deliveries remembered: many times the bound of outstanding deliveries of an agent."""
MAX_EPOCHS = 16

KeyT = TypeVar("KeyT", bound=Hashable)
DeliveryKey = tuple[UUID, int]
"""(packet_id, attempt): one handing over of a packet."""


class RecentKeys(Generic[KeyT]):
    """A bounded set that forgets its oldest members first."""

    def __init__(self, limit: int = MAX_ENDED) -> None:
        self._limit = limit
        self._keys: OrderedDict[KeyT, None] = OrderedDict()

    def add(self, key: KeyT) -> None:
        """Remember a key."""
        self._keys[key] = None
        if len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._keys


class FencingTokens:
    """The marks of one shard: which deliveries of older epochs belong to a batch that was never committed.

    The mark of an epoch is the last (epoch, batch_no) committed before it. A delivery of an older epoch that lies
    beyond it was sent by a gate that had already lost the shard.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._fencing_tokens: dict[int, tuple[int, int]] = {}

    def is_fenced(self, epoch: int, batch_no: int, mark: tuple[int, int]) -> bool:
        """Return whether this delivery must be dropped; takes its own mark over first."""
        if epoch not in self._fencing_tokens:
            self._remember(epoch, mark)
        if epoch >= self._newest:
            return False
        place = (epoch, batch_no)
        return any(place > known for newer, known in self._fencing_tokens.items() if newer > epoch)

    def _remember(self, epoch: int, mark: tuple[int, int]) -> None:
        self._fencing_tokens[epoch] = mark
        self._newest = max(self._newest, epoch)
        if len(self._fencing_tokens) > MAX_EPOCHS:
            del self._fencing_tokens[min(self._fencing_tokens)]
