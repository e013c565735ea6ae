"""The log writer."""

from datetime import timedelta

from pydantic import Field, field_validator

from apc_bus.settings.deployment import ServedShards
from apc_bus.settings.durations import Duration, Interval
from apc_bus.settings.log.log_key import LogKeySettings
from apc_bus.settings.setting_sources import check_scheme


class LogWriterSettings(ServedShards, LogKeySettings):
    """Limits of the log writer, and where it exports checkpoints."""

    log_prefetch: int = Field(default=64, ge=1, le=65535)
    """Prefetch of log batches; the writer holds no more in memory while the database is unreachable."""
    transaction_entries: int = Field(default=2000, ge=1)
    """Number of entries after which a transaction takes no more batches."""
    commit_interval: Duration = timedelta(milliseconds=50)
    """Minimum interval between transactions at low load, because a commit costs as much for one batch as for ten.
    Agents do not wait for it, because the gate continues when the broker has the batch. What reads the log does: a
    client's result, the web console, `apc tail`, and a gate that takes over a shard."""
    checkpoints_url: str | None = None
    """Where checkpoints are exported: a folder, `file:///…`, `s3://bucket/prefix`, or a webhook `https://…`; none =
    `<data_dir>/checkpoints`. Choose a place that the database's administrator cannot write to."""
    checkpoint_interval: Interval = timedelta(milliseconds=500)
    """Interval of the export of checkpoints. An administrator's change of entries that are newer than the last export
    cannot be detected."""
    database_heartbeat: Interval = timedelta(seconds=10)
    """The server ends a statement or an idle transaction of the writer after this time, so that a frozen
    writer does not hold the shard."""

    @field_validator("checkpoints_url")
    @classmethod
    def _check_checkpoints_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("file", "s3", "https", "http", "memory"), or_folder=True)
        return value

    @property
    def checkpoints_target(self) -> str:
        """URL or absolute folder of the exported checkpoints."""
        return self.checkpoints_url or str((self.data_dir / "checkpoints").resolve())
