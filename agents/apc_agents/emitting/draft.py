"""What a handler says of a packet that it emits."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Protocol, TypedDict, Unpack
from uuid import UUID

from pydantic import BaseModel, JsonValue

from apc_agents.typed import payload_of
from apc_contracts.agent import SecurityLevel
from apc_contracts.packet import Lineage, Packet, ProofBundle, Recipient
from apc_contracts.payloads.by_type import Payload
from apc_contracts.payloads.session_signals import ROLE_PREFIX
from apc_contracts.vocabulary import ALL_RECIPIENTS, SUBSTRATE_RECIPIENT, Channel, RunPhase

ALL: Final = ALL_RECIPIENTS
"""Every member of the session that handles the type (BROADCAST)."""
SUBSTRATE: Final = SUBSTRATE_RECIPIENT
"""The stream that any agent may read (SUBSTRATE)."""
DEFAULT_TTL = timedelta(minutes=10)
DEFAULT_PRIORITY = 4
"""The highest that takes the normal queue."""


class Role(str):
    """Everybody with a role, as the destination of a question: `ctx.ask(..., to=Role("release-manager"))`."""

    __slots__ = ()

    def __new__(cls, name: str) -> "Role":
        """Return the recipient's id for a role."""
        return super().__new__(cls, f"{ROLE_PREFIX}{name}")


Destination = str | Recipient | Sequence[str | Recipient]


class Ancestry(Enum):
    """Says that a packet has no parent although a packet caused it."""

    ROOT = "root"


ROOT: Final = Ancestry.ROOT


@dataclass(frozen=True, slots=True)
class KnownParent:
    """A parent of which no more is left than its id and its root."""

    packet_id: UUID
    root_packet_id: UUID


Parent = UUID | Packet | KnownParent | Ancestry


class PacketOptions(TypedDict, total=False):
    """What may be said of any packet besides its payload. What is left out, or None, is inherited or has a default."""

    parent: Parent | None
    """The packet (or its id) that this one follows from; default the handled packet; ROOT = none."""
    confidence: float
    """0..1; default 1."""
    symbolic_keys: Sequence[str]
    capability_tags: Sequence[str] | None
    lineage: Lineage | None
    proof_bundle: ProofBundle | None
    priority: int
    """0..9; from 5 on the recipient takes it from its urgent queue. Default 4."""
    ttl: timedelta
    """1 ms to 24 h; default 10 minutes."""
    requires_ack: bool
    """Wait for the ACK of every recipient, of a BROADCAST for the first; default False."""
    ack_timeout: timedelta | None
    """How long before the gate routes it again, or gives up; default the worker's."""
    retry_limit: int | None
    """0..10, how often the gate routes it again: when an ACK is missing, or a handler asks for a retry. Default the
    contract's."""
    generation: int | None
    """Default the newest that is known of the session."""
    session_id: str | None
    """Default that of the handled packet. In another session the packet is a root, and a handler that runs again
    after a crash makes a new one, unless packet_id is given."""
    run_id: str | None
    """Default that of the handled packet."""
    task_id: str | None
    """Default that of the handled packet."""
    packet_id: UUID | None
    """Default derived from the handled packet and the count of emits: give one only for a packet that nothing caused
    and that a restart shall repeat."""
    channel: Channel
    """Default INTER_AGENT."""
    metadata: Mapping[str, JsonValue] | None


class EmitOptions(PacketOptions, total=False):
    """The options of `HandlerContext.emit`."""

    to: Destination | None
    """An agent_id, a Recipient, several of them, ALL or SUBSTRATE; default the sender of the handled packet."""
    run_phase: RunPhase | None
    """Default the newest that is known of the session."""


class Emitting(Protocol):
    """The agent that emits."""

    @property
    def agent_id(self) -> str: ...

    @property
    def security_level(self) -> SecurityLevel: ...


class Emits(Protocol):
    """Who emits packets in answer to one: a HandlerContext."""

    @property
    def packet(self) -> Packet: ...

    @property
    def agent(self) -> Emitting: ...

    def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Awaitable[Packet[Any]]:
        """Emit a packet. Raises EmitError."""
        ...


class Draft:
    """A payload, and what is said of its packet; a model with `@message` becomes a MESSAGE.

    Raises:
        TypeError: an option that does not exist.
        AgentError: neither a payload nor a decorated model.
    """

    __slots__ = ("options", "payload")

    def __init__(self, payload: Payload | BaseModel, **options: Unpack[EmitOptions]) -> None:
        unknown = options.keys() - EmitOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(sorted(EmitOptions.__annotations__))
            raise TypeError(f"a packet has no option {min(unknown)!r}: use {known}")
        self.payload = payload_of(payload)
        self.options = options

    def with_ack_timeout(self, timeout: timedelta) -> "Draft":
        """Return a draft that waits this long for its ACKs."""
        options = self.options.copy()
        options["ack_timeout"] = timeout
        return Draft(self.payload, **options)
