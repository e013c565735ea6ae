"""Token buckets, one per key.

A bucket is stored as the one timestamp at which it will be full again (the generic cell rate algorithm, ITU-T I.371):
it needs no timer, and a long-silent key is like one that never sent.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

_NOTHING = timedelta()
_KEYS_BEFORE_PRUNING = 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """A rate as durations: for one token to flow back, and for a full bucket."""

    interval: timedelta
    burst: int

    @classmethod
    def of(cls, tokens_per_second: float, burst: int) -> "Pace":
        """Return the pace of a bucket that fills at this rate."""
        return cls(timedelta(seconds=1 / tokens_per_second), burst)


class TokenBuckets:
    """The buckets of all keys. `now` never goes back from call to call."""

    def __init__(self) -> None:
        self._full_at: dict[str, datetime] = {}
        self._prune_beyond = _KEYS_BEFORE_PRUNING

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._full_at)

    def wait(self, key: str, pace: Pace, now: datetime, tokens: int = 1) -> timedelta:
        """Return how long until the bucket holds this many tokens, at most a full bucket; zero when it does now."""
        full_at = self._full_at.get(key)
        if full_at is None:
            return _NOTHING
        return max(_NOTHING, full_at - now - (pace.burst - min(tokens, pace.burst)) * pace.interval)

    def draw(self, key: str, pace: Pace, now: datetime, tokens: int = 1) -> None:
        """Take tokens out of the bucket."""
        full_at = self._full_at.get(key, now)
        self._full_at[key] = max(full_at, now) + min(tokens, pace.burst) * pace.interval
        if len(self._full_at) > self._prune_beyond:
            self._forget_full_ones(now)

    def _forget_full_ones(self, now: datetime) -> None:
        """Drop full buckets; runs again when the number of keys has doubled."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        self._prune_beyond = max(_KEYS_BEFORE_PRUNING, 2 * len(self._full_at))
