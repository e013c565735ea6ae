"""How many packets of a sender are admitted: a token bucket each (contract.md section 12, QUOTA_EXCEEDED).

A bucket is kept as one moment, that at which it is full again (the generic cell rate algorithm, ITU-T I.371): it needs
no timer, and a sender who is silent for long is as one who never spoke.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from apc_contracts.contract_file import Quota, QuotaRules

_MILLISECOND = timedelta(milliseconds=1)
_NOTHING = timedelta()


def quota_of(rules: QuotaRules, agent_id: str, role: str) -> Quota:
    """What holds for this sender: the agent's own quota, else its role's, else everybody's."""
    return rules.agents.get(agent_id) or rules.roles.get(role) or rules


@dataclass(frozen=True, slots=True)
class _Pace:
    """A quota as times: in which one packet flows back, and how far ahead a full bucket allows to be."""

    interval: timedelta
    leeway: timedelta


class Quotas:
    """The buckets of all senders of one gate shard, in its memory: after a takeover they begin full.

    Moments never go back from call to call; `rules` None = nobody has a quota.
    """

    def __init__(self, rules: QuotaRules | None) -> None:
        self._rules = rules
        self._full_at: dict[str, datetime] = {}
        self._paces: dict[tuple[str, str], _Pace] = {}

    def wait_ms(self, agent_id: str, role: str, now: datetime) -> int:
        """Milliseconds until the sender's bucket holds a packet; 0 when it holds one now."""
        full_at = self._full_at.get(agent_id)
        if self._rules is None or full_at is None:
            return 0
        wait = full_at - now - self._pace(self._rules, agent_id, role).leeway
        return -(-wait // _MILLISECOND) if wait > _NOTHING else 0

    def draw(self, agent_id: str, role: str, now: datetime) -> None:
        """Take one packet out of the sender's bucket."""
        if self._rules is None:
            return
        full_at = self._full_at.get(agent_id, now)
        self._full_at[agent_id] = max(full_at, now) + self._pace(self._rules, agent_id, role).interval

    def _pace(self, rules: QuotaRules, agent_id: str, role: str) -> _Pace:
        """Made once for a sender; only those that are admitted come here, so they are as many as are registered."""
        pace = self._paces.get((agent_id, role))
        if pace is None:
            quota = quota_of(rules, agent_id, role)
            interval = timedelta(seconds=1 / quota.packets_per_second)
            pace = self._paces[agent_id, role] = _Pace(interval, (quota.burst - 1) * interval)
        return pace
