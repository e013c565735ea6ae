"""What each service reads: its subjects, composed; applications add what they read."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from socket import gethostname
from typing import Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.errors import SettingMisspelled
from apc_bus.settings.agents import (
    EffectSettings,
    LanguageSettings,
    LLMSettings,
    RelevanceSettings,
    SigningSettings,
    SituationSettings,
    TaskSettings,
)
from apc_bus.settings.broker import ArtifactSettings, BrokerSettings, ChaosSettings, DeliverySettings
from apc_bus.settings.database import (
    ArchiveSettings,
    DatabaseSettings,
    EncryptionSettings,
    LogKeySettings,
    LogWriterSettings,
)
from apc_bus.settings.sources import PREFIX, ApcSettings, DeploymentSettings, ServedShards, check_scheme, variable_of
from apc_contracts.identity.ids import SLOTS

ORCHESTRATOR_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_ORDINAL = re.compile(r"(.*?)(\d+)")


class GateSettings(ServedShards):
    """Shards and limits of an orchestrator process."""

    orchestrator: str | None = Field(default=None, pattern=ORCHESTRATOR_NAME)
    """Name of the orchestrator, for `apc shard`; none = the name of this machine or pod. Processes of one name stand by
    for each other."""
    orchestrators: int = Field(default=1, ge=1, le=SLOTS)
    """Orchestrators that divide the shards; above 1 their names end in a number from 0, as the pods of a StatefulSet
    do, and number n takes each shard s with s mod APC_ORCHESTRATORS = n. `apc shard move` makes exceptions."""
    operator_user: str | None = None
    """Broker user whose registry changes the gate accepts; default: the orchestrator's own."""
    batch_packets: int = Field(default=256, ge=1, le=2000)
    """Maximum inputs in a micro-batch."""
    batch_bytes: int = Field(default=1 << 20, ge=1 << 16)
    """Maximum bytes in a micro-batch."""
    gate_prefetch: int = Field(default=512, ge=1, le=65535)
    """Prefetch: inputs that wait in the orchestrator for their verdict. 512 inputs of 2 MiB (`max_message_size` in
    `deploy/rabbitmq.conf`) are at most 1 GiB."""
    receipts_linger_seconds: float = Field(default=0.003, ge=0)
    """How long receipts wait for a packet, to share its log batch."""
    probe_seconds: float = Field(default=0.5, gt=0)
    """Interval at which a standby checks whether it is the active consumer."""
    other_shards_seconds: float = Field(default=2.0, gt=0)
    """Interval at which an orchestrator reads other shards' verdicts on protocols; a block of another shard applies
    after at most this time."""
    verifications_at_once: int = Field(default=8, ge=1)
    """Concurrent verifications per shard."""
    verification_seconds: float = Field(default=300.0, gt=0)
    """Limit for reading the bytes of one artifact; an ARTIFACT that takes longer is refused."""
    verifications_pending: int = Field(default=1000, ge=1)
    """Maximum pending verifications of a shard, at most a quarter of them for one sender; more are refused."""
    sessions_in_memory: int = Field(default=10_000, ge=1)
    """Maximum sessions in memory; beyond it, the least recently used ones are evicted, and loaded again when needed."""
    log_heartbeats: Literal["after_silence", "all"] = "after_silence"
    """Which HEARTBEATs the log keeps: those of an agent that was not heard of for 90 s, or all of them. Refused ones
    are always logged."""

    @model_validator(mode="after")
    def _check_orchestrators(self) -> Self:
        if self.orchestrators > 1 and _ORDINAL.fullmatch(self.orchestrator_name) is None:
            raise ValueError(
                f"APC_ORCHESTRATORS={self.orchestrators} needs a name that ends in a number, such as gate-0: set "
                f"APC_ORCHESTRATOR (the name of this machine is {self.orchestrator_name})"
            )
        return self

    @property
    def orchestrator_name(self) -> str:
        """The name of the orchestrator."""
        return self.orchestrator or re.sub(r"[^A-Za-z0-9._-]", "-", gethostname())[:63].lstrip("._-") or "orchestrator"

    def orchestrator_of(self, shard: int) -> str | None:
        """Return the orchestrator that takes a shard unless it was moved; None = the first that comes."""
        parts = _ORDINAL.fullmatch(self.orchestrator_name) if self.orchestrators > 1 else None
        return None if parts is None else f"{parts[1]}{shard % self.orchestrators}"


