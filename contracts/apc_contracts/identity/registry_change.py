"""An operator's change of the registry, as sent to the orchestrator on apc.receipts (AMQP type `registry`).

Among those in the log are also the orchestrator's own: that a host appeared, or is gone.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from apc_contracts.contract_model import PUBLIC_KEY_PATTERN, Id, Model, Name, OpenMap, SchemaId, Uuid, broken
from apc_contracts.errors import ContractInvalid, SchemaUnusable, SignatureInvalid
from apc_contracts.identity.registry import SPEAKS_OLDEST, Kind, Registration
from apc_contracts.identity.signing import read_public_key
from apc_contracts.limits import MAX_SAFE_INTEGER
from apc_contracts.vocabulary import HOST_PATTERN, ORCHESTRATOR, PROTOCOL_VERSIONS, PacketType, Right
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.parsing import refusal_of, validated
from apc_contracts.wire.strict_json import read_strict_json

if TYPE_CHECKING:
    from apc_contracts.contract.contract import Contract

MAX_SCHEMAS_ACCEPTED = 256
MAX_CONTRACT_BYTES = 120 * 1024
"""Of a registered contract: escaped as one JSON text it still fits into a message."""
SCHEMA_SUBJECT = "schema/"
CONTRACT_SUBJECT = "contract/"
HOST_SUBJECT = "host/"


class RegistryAction(StrEnum):
    """What the operator does."""

    ADD = "add"
    REVOKE = "revoke"
    SCHEMA = "schema"
    CONTRACT = "contract"


def _not_reserved(agent_id: str) -> str:
    if agent_id.startswith("_") or agent_id == ORCHESTRATOR:
        raise broken("", "this id is reserved: choose one that neither begins with _ nor is `orchestrator`")
    return agent_id


def _is_public_key(text: str) -> str:
    try:
        read_public_key(text)
    except SignatureInvalid as error:
        raise broken("", str(error)) from error
    return text


Version = Literal["apc/1.0", "apc/1.1"]
AgentId = Annotated[
    Id, AfterValidator(_not_reserved), Field(json_schema_extra={"not": {"pattern": f"^(_|{ORCHESTRATOR}$)"}})
]
HostId = Annotated[str, Field(pattern=HOST_PATTERN)]
"""The id of a host, a process that runs many agents."""
PublicKey = Annotated[str, Field(pattern=PUBLIC_KEY_PATTERN), AfterValidator(_is_public_key)]
"""A raw Ed25519 public key of 32 bytes, in base64."""


class AgentAdded(Model):
    """A change that registers an agent or replaces its registration. `public_keys` maps key id to key.

    Attributes:
        change_id: a UUID; the same change twice counts once.
        action: `add`.
        agent_id: its id; neither `orchestrator` nor one that begins with `_`.
        broker_user: the broker user that may send in its name.
        role: what contracts and questions name.
        swarm_id: the swarm that it belongs to.
        rights: what it may do beyond sending packets.
        handles: the packet types that it takes, beside the control types.
        public_keys: key id -> Ed25519 public key in base64.
        schemas: the schemas whose MESSAGEs it takes; `*` = all, None = none.
        kind: agent or person; None = an agent.
        via: of a person: the broker users that may speak for it. Of an agent that moves: the one it had before, whose
            process ends what was delivered there.
        speaks: the protocol versions of packets that it reads; None = apc/1.0 alone.
        host: of an agent: the host in whose process it runs; None = it has its own queues.
        allow_shared: of an agent with a host: it may judge agents of this host, and be judged by them.
    """

    change_id: Uuid
    action: Literal[RegistryAction.ADD] = RegistryAction.ADD
    agent_id: AgentId
    broker_user: Name
    role: Name
    swarm_id: Id
    rights: tuple[Right, ...] = ()
    handles: tuple[PacketType, ...] = ()
    public_keys: Mapping[Id, PublicKey] = Field(default_factory=dict)
    schemas: Annotated[tuple[SchemaId | Literal["*"], ...] | None, Field(max_length=MAX_SCHEMAS_ACCEPTED)] = None
    kind: Kind | None = None
    via: tuple[Name, ...] | None = None
    speaks: Annotated[tuple[Version, ...] | None, Field(min_length=1, max_length=len(PROTOCOL_VERSIONS))] = None
    host: HostId | None = None
    allow_shared: Literal[True] | None = None

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        is_person = self.kind is Kind.PERSON
        if not is_person and self.via is not None and len(self.via) != 1:
            raise broken("via", "an agent moves from one broker user: name it alone, or leave via out")
        if is_person and not self.via:
            raise broken("via", "name at least one broker user that speaks for the person")
        if is_person and not set(self.rights) <= {Right.OPERATE}:
            raise broken("rights", "a person has no right but operate: leave the others out")
        if is_person and self.handles:
            raise broken("handles", "a person handles no packets: leave handles out")
        if is_person and self.host is not None:
            raise broken("host", "a person has no process: leave host out")
        if self.allow_shared and self.host is None:
            raise broken("allow_shared", "only agents of a host share one: leave allow_shared out")
        return self

    @property
    def subject(self) -> str:
        """The name under which the log keeps the change."""
        return self.agent_id

    def registration(self) -> Registration:
        """Return the registration as the orchestrator holds it."""
        return Registration(
            agent_id=self.agent_id,
            broker_user=self.broker_user,
            role=self.role,
            swarm_id=self.swarm_id,
            rights=frozenset(self.rights),
            handles=frozenset(self.handles),
            public_keys=dict(self.public_keys),
            schemas=frozenset(self.schemas or ()),
            kind=self.kind or Kind.AGENT,
            via=frozenset(self.via or ()),
            speaks=frozenset(self.speaks or SPEAKS_OLDEST),
            host=self.host,
            allow_shared=self.allow_shared is True,
        )


class AgentRevoked(Model):
    """A change that revokes an agent's registration; its past stays in the log.

    Attributes:
        change_id: a UUID; the same change twice counts once.
        action: `revoke`.
        agent_id: who.
    """

    change_id: Uuid
    action: Literal[RegistryAction.REVOKE] = RegistryAction.REVOKE
    agent_id: AgentId

    @property
    def subject(self) -> str:
        """The name under which the log keeps the change."""
        return self.agent_id


def _is_usable(document: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    from apc_contracts.schemas import register_schema

    try:
        register_schema("", dict(document))
    except SchemaUnusable as error:
        raise broken("" if error.place == "$" else error.place.removeprefix("$."), error.message) from error
    return document


class SchemaAdded(Model):
    """A change that registers a JSON Schema of typed content; the content of a version never changes.

    Attributes:
        change_id: a UUID; the same change twice counts once.
        action: `schema`.
        schema_id: `name/version`; in JSON the field `schema`.
        document: the JSON Schema (2020-12).
    """

    change_id: Uuid
    action: Literal[RegistryAction.SCHEMA] = RegistryAction.SCHEMA
    schema_id: SchemaId = Field(alias="schema")
    document: Annotated[OpenMap, AfterValidator(_is_usable)]

    @property
    def subject(self) -> str:
        """The name under which the log keeps the change: no agent_id has a slash."""
        return SCHEMA_SUBJECT + self.schema_id


class ContractAdded(Model):
    """A change that registers a contract file; sessions that are open keep the revision under which they began.

    Attributes:
        change_id: a UUID; the same change twice counts once.
        action: `contract`.
        name: the name in the file.
        revision: 1 for the first file of this name; one more for each other file.
        document: the file's text: a contract's hash is over its bytes.
    """

    change_id: Uuid
    action: Literal[RegistryAction.CONTRACT] = RegistryAction.CONTRACT
    name: Name
    revision: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
    document: Annotated[str, Field(min_length=1, max_length=MAX_CONTRACT_BYTES)]

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        contract = self.contract()
        if contract.name != self.name:
            raise broken("name", f"the file has the name {contract.name!r}: give the same")
        return self

    def contract(self) -> "Contract":
        """Return the contract, its guards not yet compiled."""
        from apc_contracts.contract.contract import contract_from_bytes

        body = self.document.encode()
        if len(body) > MAX_CONTRACT_BYTES:
            raise broken("document", f"it has more than {MAX_CONTRACT_BYTES} bytes: shorten it")
        try:
            return contract_from_bytes(body)
        except ContractInvalid as error:
            raise broken("document", f"at {error.place}: {error.message}") from error

    @property
    def subject(self) -> str:
        """The name under which the log keeps the change: no agent_id has a slash."""
        return CONTRACT_SUBJECT + self.name


class HostPresence(StrEnum):
    """What the broker says about the process of a host."""

    APPEARED = "appeared"
    GONE = "gone"


class HostChanged(Model):
    """A change that the orchestrator itself logs when a host appears or is gone. Nobody can send it.

    Attributes:
        change_id: a UUID.
        action: `host`.
        host: the host, a process that runs many agents.
        presence: `appeared` or `gone`.
    """

    change_id: Uuid
    action: Literal["host"] = "host"
    host: HostId
    presence: HostPresence

    @property
    def subject(self) -> str:
        """The name under which the log keeps the change: no agent_id has a slash."""
        return HOST_SUBJECT + self.host


AnyChange = AgentAdded | AgentRevoked | SchemaAdded | ContractAdded
RegistryChange = Annotated[AnyChange, Field(discriminator="action")]
LoggedChange = AnyChange | HostChanged

Change = TypeVar("Change")

_ACTIONS = frozenset(RegistryAction)
_adapter: TypeAdapter[AnyChange] = TypeAdapter(RegistryChange)
_logged_adapter: TypeAdapter[LoggedChange] = TypeAdapter(Annotated[LoggedChange, Field(discriminator="action")])


def parse_registry_change(body: bytes) -> AnyChange:
    """Return the change in a message body: what an operator can send.

    Raises:
        PacketRefused: as in parse_packet.
    """
    return _parsed(body, _adapter)


def parse_logged_change(body: bytes) -> LoggedChange:
    """Return the change in an entry of the log: an operator's, or one of the orchestrator itself.

    Raises:
        PacketRefused: as in parse_packet.
    """
    return _parsed(body, _logged_adapter)


_KEPT_CHANGES, _KEPT_BYTES = 2_048, 4_096
"""How many changes a process remembers, none longer than that: each of its shards reads every change."""


def _parsed(body: bytes, adapter: TypeAdapter[Change]) -> Change:
    return _parse(body, adapter) if len(body) > _KEPT_BYTES else _parse_once(body, adapter)


@lru_cache(_KEPT_CHANGES)
def _parse_once(body: bytes, adapter: TypeAdapter[Change]) -> Change:
    return _parse(body, adapter)


def _parse(body: bytes, adapter: TypeAdapter[Change]) -> Change:
    read_strict_json(body)
    try:
        return validated(body, partial(adapter.validate_json, strict=True))
    except ValidationError as error:
        raise refusal_of(error, _ACTIONS) from error


def encode_registry_change(change: LoggedChange) -> bytes:
    """Return the canonical JSON of a change.

    ```python
    change = AgentAdded(
        change_id=new_packet_id(), agent_id="clerk", broker_user="agent.clerk", role="clerk", swarm_id="shop"
    )
    assert parse_registry_change(encode_registry_change(change)) == change
    ```

    Raises:
        PacketRefused: TOO_LARGE, TOO_DEEP or MALFORMED: what the gate would refuse.
    """
    body = canonical_json(change.model_dump(mode="json", exclude_none=True))
    read_strict_json(body)
    return body
