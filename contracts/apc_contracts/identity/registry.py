"""The registration of an agent: what an operator registered and the gate enforces."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from apc_contracts.vocabulary import PROTOCOL_VERSION, PROTOCOL_VERSIONS, PacketType, Right

SPEAKS_OLDEST = frozenset({PROTOCOL_VERSION})
"""What a registration speaks that names no version."""
SPEAKS_ALL = frozenset(PROTOCOL_VERSIONS)
ANY_SCHEMA = "*"
"""Among the schemas of a registration: its handlers take content of every schema."""
CLIENT = "client"
"""Role of the agents in whose name runs start sessions; their agent_ids begin with it."""
CLIENTS = "clients"
"""Their swarm."""


class Kind(StrEnum):
    """Who is registered. A person has no inbox: broker users named in `via` speak for it."""

    AGENT = "agent"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Registration:
    """One row of the registry.

    `handles` holds the packet types the agent declared; the control types are handled by every agent
    whether listed or not. `public_keys` maps key id to a base64 Ed25519 public key.
    """

    agent_id: str
    broker_user: str
    role: str
    swarm_id: str
    rights: frozenset[Right] = frozenset()
    handles: frozenset[PacketType] = frozenset()
    public_keys: Mapping[str, str] = field(default_factory=dict)
    is_revoked: bool = False
    schemas: frozenset[str] = frozenset()
    """The schemas whose MESSAGEs it takes, or ANY_SCHEMA."""
    kind: Kind = Kind.AGENT
    via: frozenset[str] = frozenset()
    """Broker users that may speak for a person, beside `broker_user`."""
    speaks: frozenset[str] = SPEAKS_OLDEST
    """The protocol versions of packets that it reads."""

    @property
    def is_run_client(self) -> bool:
        """Whether this is the client of a run: it ends with the run, and has no inbox."""
        return self.swarm_id == CLIENTS and self.agent_id.startswith(f"{CLIENT}-") and not self.handles

    @property
    def has_inbox(self) -> bool:
        """Whether packets can be delivered to it: people and the clients of runs read the log."""
        return self.kind is Kind.AGENT and not self.is_run_client

    def accepts(self, schema_id: str) -> bool:
        """Return whether the agent takes MESSAGEs of this schema."""
        return schema_id in self.schemas or ANY_SCHEMA in self.schemas

    def speaks_as(self, user_id: str | None) -> bool:
        """Return whether this broker user may send in its name."""
        return user_id is not None and (user_id == self.broker_user or user_id in self.via)

    def has(self, right: Right) -> bool:
        """Return whether the operator granted this right."""
        return right in self.rights


# Who speaks for a person: never an agent, which could answer its own questions in the person's name.


def voice_objection(added: Registration, known: Iterable[Registration], trusted: Collection[str] = ()) -> str | None:
    """Return why a registration would let an agent speak for a person; None when it would not.

    Broker users in `trusted` may do so: the orchestrator's own and the operator's may register whomever they like.
    """
    for other in known:
        if other.is_revoked or other.agent_id == added.agent_id or other.kind is added.kind:
            continue
        person, agent = (added, other) if added.kind is Kind.PERSON else (other, added)
        if person.speaks_as(agent.broker_user) and agent.broker_user not in trusted:
            return (
                f"the broker user {agent.broker_user} is that of agent {agent.agent_id}, which could answer its own "
                f"questions as {person.agent_id}: name another user with --via, or give the agent its own"
            )
    return None
