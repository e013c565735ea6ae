"""What is the same for every service of a deployment."""

from pathlib import Path

from pydantic import Field

from apc_bus.settings.base import ApcSettings


class DeploymentSettings(ApcSettings):
    """The size of the deployment, its contract and its folder."""

    shards: int = Field(default=1, ge=1)
    """Number of gate shards; the same for every service, and part of the topology."""
    contract: str | None = None
    """Path of the contract file; none = the packaged apc/1.0. The gate's is what counts for packets, its
    `limits.outstanding_deliveries` also for the size of the inboxes that are declared."""
    data_dir: Path = Path(".apc")
    """Folder of the embedded database, of the artifacts and of the keys."""
