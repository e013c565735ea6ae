"""Where the broker and the artifacts are, how packets are delivered, and which faults are injected."""

from datetime import timedelta
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from apc_bus.settings.sources import ApcSettings, DeploymentSettings, Duration, Interval, check_scheme
from apc_bus.tls import with_query

SHORTEST_HEARTBEAT = timedelta(seconds=1)
LONGEST_HEARTBEAT = timedelta(seconds=60)
PROMISED_HEARTBEAT = timedelta(seconds=5)
"""From here on the fail-over times of the documentation hold: a shorter one takes a busy process for a frozen one."""


class BrokerSettings(ApcSettings):
    """The broker's nodes and the limits of a connection."""

    amqp_url: SecretStr | None = None
    """AMQP URL of each broker node, separated by commas; none = the in-process broker. `amqps://` is TLS."""
    amqp_ca_file: FilePath | None = None
    """PEM file of the authorities that sign the brokers' certificates; none = the system's."""
    amqp_cert_file: FilePath | None = None
    """PEM file of the client certificate, with its chain; none = the client has none."""
    amqp_key_file: FilePath | None = None
    """PEM file of its private key; none = it is in the file of the certificate."""
    publish_window: int = Field(default=256, ge=1)
    """Publishes in flight on a channel."""
    heartbeat: Duration = timedelta(seconds=5)
    """AMQP heartbeat, whole seconds from 1 to 60. A frozen peer is detected after two to three heartbeats; an
    orchestrator that reads nothing for one gives up its shard. The promised fail-over times require 5 to 10 s. The
    connections of a host (`apc serve agents --host`) have at most 3 s, whatever is set here."""
    connect_timeout: Interval = timedelta(seconds=5)
    """Limit of one connection attempt to one node."""
    connect_patience: Duration = timedelta(seconds=8)
    """Limit for connecting to any node, with backoff; then the broker counts as unreachable."""
    broker_timeout: Interval = timedelta(seconds=10)
    """Limit for every answer of the broker, including publisher confirms."""
    consumer_check: Duration = timedelta(seconds=5)
    """Interval of the checks of queues and consumers. A consumer that the broker does not know in three checks in a
    row, or that starves, is recreated."""

    @field_validator("heartbeat")
    @classmethod
    def _check_heartbeat(cls, value: timedelta) -> timedelta:
        given = f"{value.total_seconds():g}"
        if not SHORTEST_HEARTBEAT <= value <= LONGEST_HEARTBEAT:
            raise ValueError(f"must be between 1 and 60 seconds (got {given})")
        if value % timedelta(seconds=1):
            raise ValueError(f"must be whole seconds (got {given})")
        return value

    @field_validator("connect_timeout", "connect_patience", "broker_timeout", "consumer_check")
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

    @property
    def broker_login(self) -> tuple[str, str] | None:
        """Our user at the broker and its password; None for the in-process broker, and where the URL names no user."""
        parts = [urlsplit(url) for url in self.amqp_nodes[:1]]
        logins = [(unquote(url.username), unquote(url.password)) for url in parts if url.username and url.password]
        return logins[0] if logins else None

    def with_certificates(self, url: str) -> str:
        """Return an AMQP URL with the places of the certificates, if it is one of TLS; what it says itself stays."""
        if not url.startswith("amqps://"):
            return url
        files = {"cafile": self.amqp_ca_file, "certfile": self.amqp_cert_file, "keyfile": self.amqp_key_file}
        return with_query(url, files)

    def warnings(self, own: timedelta | None = None) -> list[str]:
        """Return why a setting that is allowed is a risk, a sentence each.

        Args:
            own: the longest heartbeat of this process's connections, as that of a host; None = that of the settings.
        """
        least = PROMISED_HEARTBEAT if own is None else own
        if self.heartbeat >= least:
            return []
        given = f"APC_HEARTBEAT is {self.heartbeat.total_seconds():g} s: below {least.total_seconds():g} s"
        return [f"{given} fail-over times are not promised" if own is None else f"{given} a busy host counts as frozen"]


class DeliverySettings(ApcSettings):
    """How a worker consumes, publishes and stops."""

    worker_prefetch: int = Field(default=100, ge=1, le=65535)
    """Prefetch of each of the two queues; 1 when a handler may crash the process."""
    worker_intra: Literal["process", "replicas"] = "process"
    """Who handles the agent's own INTRA_AGENT packets: the process that emitted them, or any replica of the agent."""
    publish_deadline: Duration = timedelta(seconds=30)
    """How long an unconfirmed emit is published again before it fails."""
    ack_timeout: Duration = timedelta(seconds=30)
    """How long the orchestrator waits for ACKs after each routing, for an emit without its own timeout."""
    ack_grace: Duration = timedelta(seconds=2)
    """How much longer the emit waits than the orchestrator, which reports the missing recipients."""
    claim_check_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Maximum total size of the texts of one packet that are stored as artifacts because the packet would be too
    large."""
    drain_timeout: Duration = timedelta(seconds=15)
    """How long a stopping worker waits for running handlers."""
    heartbeat_silence: Interval = timedelta(seconds=30)
    """Time without an emit after which the agent sends a HEARTBEAT; one that emits sends one after twice this time."""
    outcome_linger: Duration = timedelta(milliseconds=20)
    """How long the receipts of a handled packet wait for those of the next ones."""
    receipt_linger: Duration = timedelta(milliseconds=50)
    """How long a delivery_ack waits for the end of its handler, to be sent together."""


class ChaosSettings(ApcSettings):
    """Faults to inject into an agent's messages, and where its score is stored."""

    chaos_profile: Path | None = None
    """TOML file with the faults to inject into an agent's messages (docs/how-to/chaos.md); none = no faults."""
    chaos_scores: Path | None = None
    """Folder for the scores of agents; `apc up --chaos` sets it."""


class ArtifactSettings(DeploymentSettings):
    """The artifact store and its limits."""

    artifacts_url: str | None = None
    """Artifact store: `file:///…`, `s3://bucket/prefix`, or a folder; none = `<data_dir>/artifacts`. Endpoint, region
    and keys of `s3://` come from the environment, as AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on."""
    artifacts_allow_http: bool = False
    """Allow `s3://` over plain HTTP: for a server without TLS on this machine."""
    artifacts_upload_url: str | None = Field(default=None, pattern="^https?://[^/?#]+/?$")
    """`http://host:port` of `apc serve artifacts`, which stores uploads; none = this process writes to the store
    itself."""
    max_artifact_bytes: int = Field(default=1 << 30, ge=1)
    """Largest artifact that the store accepts."""

    @field_validator("artifacts_url")
    @classmethod
    def _check_artifacts_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("file", "s3", "memory"), or_folder=True)
        return value

    @property
    def artifacts(self) -> str:
        """URL or folder of the artifact store."""
        return self.artifacts_url or str(self.data_dir / "artifacts")
