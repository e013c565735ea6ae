"""Registered agents: alive or not, what waits for them, and what the gate lets them do."""

from datetime import datetime
from typing import Literal

from apc_web.models.model_base import ApiModel


class AgentQuota(ApiModel):
    """How fast the gate admits an agent's packets."""

    packets_per_second: float
    burst: int
    """Packets at once."""


class AgentSummary(ApiModel):
    """A registered agent, or a person."""

    agent_id: str
    kind: Literal["agent", "person"]
    """A person has no inbox and no heartbeat."""
    role: str
    swarm: str
    rights: list[str]
    handles: list[str]
    broker_user: str | None
    is_revoked: bool
    keys: list[str]
    last_seen: datetime | None
    is_alive: bool
    """A heartbeat was logged within 90 s."""
    open_deliveries: int
    most_open: int
    """Open deliveries from which on the gate refuses more."""
    quota: AgentQuota | None
    """null = no quota."""
    waiting: int | None = None
    """Messages in its two queues that no process has taken; null when not asked for, or unknown."""
    consumers: int | None = None
    """Consumers of its two queues; null when not asked for, or unknown."""


class AgentList(ApiModel):
    """Agents by name."""

    items: list[AgentSummary]
    is_complete: bool = True
    """False: queues were asked for, and of some agents nobody knows them; `words` says why."""
    words: str | None = None
