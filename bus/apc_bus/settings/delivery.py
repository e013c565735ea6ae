"""How a worker takes packets and publishes its own."""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from apc_bus.settings.durations import Duration, Interval
from apc_bus.settings.setting_sources import ApcSettings


class DeliverySettings(ApcSettings):
    """How a worker consumes, publishes and stops."""

    worker_prefetch: int = Field(default=100, ge=1, le=65535)
    """Prefetch of each of the two queues; 1 when a handler may crash the process."""
    worker_intra: Literal["process", "replicas"] = "process"
    """Who handles the agent's own INTRA_AGENT packets: the process that emitted them, or any replica of the agent."""
    publish_deadline: Duration = timedelta(seconds=30)
    """How long an unconfirmed emit is published again before it fails."""
    ack_timeout: Duration = timedelta(seconds=30)
    """How long the gate waits for ACKs after each routing, for an emit without its own timeout."""
    ack_grace: Duration = timedelta(seconds=2)
    """How much longer the emit waits than the gate, which reports the missing recipients."""
    claim_check_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Maximum total size of the texts of one packet that are stored as artifacts because the packet would be too
    large."""
    drain_timeout: Duration = timedelta(seconds=15)
    """How long a stopping worker waits for running handlers."""
    heartbeat_silence: Interval = timedelta(seconds=30)
    """Time without an emit after which the agent sends a HEARTBEAT."""
    outcome_linger: Duration = timedelta(milliseconds=20)
    """How long the receipts of a handled packet wait for those of the next ones."""
    receipt_linger: Duration = timedelta(milliseconds=50)
    """How long a delivery_ack waits for the end of its handler, to be sent together."""
