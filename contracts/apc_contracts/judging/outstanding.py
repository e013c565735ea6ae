"""Deliveries that have no end yet, by recipient and by the sender whose they are."""

from collections.abc import Mapping

_NOTHING: Mapping[str, int] = {}


class Outstanding:
    """Counts over all sessions of a gate shard. Whoever has none is not remembered."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._of_sender: dict[str, dict[str, int]] = {}

    @property
    def totals(self) -> Mapping[str, int]:
        """Recipient -> its open deliveries."""
        return self._totals

    def of(self, sender: str) -> Mapping[str, int]:
        """Recipient -> its open deliveries from this sender."""
        return self._of_sender.get(sender, _NOTHING)

    def begin(self, sender: str, recipient: str) -> None:
        """One more is on its way."""
        self._totals[recipient] = self._totals.get(recipient, 0) + 1
        own = self._of_sender.setdefault(sender, {})
        own[recipient] = own.get(recipient, 0) + 1

    def end(self, sender: str, recipient: str) -> None:
        """One has ended."""
        _take(self._totals, recipient)
        own = self._of_sender.get(sender)
        if own is not None:
            _take(own, recipient)
            if not own:
                del self._of_sender[sender]


def _take(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
