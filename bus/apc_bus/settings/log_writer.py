"""The log writer."""

from datetime import timedelta

from pydantic import Field, field_validator

from apc_bus.durations import Duration, Interval
from apc_bus.settings.base import check_scheme
from apc_bus.settings.log_key import LogKeySettings


class LogWriterSettings(LogKeySettings):
    """How much the log writer takes at once, and where it exports checkpoints."""

    log_prefetch: int = Field(default=64, ge=1, le=65535)
    """Log batches that the broker hands over ahead; all that is in memory while the database is away."""
    transaction_entries: int = Field(default=2000, ge=1)
    """Entries after which a transaction takes no further batch."""
    commit_interval: Duration = timedelta(milliseconds=20)
    """At low load a transaction begins at the earliest so long after the one before: a commit costs the database and
    this process as much for one batch as for ten. Nobody waits for it: the gate goes on when the broker has the
    batch."""
    checkpoints_url: str | None = None
    """Where checkpoints go outside the database: a folder, `file:///…`, `s3://bucket/prefix`, or a webhook
    `https://…`; none = `<data_dir>/checkpoints`. Best out of reach of whoever administers the database."""
    checkpoint_interval: Interval = timedelta(milliseconds=500)
    """Between two looks for checkpoints to export: with an export it is the window in which a change of the log by
    its administrator can stay unseen."""
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
