"""How a worker takes packets and publishes its own."""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from apc_bus.durations import Duration, Interval
from apc_bus.settings.base import ApcSettings


class DeliverySettings(ApcSettings):
    """How a worker takes packets, publishes its own and leaves."""

    worker_prefetch: int = Field(default=100, ge=1, le=65535)
    """Packets that the broker hands to each of the two queues ahead; 1 when a handler may crash the process."""
    worker_consumer: Literal["handlers", "bulk"] = "handlers"
    """`handlers`: over RabbitMQ FastStream, with its middlewares. `bulk`: aio-pika alone, for the highest rates."""
    worker_intra: Literal["process", "replicas"] = "process"
    """Who handles the agent's own INTRA_AGENT packets: the process that emitted them, or any replica of the agent."""
    publish_deadline: Duration = timedelta(seconds=30)
    """How long an emit is published again before it gives up as unconfirmed."""
    ack_timeout: Duration = timedelta(seconds=30)
    """How long the gate waits for the ACKs of an emit that names no timeout itself, each time it routes the packet."""
    ack_grace: Duration = timedelta(seconds=2)
    """How much longer the emit waits than the gate: it is the gate that says who is missing."""
    claim_check_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Long texts of one packet, in all, that go through the artifact store because the packet would be too large."""
    drain_timeout: Duration = timedelta(seconds=15)
    """How long a stopping worker waits for the handlers that run."""
    heartbeat_silence: Interval = timedelta(seconds=30)
    """After so long without an emit a HEARTBEAT says that the agent lives."""
    outcome_linger: Duration = timedelta(milliseconds=20)
    """How long the receipts of a packet that is done wait for those of the next ones."""
    receipt_linger: Duration = timedelta(milliseconds=50)
    """How long a delivery_ack waits for the end of its handler, to travel with it."""
