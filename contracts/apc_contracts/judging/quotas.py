"""How many packets per sender are admitted: one token bucket each.

Source: docs/specification/contract.md section 12, QUOTA_EXCEEDED.
"""

from datetime import datetime, timedelta

from apc_contracts.contract.limit_sections import Quota, QuotaRules
from apc_contracts.judging.token_buckets import Pace, TokenBuckets

_MILLISECOND = timedelta(milliseconds=1)


def quota_of(rules: QuotaRules, agent_id: str, role: str) -> Quota:
    """Return the quota of a sender: the agent's own, else its role's, else the default."""
    return rules.agents.get(agent_id) or rules.roles.get(role) or rules


class Quotas:
    """The buckets of all senders of one gate shard, in memory; they are full after a takeover.

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