class ConsoleSettings(ApcSettings):
    """Settings of the console only."""

    topology_url: SecretStr | None = None
    """AMQP URL of each broker node, separated by commas, as the deploy-time user, who may declare exchanges and queues;
    none = APC_AMQP_URL."""
    management_url: SecretStr | None = None
    """`http(s)://user:password@host:15672` of RabbitMQ's management plugin, with a user that has the tag administrator.
    With it, `apc agent add` and `revoke` create and delete broker users, and `apc doctor` checks them."""
    broker_passwords: SecretStr | None = None
    """JSON object that maps broker users to the passwords that `apc topology export` and `apc agent add` set."""
    broker_passwords_file: Path | None = None
    """File for generated passwords, mode 0600; none = `<data_dir>/broker-passwords.json`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the product's own log events."""
    health_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of `/healthz`, `/readyz`, `/startup` and `/metrics` in `apc serve` and `apc worker`; none = no health
    pages."""
    health_host: str = "127.0.0.1"
    """Address of the health pages; any other than loopback shows them to everyone who can reach it."""
    agent_metrics: int = Field(default=1200, ge=0)
    """Maximum time series of `/metrics` with the label `agent` in one process; agents for which there is no room share
    `_others`. The open deliveries of the recipients nearest to their bound come on top."""
    supervised: bool = False
    """Exit when standard input closes; set by commands that start processes (`apc up`)."""
    chat_tokens: SecretStr | None = None
    """`user=token,user=token`: users of `apc serve chat`; none = everybody on this machine, as one user."""

    @field_validator("topology_url")
    @classmethod
    def _check_topology_url(cls, value: SecretStr | None) -> SecretStr | None:
        urls = [] if value is None else value.get_secret_value().split(",")
        for url in urls:
            check_scheme(url.strip(), ("amqp", "amqps"))
        return value

    @field_validator("management_url")
    @classmethod
    def _check_management_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_scheme(value.get_secret_value(), ("http", "https"))
        return value


class WebSettings(ApcSettings):
    """Settings of `apc ui` and `apc serve web`."""

    web_users_file: Path | None = None
    """The accounts, which `apc user` writes, mode 0600; none = the token of the data folder, on loopback alone."""
    web_hosts: tuple[str, ...] = ()
    """JSON list of the names by which browsers reach the server, such as `["console.example.com"]`; on loopback those
    of this machine are added."""
    web_tls_cert: Path | None = None
    """Certificate chain (PEM) with which the server itself speaks TLS; goes with APC_WEB_TLS_KEY."""
    web_tls_key: Path | None = None
    """Private key (PEM) of that certificate."""
    web_trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """JSON list of addresses or networks of proxies that end TLS, such as `["10.0.0.7/32"]`: nobody else is answered,
    and only what came to them by https."""
    web_operator: str | None = None
    """The person with the right `operate` in whose name a server without accounts acts; `apc up` registers it. None =
    `operator`, or the first agent of the broker user with the right."""


class A2ASettings(ApcSettings):
    """Settings of `apc serve a2a`, `apc up --a2a` and `apc caller`."""

    a2a_listen: str = "127.0.0.1:8084"
    """HOST:PORT at which the door listens; beyond loopback with TLS or behind a proxy that ends it, and with
    APC_A2A_HOSTS."""
    a2a_url: str | None = None
    """The URL under which clients reach the door, which its card names, such as `https://agents.example.com`; none =
    the address where it listens."""
    a2a_callers_file: Path | None = None
    """The tokens of callers, which `apc caller` writes, mode 0600; none = `<data_dir>/a2a-callers.json`."""
    a2a_hosts: tuple[str, ...] = ()
    """JSON list of the names by which clients reach the door, such as `["agents.example.com"]`; on loopback those of
    this machine are added."""
    a2a_tls_cert: Path | None = None
    """Certificate chain (PEM) with which the door itself speaks TLS; goes with APC_A2A_TLS_KEY."""
    a2a_tls_key: Path | None = None
    """Private key (PEM) of that certificate."""
    a2a_client_ca_file: Path | None = None
    """Certificates (PEM) of the authority whose client certificates are taken beside tokens: the common name of one is
    the name of a caller. It issues them for nothing else. Goes with APC_A2A_TLS_CERT. None = no certificate is asked
    for."""
    a2a_trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """JSON list of addresses or networks of proxies that end TLS, such as `["10.0.0.7/32"]`: nobody else is answered,
    and only what came to them by https."""
    a2a_card_key_file: Path | None = None
    """Private key (PEM, Ed25519 or P-256) that signs the card; its public half is at `/.well-known/jwks.json`. None =
    the card is not signed."""
    a2a_jwt_issuer: str | None = None
    """Who issues the JSON Web Tokens (`iss`) that are taken beside the tokens of the file; goes with
    APC_A2A_JWT_AUDIENCE and APC_A2A_JWKS_FILE. Their `sub` names the caller."""
    a2a_jwt_audience: str | None = None
    """For whom those tokens are issued (`aud`): this door, and no other."""
    a2a_jwks_file: Path | None = None
    """The issuer's public keys (JSON Web Key Set)."""
    a2a_push_hosts: tuple[str, ...] = ()
    """JSON list of hosts that may be told by push although their addresses are private, or by http, such as
    `["hooks.internal:8443"]`; without a port any port."""
    a2a_push_key_file: Path | None = None
    """Key that encrypts the credentials of receivers: 32 bytes in Base64, the same for every door; none =
    `<data_dir>/a2a-push.key`, which is made."""
    a2a_most_bytes: int = Field(default=1 << 20, ge=1 << 10, le=1 << 26)
    """Maximum bytes of a request."""
    a2a_most_tasks: int = Field(default=100, ge=1)
    """Maximum open tasks of a caller."""
    a2a_most_streams: int = Field(default=16, ge=1)
    """Maximum open streams and waiting requests of a caller, at one door."""
    a2a_wait_seconds: float = Field(default=300.0, gt=0, le=3600)
    """How long a message that waits for its task is kept waiting; it then gets the task as it is."""


