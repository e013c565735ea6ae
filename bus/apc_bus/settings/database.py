"""The database: where it is, how its log is encrypted and signed, and how the log is written."""

from base64 import b64decode
from datetime import timedelta
from pathlib import Path
from re import fullmatch
from typing import Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from apc_bus.settings.sources import (
    ApcSettings,
    DeploymentSettings,
    Duration,
    Interval,
    ServedShards,
    check_ports,
    check_scheme,
    holds_example,
)
from apc_bus.tls import with_query

HOME = "home"
"""The name of the database of APC_DATABASE_URL, which has the registry and everything that belongs to no shard."""
DATABASE_NAME = "[a-z][a-z0-9_]{0,30}"


class DatabaseSettings(ApcSettings):
    """Where Postgres is."""

    database_url: SecretStr | None = None
    """`postgresql://…` (15 to 18), the primary or a list of all servers (`HOST1:5432,HOST2:5432`); none = the embedded
    PostgreSQL."""
    database_ca_file: FilePath | None = None
    """PEM file of the authorities that sign the server's certificate; implies TLS and a check of the server's name."""
    database_cert_file: FilePath | None = None
    """PEM file of the client certificate; none = the client has none."""
    database_key_file: FilePath | None = None
    """PEM file of its private key."""
    databases: dict[str, SecretStr] = Field(default_factory=dict)
    """Further databases of the log, as JSON: name -> `postgresql://…` of each, for `apc shard place` and `apc shard
    move --database`. The one of APC_DATABASE_URL is `home`. The same for every service; its certificates hold for all
    of them."""
    database_pool: int = Field(default=10, ge=1)
    """Maximum connections of one process to each database."""
    database_wait: Duration = timedelta(seconds=10)
    """How long a start waits for a database that does not answer."""
    allow_undurable_database: bool = False
    """Start on a server with fsync, full_page_writes or synchronous_commit off (tests only)."""

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_scheme(value.get_secret_value(), ("postgresql", "postgres"))
            check_ports(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _check_databases(self) -> Self:
        for name, value in self.databases.items():
            place, url = f"APC_DATABASES: {name!r}", value.get_secret_value()
            if name == HOME:
                raise ValueError(f"{place} is the database of APC_DATABASE_URL: give another name")
            if not fullmatch(DATABASE_NAME, name):
                raise ValueError(f"{place} must be a name of {DATABASE_NAME}, such as east")
            if holds_example(url):
                raise ValueError(f"{place} holds an example password: `apc deploy init` makes random ones")
            try:
                check_scheme(url, ("postgresql", "postgres"))
                check_ports(url)
            except ValueError as error:
                raise ValueError(f"{place} {error}") from error
        if self.databases and self.database_url is None:
            raise ValueError("APC_DATABASES needs APC_DATABASE_URL: the embedded PostgreSQL is the only one of a log")
        named = {HOME: self.database_url, **self.databases}
        places: dict[str, str] = {}
        for name, given in named.items():
            if given is not None and (other := places.setdefault(_place_of(given.get_secret_value()), name)) != name:
                raise ValueError(f"APC_DATABASES: {name!r} is the database of {other!r}: each needs its own")
        return self

    @property
    def url(self) -> str | None:
        """The URL of the database, password and places of certificates included; what it says itself stays."""
        return None if self.database_url is None else self._with_files(self.database_url)

    @property
    def other_urls(self) -> dict[str, str]:
        """The URLs of the further databases by their names, as `url`."""
        return {name: self._with_files(value) for name, value in self.databases.items()}

    def _with_files(self, url: SecretStr) -> str:
        files = {
            "sslmode": "verify-full" if self.database_ca_file else None,
            "sslrootcert": self.database_ca_file,
            "sslcert": self.database_cert_file,
            "sslkey": self.database_key_file,
        }
        return with_query(url.get_secret_value(), files)


def _place_of(url: str) -> str:
    """Return what two URLs of one database have in common: servers and database, without user and options."""
    parts = urlsplit(url)
    given = parse_qs(parts.query)
    servers = parts.netloc.rpartition("@")[2] or f"{given.get('host', [''])[0]}:{given.get('port', [''])[0]}"
    return f"{servers}/{parts.path.strip('/') or given.get('dbname', given.get('database', ['']))[0]}"


class EncryptionSettings(ApcSettings):
    """Encryption of bodies in the log."""

    encrypt_bodies: bool = False
    """Store bodies encrypted with a key for each subject, so that `apc log erase` can destroy them."""
    subject_field: str | None = None
    """Field of a packet's metadata that names its subject; none, or if the field is absent: the sender."""
    subject_master_key: SecretStr | None = None
    """32 bytes as base64 (`openssl rand -base64 32`) that wrap the subjects' keys; the persister and the orchestrator
    need the same one."""

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


class LogKeySettings(DeploymentSettings):
    """The log's name and the key that signs its checkpoints. Verifying needs only the public key."""

    log_name: str | None = None
    """Name of the log in its checkpoints, whose origin is `<log name>/<shard>`. None = `apc-log-` and the beginning of
    the signing key's hash. Better: a name below your domain, such as `example.org/apc-log`."""
    log_key_file: Path | None = None
    """File with the Ed25519 key (PEM) that signs checkpoints; none = `<data_dir>/log-key.pem`."""
    log_key: SecretStr | None = None
    """The same key as text, instead of a file."""
    log_previous_keys: str = ""
    """Previous public keys of this log, as printed by `apc log key`, separated by blanks. After a change of key or
    name, the persister continues only after checkpoints of these keys."""

    @field_validator("log_name")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and any(letter.isspace() or letter == "+" for letter in value):
            raise ValueError("must be one word without +")
        return value


class ArchiveSettings(DeploymentSettings):
    """Where segments of the log are archived."""

    archive_url: str | None = None
    """Archive of the log: a folder, `file:///…` or `s3://bucket/prefix`; none = nothing is archived. Endpoint, region
    and keys of `s3://` come from the environment, as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on. Give
    the archiver keys that cannot delete, and readers keys that cannot write."""
    archive_allow_http: bool = False
    """Allow `s3://` over plain HTTP: for a server without TLS on this machine."""
    archive_cache_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Maximum size of `<data_dir>/archive-cache`, which holds objects of an `s3://` archive that were read; a single
    larger one is held while it is read."""

    archive_policy: Path | None = None
    """YAML file: `release_after` and `expire_after` (durations, such as `P90D`), and `contracts` with both by name;
    none = segments leave the database after `hot_days`, and never the archive."""
    hot_days: int = Field(default=7, ge=0)
    """Days that a full and archived segment stays in the database, unless the policy says otherwise."""
    database_capacity: int | None = Field(default=None, ge=1)
    """Bytes that the database may have; with it `apc doctor` and a metric say in how many days it will be full."""

    @field_validator("archive_url")
    @classmethod
    def _check_archive_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("file", "s3"), or_folder=True)
        return value


class LogWriterSettings(ServedShards, LogKeySettings):
    """Limits of the persister, and where it exports checkpoints."""

    log_prefetch: int = Field(default=64, ge=1, le=65535)
    """Prefetch of log batches; the persister holds no more in memory while the database is unreachable."""
    transaction_entries: int = Field(default=2000, ge=1)
    """Number of entries after which a transaction takes no more batches."""
    commit_interval: Duration = timedelta(milliseconds=50)
    """Minimum interval between transactions of a shard at low load, because a commit costs as much for one batch as
    for ten; with several busy shards in one process as many times longer, up to ten, and then one commit takes what all
    of them have.
    Agents do not wait for it, because the orchestrator continues when the broker has the batch. What reads the log
    does: a client's result, the web console, `apc tail`, and an orchestrator that takes over a shard."""
    checkpoints_url: str | None = None
    """Where checkpoints are exported: a folder, `file:///…`, `s3://bucket/prefix`, or a webhook `https://…`; none =
    `<data_dir>/checkpoints`. Choose a place that the database's administrator cannot write to."""
    checkpoint_interval: Interval = timedelta(milliseconds=500)
    """Interval of the export of checkpoints. An administrator's change of entries that are newer than the last export
    cannot be detected."""
    segment_entries: int = Field(default=4_194_304, ge=65_536, le=16_777_216)
    """Most entries of a segment of the log. A segment takes what comes in about three hours, if that is no more than
    this; one that is full can be archived."""
    database_heartbeat: Interval = timedelta(seconds=10)
    """The server ends a statement or an idle transaction of the persister after this time, so that a frozen
    persister does not hold the shard."""

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
