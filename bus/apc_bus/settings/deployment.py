"""What is the same for every service of a deployment, and which of its shards a process serves."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

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


class ServedShards(DeploymentSettings):
    """Shards of one gate or log writer."""

    serve_shards: list[int] | None = None
    """Shards that this process serves, as JSON, for example [0, 2]; default: all. Several gates or several log writers
    divide the shards in this way. `apc up` and `apc run` in one process always serve all."""

    @model_validator(mode="after")
    def _check_serve_shards(self) -> Self:
        served = self.serve_shards
        if served is not None and (not served or sorted(set(served)) != sorted(served)):
            raise ValueError("APC_SERVE_SHARDS must name at least one shard, and each once, for example [0, 2]")
        if served is not None and not set(served) <= set(range(self.shards)):
            raise ValueError(
                f"APC_SERVE_SHARDS names {served}, and APC_SHARDS={self.shards} makes 0 to {self.shards - 1}"
            )
        return self

    @property
    def own_shards(self) -> list[int]:
        """The shards to serve."""
        return list(range(self.shards)) if self.serve_shards is None else self.serve_shards
