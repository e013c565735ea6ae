"""What is the same for every service of a deployment."""

from pathlib import Path

from pydantic import Field

from apc_bus.settings.setting_sources import ApcSettings


class DeploymentSettings(ApcSettings):
    """Shards, contract and data folder of the deployment."""

    shards: int = Field(default=1, ge=1)
    """Number of gate shards; the same for every service, and part of the topology."""
    contract: str | None = None
    """Path of the contract file; none = the packaged apc/1.0. The gate judges packets by its contract;
    `limits.outstanding_deliveries` also sets the size of inboxes."""
    contracts: str | None = None
    """Folder of contract files (`*.json`) that `apc up` and `apc run` register when they start, as `apc contract
    register` does; a START of apc/1.1 names one by the `name` in it. Gates do not read it."""
    data_dir: Path = Path(".apc")
    """Folder of the embedded database, the artifacts and the keys."""
