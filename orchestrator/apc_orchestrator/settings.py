"""Settings of the orchestrator, from the environment (prefix APC_) and `.env`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_bus.settings import EncryptionSettings


class OrchestratorSettings(EncryptionSettings):
    """What a gate process needs to know; read once at the entry point."""

    model_config = SettingsConfigDict(env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore")

    shards: int = Field(default=1, ge=1)
    """N: gate shards of the deployment; part of the topology."""
    serve_shards: list[int] | None = None
    """The shards this process serves, as JSON: [0, 2]; all of them by default."""
    contract: str | None = None
    """Path of the contract file; the packaged apc/1.0 by default."""
    operator_user: str | None = None
    """Broker user whose registry changes count; the orchestrator's own by default."""
    batch_packets: int = Field(default=256, ge=1, le=2000)
    """Most inputs in a micro-batch."""
    batch_bytes: int = Field(default=1 << 20, ge=1 << 16)
    """Most bytes in a micro-batch."""
    gate_prefetch: int = Field(default=1000, ge=1)
    """Inputs that the broker may hand over ahead of their verdict."""
    receipts_linger_seconds: float = Field(default=0.003, ge=0)
    """How long receipts without a packet wait for one, to share its log batch."""
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """A longer silence between two reads from the broker means that the shard may be lost."""
    probe_seconds: float = Field(default=0.5, gt=0)
    """How often a standby asks whether it has become the active consumer."""
    other_shards_seconds: float = Field(default=2.0, gt=0)
    """How often a gate reads what other shards judged about protocols; a block there holds here so much later."""
    verifications_at_once: int = Field(default=8, ge=1)
    """Verifications that read artifacts or check signatures at the same time, for each shard."""
    sessions_in_memory: int = Field(default=10_000, ge=1)
    """Beyond so many, the longest untouched sessions leave the memory; they are loaded again when they speak."""

    @property
    def own_shards(self) -> list[int]:
        """The shards to serve."""
        return list(range(self.shards)) if self.serve_shards is None else self.serve_shards
