"""Whether gate, log writer and agents work, and the alerts that fire."""

from datetime import datetime
from typing import Literal

from apc_web.models.model_base import ApiModel


class ServiceHealth(ApiModel):
    """The gate or the log writer of one shard."""

    service: Literal["gate", "log_writer"]
    shard: int
    state: Literal["running", "stopped", "unknown"]
    waiting: int | None
    """Messages in its queue; null when nobody can say."""
    delay_seconds: float | None
    """Of the log writer: from verdict to commit, of 95 of 100 packets of the last 5 minutes; null without packets."""
    words: str


class FiringAlert(ApiModel):
    """Something that a person should look at."""

    name: str
    """As in the rules for Prometheus."""
    severity: Literal["critical", "warning"]
    words: str


class SystemHealth(ApiModel):
    """What the server knows of the running system: from the log, the projections and the queues."""

    looked_at: datetime
    is_complete: bool
    """False: the queues could not be looked at, and `words` says why."""
    words: str
    services: list[ServiceHealth]
    agents: int
    """Registered agents that have not been revoked."""
    alive: int
    """Of these, with a heartbeat within 90 s."""
    alerts: list[FiringAlert]
