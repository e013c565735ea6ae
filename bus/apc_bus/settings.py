"""Settings of the bus and of the database, from the environment (prefix APC_) and `.env`."""

from base64 import b64decode
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from apc_bus.durations import Duration
from apc_bus.tls import with_query


class BusSettings(BaseSettings):
    """Where the broker is and how to talk to it."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    amqp_url: SecretStr | None = None
    """AMQP URL of each broker node, separated by commas; none = the in-process broker. `amqps://` is TLS."""
    amqp_ca_file: FilePath | None = None
    """PEM file of the authorities that sign the brokers' certificates; none = the system's."""
    amqp_cert_file: FilePath | None = None
    """PEM file of the client certificate, with its chain; none = the client has none."""
    amqp_key_file: FilePath | None = None
    """PEM file of its private key; none = it is in the file of the certificate."""
    shards: int = Field(default=1, ge=1)
    """Number of gate shards; the same for every service, and part of the topology."""
    outstanding_bound: int = Field(default=1000, ge=1)
    """Deliveries an agent may have open before the gate refuses new ones; an inbox holds twice as many."""
    gate_prefetch: int = Field(default=1000, ge=1, le=65535)
    """Messages that the broker hands a bulk consumer ahead of its acknowledgements."""
    handler_prefetch: int = Field(default=20, ge=1, le=65535)
    """Messages that run in handlers at the same time."""
    publish_window: int = Field(default=256, ge=1)
    """Publishes in flight on a channel."""
    heartbeat: Duration = timedelta(seconds=5)
    """AMQP heartbeat, 1 s or more: a frozen peer is noticed after two to three of them."""
    connect_timeout: Duration = timedelta(seconds=5)
    """For one attempt at one node."""
    connect_patience: Duration = timedelta(seconds=8)
    """For a connection to any node, with back-off; then the broker counts as away."""
    broker_timeout: Duration = timedelta(seconds=10)
    """For every answer of the broker, publisher confirms included."""
    consumer_check: Duration = timedelta(seconds=5)
    """Between two questions to the broker how full the queues are that this process consumes, and whether it knows the
    consumers; one that it does not know three times in a row, or that gets none of what waits, is made anew."""
    data_dir: Path = Path(".apc")
    """Folder of the embedded database and of the artifacts."""
    artifacts_url: str | None = None
    """Artifact store: `file:///…`, `s3://bucket/prefix`, or a folder; none = `<data_dir>/artifacts`. Endpoint, region
    and keys of `s3://` come from the environment, as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on."""
    artifacts_allow_http: bool = False
    """Reach `s3://` over http: for a server without TLS on this machine."""
    max_artifact_bytes: int = Field(default=1 << 30, ge=1)
    """Largest artifact that the store takes."""

    chaos_profile: Path | None = None
    """TOML file with the faults that strike the messages of an agent (docs/chaos.md); none = none do."""
    chaos_scores: Path | None = None
    """Folder in which a disturbed agent leaves its score; `apc up --chaos` sets it."""

    @field_validator("heartbeat", "connect_timeout", "connect_patience", "broker_timeout", "consumer_check")
    @classmethod
    def _at_least_a_second(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=1):
            raise ValueError("must be at least one second")
        return value

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        for url in self.amqp_nodes:
            if not url.startswith(("amqp://", "amqps://")):
                raise ValueError("APC_AMQP_URL must hold amqp:// or amqps:// URLs, separated by commas")
            if url.startswith("amqp://") and (self.amqp_ca_file or self.amqp_cert_file):
                raise ValueError(
                    "with APC_AMQP_CA_FILE or APC_AMQP_CERT_FILE every URL in APC_AMQP_URL must be amqps://"
                )
        return self

    @property
    def amqp_nodes(self) -> tuple[str, ...]:
        """The broker nodes, passwords and places of certificates included; empty = the in-process broker."""
        if self.amqp_url is None:
            return ()
        urls = self.amqp_url.get_secret_value().split(",")
        return tuple(self.with_certificates(url.strip()) for url in urls if url.strip())

    def with_certificates(self, url: str) -> str:
        """An AMQP URL with the places of the certificates, if it is one of TLS; what it says itself stays."""
        if not url.startswith("amqps://"):
            return url
        files = {"cafile": self.amqp_ca_file, "certfile": self.amqp_cert_file, "keyfile": self.amqp_key_file}
        return with_query(url, files)

    @property
    def artifacts(self) -> str:
        """URL or folder of the artifact store."""
        return self.artifacts_url or str(self.data_dir / "artifacts")


class EncryptionSettings(BaseSettings):
    """Whether bodies are encrypted in the log, and by what."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    encrypt_bodies: bool = False
    """Store bodies encrypted with a key for each subject, so that `apc log erase` can destroy them."""
    subject_field: str | None = None
    """Field of a packet's metadata that names its subject; none, or where it is absent: the sender."""
    subject_master_key: SecretStr | None = None
    """32 bytes as base64 (`openssl rand -base64 32`) that wrap the subjects' keys; the log writer and the gate need
    the same one."""

    @model_validator(mode="after")
    def _check_master_key(self) -> Self:
        if self.encrypt_bodies and self.subject_master_key is None:
            raise ValueError("APC_ENCRYPT_BODIES needs APC_SUBJECT_MASTER_KEY: `openssl rand -base64 32` makes one")
        if self.subject_master_key is not None and len(self.master_secret or b"") != 32:
            raise ValueError("APC_SUBJECT_MASTER_KEY must be 32 bytes as base64: `openssl rand -base64 32`")
        return self

    @property
    def master_secret(self) -> bytes | None:
        """The master key's bytes; None without one, or when it is no base64."""
        if self.subject_master_key is None:
            return None
        try:
            return b64decode(self.subject_master_key.get_secret_value(), validate=True)
        except ValueError:
            return None


class DatabaseSettings(BaseSettings):
    """Where Postgres is."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    database_url: SecretStr | None = None
    """`postgresql://…` (15 to 18); none = the embedded PostgreSQL."""
    database_ca_file: FilePath | None = None
    """PEM file of the authorities that sign the server's certificate: TLS is then asked for, and its name compared."""
    database_cert_file: FilePath | None = None
    """PEM file of the client certificate; none = the client has none."""
    database_key_file: FilePath | None = None
    """PEM file of its private key."""
    database_pool: int = Field(default=10, ge=1)
    """Most connections of one process."""
    database_wait: Duration = timedelta(seconds=10)
    """How long a start waits for a database that does not answer."""
    allow_undurable_database: bool = False
    """Start on a server with fsync, full_page_writes or synchronous_commit off (tests only)."""

    @property
    def url(self) -> str | None:
        """The URL of the database, password and places of certificates included; what it says itself stays."""
        if self.database_url is None:
            return None
        files = {
            "sslmode": "verify-full" if self.database_ca_file else None,
            "sslrootcert": self.database_ca_file,
            "sslcert": self.database_cert_file,
            "sslkey": self.database_key_file,
        }
        return with_query(self.database_url.get_secret_value(), files)
