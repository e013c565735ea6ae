"""Settings of the persister, from the environment (prefix APC_) and `.env`."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.durations import Duration
from apc_bus.settings import BusSettings, DatabaseSettings, EncryptionSettings
from apc_persister.check import CheckFailed, parse_key


class LogKeySettings(BusSettings):
    """The log's name and the key that signs its checkpoints. Whoever only checks needs the public key alone."""

    log_name: str = "apc-log"
    """What the log calls itself in its checkpoints; with the shard it is their origin, `<log name>/<shard>`. Give
    every installation a name of its own, best below a domain of yours: `example.org/apc-log`."""
    log_key_file: Path | None = None
    """Ed25519 key in PEM that signs checkpoints; none = `<data_dir>/log-key.pem`."""
    log_key: SecretStr | None = None
    """The same key as text, instead of a file."""
    log_previous_keys: str = ""
    """Public keys that signed this log before, as `apc log key` printed them, blanks between them: after a change of
    the key or the name the writer goes on behind the checkpoints of these alone."""

    @field_validator("log_name")
    @classmethod
    def _one_word(cls, value: str) -> str:
        if not value or any(letter.isspace() or letter == "+" for letter in value):
            raise ValueError("must be one word without +")
        return value

    @field_validator("log_previous_keys")
    @classmethod
    def _keys(cls, value: str) -> str:
        try:
            for text in value.split():
                parse_key(text)
        except CheckFailed as error:
            raise ValueError(str(error)) from error
        return value


class PersisterSettings(LogKeySettings, DatabaseSettings, EncryptionSettings):
    """The persister: where broker and database are, and how much it takes at once."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

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
    checkpoint_interval: Duration = timedelta(milliseconds=500)
    """Between two looks for checkpoints to export: with an export it is the window in which a change of the log by
    its administrator can stay unseen."""
    database_heartbeat: Duration = timedelta(seconds=10)
    """The server ends a statement or an idle transaction of the writer after this time, so that a frozen
    writer does not hold the shard."""

    @property
    def checkpoints_target(self) -> str:
        """URL or absolute folder of the exported checkpoints."""
        return self.checkpoints_url or str((self.data_dir / "checkpoints").resolve())
