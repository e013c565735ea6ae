"""Where the broker is and how to talk to it."""

from datetime import timedelta
from typing import Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from apc_bus.settings.durations import Duration, Interval
from apc_bus.settings.setting_sources import ApcSettings
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
    """AMQP heartbeat, whole seconds from 1 to 60. A frozen peer is detected after two to three heartbeats; a gate that
    reads nothing for one gives up its shard. The promised fail-over times require 5 to 10 s."""
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
        found = [(unquote(one.username), unquote(one.password)) for one in parts if one.username and one.password]
        return found[0] if found else None

    def with_certificates(self, url: str) -> str:
        """Return an AMQP URL with the places of the certificates, if it is one of TLS; what it says itself stays."""
        if not url.startswith("amqps://"):
            return url
        files = {"cafile": self.amqp_ca_file, "certfile": self.amqp_cert_file, "keyfile": self.amqp_key_file}
        return with_query(url, files)

    @property
    def warnings(self) -> list[str]:
        """What is allowed and yet no good idea, a sentence each."""
        if self.heartbeat >= PROMISED_HEARTBEAT:
            return []
        return [
            f"APC_HEARTBEAT is {self.heartbeat.total_seconds():g} s: below "
            f"{PROMISED_HEARTBEAT.total_seconds():g} s fail-over times are not promised"
        ]