class TraceSettings(ApcSettings):
    """Where spans go; the SDK reads the other variables of OpenTelemetry itself (OTEL_TRACES_SAMPLER, …)."""

    model_config = SettingsConfigDict(populate_by_name=True)

    otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("APC_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    """Base URL of an OpenTelemetry collector (`http://host:4318`), also as OTEL_EXPORTER_OTLP_ENDPOINT; none = no
    traces."""
    trace: Literal["agents", "all"] = "agents"
    """What spans are made of: `agents`: handlers that run, their tools and models; `all`: sending, judging and logging
    of every packet too."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError("APC_OTLP_ENDPOINT must be the http:// or https:// URL of a collector (OTLP over HTTP)")
        return self


class BusSettings(BrokerSettings, ArtifactSettings, ChaosSettings):
    """Whatever is on the bus: the broker, the artifacts, and the faults that strike."""


class OrchestratorSettings(GateSettings, BrokerSettings, EncryptionSettings):
    """The orchestrator."""


class PersisterSettings(LogWriterSettings, BrokerSettings, DatabaseSettings, EncryptionSettings):
    """The persister."""

    @model_validator(mode="after")
    def _check_encrypted_databases(self) -> Self:
        if self.databases and self.encrypt_bodies:
            raise ValueError("APC_DATABASES cannot be used with APC_ENCRYPT_BODIES: subjects' keys are in one database")
        return self


class WorkerSettings(
    DeploymentSettings, DatabaseSettings, DeliverySettings, SigningSettings, TaskSettings, EffectSettings
):
    """A worker: what it takes, publishes and keeps. Without `database_url` its state ends with it."""


Readers = Mapping[str, tuple[type[ApcSettings], ...]]
"""Who reads which settings."""

_OURS: Readers = {
    "orchestrator": (OrchestratorSettings, BusSettings, DatabaseSettings, TraceSettings),
    "persister": (PersisterSettings, BusSettings, DatabaseSettings, ArchiveSettings, TraceSettings),
    "worker": (WorkerSettings, BusSettings, DatabaseSettings, TraceSettings),
    "agents": (SituationSettings, RelevanceSettings, LanguageSettings),
    "llm": (LLMSettings,),
    "console": (
        A2ASettings,
        ArchiveSettings,
        ConsoleSettings,
        BusSettings,
        DatabaseSettings,
        EncryptionSettings,
        LogKeySettings,
        SigningSettings,
        TraceSettings,
        WebSettings,
    ),
}

SERVICES = frozenset({"orchestrator", "persister", "worker", "console"})
"""The processes of a deployment; the other readers are parts of a worker."""


APPLICATIONS = "apc.settings"
"""Each entry point of this group names a class of settings; its name is that of the application that reads them."""


def read_by() -> Readers:
    """Return who reads which settings, the installed applications included."""
    return _installed()[0]


def all_settings() -> Iterator[type[ApcSettings]]:
    """Yield every class of settings that somebody reads, once."""
    yield from dict.fromkeys(kind for kinds in read_by().values() for kind in kinds)


@cache
def _installed() -> tuple[Readers, list[str]]:
    return with_applications(_OURS, entry_points(group=APPLICATIONS))


def with_applications(readers: Readers, applications: Iterable[EntryPoint]) -> tuple[Readers, list[str]]:
    """Add the settings of applications to `readers`; say in a sentence each why others cannot be used."""
    extended, problems = dict(readers), []
    for application in sorted(applications, key=lambda one: (one.name, one.value)):
        try:
            kind = application.load()
        except Exception as error:  # whatever a foreign module raises: our own settings are read without it
            reason = f"{type(error).__name__}: {error}"
        else:
            if isinstance(kind, type) and issubclass(kind, ApcSettings):
                extended[application.name] = (*extended.get(application.name, ()), kind)
                continue
            reason = "it is no class of settings"
        problems.append(f"no settings of {application.name}: {application.value} cannot be used: {reason}")
    return extended, problems


# Names of the environment that begin like ours and are no settings: misspelled ones are refused, others told.

NO_SETTINGS = frozenset({"APC_CRASH_AT", "APC_IMAGE"})
"""Names of ours that are no settings: read before the settings, or by the compose file."""
OF_TESTS = ("APC_TEST_", "APC_WRITE_", "APC_TAMPERINGS")
MISSPELLED = 0.85
"""From this share of equal characters on, an unknown name is a misspelled setting."""
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)")
"""What Kubernetes sets for each service of a namespace, beside NAME_PORT=tcp://…"""
_ADDRESS = re.compile(r"^(tcp|udp|sctp)://")


