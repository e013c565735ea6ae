"""Deliveries that are not finished, by recipient and by sender."""

from collections.abc import Mapping

_NOTHING: Mapping[str, int] = {}


class Outstanding:
    """Counts over all sessions of a gate shard; zero counts are dropped."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._of_sender: dict[str, dict[str, int]] = {}

    @property
    def totals(self) -> Mapping[str, int]:
        """Return the open deliveries by recipient."""
        return self._totals

    def of(self, sender: str) -> Mapping[str, int]:
        """Return the open deliveries from this sender by recipient."""
        return self._of_sender.get(sender, _NOTHING)

    def begin(self, sender: str, recipient: str) -> None:
        """Count a delivery that has begun."""
        self._totals[recipient] = self._totals.get(recipient, 0) + 1
        own = self._of_sender.setdefault(sender, {})
        own[recipient] = own.get(recipient, 0) + 1

    def end(self, sender: str, recipient: str) -> None:
        """Count a delivery that has ended."""
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
