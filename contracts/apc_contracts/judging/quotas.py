"""How many packets per sender are admitted: one token bucket each.

Source: docs/specification/contract.md section 12, QUOTA_EXCEEDED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from apc_contracts.contract.file import Quota, QuotaRules

# Token buckets, one per key.
#
# A bucket is stored as the one timestamp at which it will be full again (the generic cell rate algorithm, ITU-T I.371):
# it needs no timer, and a long-silent key is like one that never sent.

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


_MILLISECOND = timedelta(milliseconds=1)


def quota_of(rules: QuotaRules, agent_id: str, role: str) -> Quota:
    """Return the quota of a sender: the agent's own, else its role's, else the default."""
    return rules.agents.get(agent_id) or rules.roles.get(role) or rules


class Quotas:
    """The buckets of all senders of one shard, in memory; they are full after a takeover.

    `now` never goes back from call to call; `rules` None = nobody has a quota.
    """

    def __init__(self, rules: QuotaRules | None) -> None:
        self._rules = rules
        self._buckets = TokenBuckets()
        self._paces: dict[tuple[str, str], Pace] = {}

    def wait_ms(self, agent_id: str, role: str, now: datetime) -> int:
        """Return the milliseconds until the sender's bucket holds a packet; 0 if it holds one now."""
        if self._rules is None:
            return 0
        return -(-self._buckets.wait(agent_id, self._pace(self._rules, agent_id, role), now) // _MILLISECOND)

    def draw(self, agent_id: str, role: str, now: datetime) -> None:
        """Take one token from the sender's bucket."""
        if self._rules is not None:
            self._buckets.draw(agent_id, self._pace(self._rules, agent_id, role), now)

    def _pace(self, rules: QuotaRules, agent_id: str, role: str) -> Pace:
        """Return the pace of a sender's quota, built once per agent, per role, or for everybody."""
        known = agent_id if agent_id in rules.agents else "", role if role in rules.roles else ""
        pace = self._paces.get(known)
        if pace is None:
            quota = quota_of(rules, agent_id, role)
            pace = self._paces[known] = Pace.of(quota.packets_per_second, quota.burst)
        return pace


# Deliveries that are not finished, by recipient and by sender.

_NONE_OPEN: Mapping[str, int] = {}


class Outstanding:
    """Counts over all sessions of a shard; zero counts are dropped."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._of_sender: dict[str, dict[str, int]] = {}

    @property
    def totals(self) -> Mapping[str, int]:
        """The open deliveries by recipient."""
        return self._totals

    def of(self, sender: str) -> Mapping[str, int]:
        """Return the open deliveries from this sender by recipient."""
        return self._of_sender.get(sender, _NONE_OPEN)

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