def check_names(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each unknown name with our prefix; where there is one, also what `with_applications` says.

    Raises:
        SettingMisspelled: one of them is nearly the name of a setting.
    """
    ours = _names_of(_OURS)
    if not any(_is_unknown(name, value, ours) for name, value in environment.items()):
        return []  # looking for applications takes milliseconds
    known = known_names()
    unknown = sorted(name for name, value in environment.items() if _is_unknown(name, value, known))
    for name in unknown:
        meant = _nearest(name, known)
        if meant is not None and _likeness(name, meant) >= MISSPELLED:
            raise SettingMisspelled(name, meant)
    return [*_installed()[1], *(_sentence(name, known) for name in unknown)]


def known_names() -> frozenset[str]:
    """Return every name that is a setting, or that we read otherwise."""
    return _names_of(read_by())


def _names_of(readers: Readers) -> frozenset[str]:
    every = {kind for kinds in readers.values() for kind in kinds}
    return frozenset(variable_of(kind, field) for kind in every for field in kind.model_fields) | NO_SETTINGS


def _is_unknown(name: str, value: str, known: frozenset[str]) -> bool:
    if not name.startswith(PREFIX) or name in known or name.startswith(OF_TESTS):
        return False
    return not (_OF_KUBERNETES.search(name) or (name.endswith("_PORT") and _ADDRESS.match(value)))


def _sentence(name: str, known: Iterable[str]) -> str:
    shortened = [one for one in known if name.startswith(f"{one}_")]
    meant = max(shortened, key=len) if shortened else _nearest(name, known)
    return f"{name} is no setting and is ignored" + (f": do you mean {meant}?" if meant else "")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    matches = get_close_matches(name.removeprefix(PREFIX).upper(), [one.removeprefix(PREFIX) for one in known], n=1)
    return f"{PREFIX}{matches[0]}" if matches else None


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.removeprefix(PREFIX).upper(), other.removeprefix(PREFIX)).ratio()
