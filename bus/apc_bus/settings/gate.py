"""The gate."""

from pydantic import Field

from apc_bus.settings.deployment import ServedShards


class GateSettings(ServedShards):
    """Shards and limits of a gate process."""

    operator_user: str | None = None
    """Broker user whose registry changes the gate accepts; default: the gate's own."""
    batch_packets: int = Field(default=256, ge=1, le=2000)
    """Maximum inputs in a micro-batch."""
    batch_bytes: int = Field(default=1 << 20, ge=1 << 16)
    """Maximum bytes in a micro-batch."""
    gate_prefetch: int = Field(default=512, ge=1, le=65535)
    """Prefetch: inputs that wait in the gate for their verdict. 512 inputs of 2 MiB (`max_message_size` in
    `deploy/rabbitmq.conf`) are at most 1 GiB."""
    receipts_linger_seconds: float = Field(default=0.003, ge=0)
    """How long receipts wait for a packet, to share its log batch."""
    probe_seconds: float = Field(default=0.5, gt=0)
    """Interval at which a standby checks whether it is the active consumer."""
    other_shards_seconds: float = Field(default=2.0, gt=0)
    """Interval at which a gate reads other shards' verdicts on protocols; a block of another shard applies after at
    most this time."""
    verifications_at_once: int = Field(default=8, ge=1)
    """Concurrent verifications per shard."""
    verification_seconds: float = Field(default=300.0, gt=0)
    """Limit for reading the bytes of one artifact; an ARTIFACT that takes longer is refused."""
    verifications_pending: int = Field(default=1000, ge=1)
    """Maximum pending verifications of a shard, at most a quarter of them for one sender; more are refused."""
    sessions_in_memory: int = Field(default=10_000, ge=1)
    """Maximum sessions in memory; beyond it, the least recently used ones are evicted, and loaded again when needed."""
