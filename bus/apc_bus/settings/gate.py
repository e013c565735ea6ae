"""The gate."""

from pydantic import Field

from apc_bus.settings.deployment import DeploymentSettings


class GateSettings(DeploymentSettings):
    """Which shards a gate process serves, and how much it takes at once."""

    serve_shards: list[int] | None = None
    """The shards this process serves, as JSON: [0, 2]; all of them by default."""
    operator_user: str | None = None
    """Broker user whose registry changes count; the orchestrator's own by default."""
    batch_packets: int = Field(default=256, ge=1, le=2000)
    """Most inputs in a micro-batch."""
    batch_bytes: int = Field(default=1 << 20, ge=1 << 16)
    """Most bytes in a micro-batch."""
    gate_prefetch: int = Field(default=512, ge=1, le=65535)
    """Inputs that the broker may hand over ahead of their verdict. Each may be as large as the broker lets it be:
    512 of 2 MiB (`max_message_size` in `deploy/rabbitmq.conf`) are at most 1 GiB."""
    receipts_linger_seconds: float = Field(default=0.003, ge=0)
    """How long receipts without a packet wait for one, to share its log batch."""
    probe_seconds: float = Field(default=0.5, gt=0)
    """How often a standby asks whether it has become the active consumer."""
    other_shards_seconds: float = Field(default=2.0, gt=0)
    """How often a gate reads what other shards judged about protocols; a block there holds here so much later."""
    verifications_at_once: int = Field(default=8, ge=1)
    """Verifications that read artifacts or check signatures at the same time, for each shard."""
    verification_seconds: float = Field(default=300.0, gt=0)
    """For the bytes of one artifact; an ARTIFACT whose bytes take longer to read is refused."""
    verifications_pending: int = Field(default=1000, ge=1)
    """Packets of a shard that wait for their verification, a quarter of them of one sender; more are refused."""
    sessions_in_memory: int = Field(default=10_000, ge=1)
    """Beyond so many, the longest untouched sessions leave the memory; they are loaded again when they speak."""

    @property
    def own_shards(self) -> list[int]:
        """The shards to serve."""
        return list(range(self.shards)) if self.serve_shards is None else self.serve_shards
