"""What `admit` needs beside packet and session: passed in, never fetched."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.identity.registry import Registration
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.schemas import ContentFault, RegisteredSchema


class SignatureState(StrEnum):
    """The result of checking the AMQP header `apc-signature`."""

    ABSENT = "absent"
    VALID = "valid"
    INVALID = "invalid"


class Facts(msgspec.Struct, frozen=True):
    """Named facts of one input.

    `registry` None means offline (`apc packet validate`): every rule that needs a registration, a user_id or a
    session is skipped. Live, `sender` is the registration under the packet's sender.agent_id (None if unknown).
    """

    now: datetime
    registry: Mapping[str, Registration] | None = None
    user_id: str | None = None
    is_received: bool = False
    """It came over the broker: not one of the orchestrator's own packets, whatever it claims as its sender."""
    has_copy_headers: bool = False
    """CC or BCC was among the AMQP headers."""
    hashes_to_shard: bool = True
    signature: SignatureState = SignatureState.ABSENT
    packet_hash: bytes = b""
    payload_hash: bytes = b""
    cause: UUID | None = None
    """The AMQP header apc-cause: the packet whose delivery started the sender's handler, as the sender claims."""
    ordinal: int | None = None
    is_cause_delivered: bool = False
    """The cause was delivered to this sender."""
    is_opening: bool = False
    """The AMQP header apc-opening: the work that its session was opened for. If it is refused, the session halts."""
    outstanding: Mapping[str, int] = msgspec.field(default_factory=dict)
    """agent_id -> deliveries routed and not ended."""
    own_outstanding: Mapping[str, int] | None = None
    """The part of `outstanding` that came from this sender; None = all."""
    is_contract_deployed: bool = True
    """The session was opened under the contract file that is judging now."""
    is_contract_known: bool = True
    """The contract that a START names can be loaded."""
    schemas: Mapping[str, RegisteredSchema] | None = None
    """The registered schemas; None = content is judged as recorded."""
    content_fault: ContentFault | None = None
    """Recorded: why the content fits no schema."""
    places: Mapping[str, list[str]] | None = None
    """Deciders and reviewers of a START, roles resolved, as a record has them; None = by the registry."""
    unready: Mapping[str, list[str]] | None = None
    """Members of a START that cannot take part -> why, and similar ids, recorded; None = by the registry."""
    outstanding_bound: int | None = None
    quota_wait_ms: int = 0
    """Milliseconds until the sender's quota admits a packet; 0 = now."""
    decayed_protocols: frozenset[str] = frozenset()
    """Protocols that are blocked at `now`, descendants included."""
    rules: Mapping[str, Any] | None = None
    """What the rules of a team read, recorded; None = it is read now."""
    evidence: tuple[str, str] | None = None
    """Path and message of a reference that the session did not know, recorded."""
    decay: Mapping[str, Any] | None = None
    """For the orchestrator's DECISION about a protocol: the record of the decision and its evidence."""

    @property
    def proven_cause(self) -> UUID | None:
        """The cause, if it was delivered to this sender; any other cause is recorded as a claim only."""
        return self.cause if self.is_cause_delivered else None


# Agents that the spec of a session names and that nobody has registered.

MOST_NAMED = 3
"""Registered ids that are proposed for an unknown one."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """One agent id of a SessionSpec without a registration."""

    path: str
    """`swarms[0].agents[1]`"""
    agent_id: str
    nearest: tuple[str, ...]
    """Registered ids that look like it, the nearest first."""

    @property
    def sentence(self) -> str:
        """Where it stands, and what may be meant."""
        meant = f": do you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"{self.path}: agent {self.agent_id} is not registered{meant}"


def find_unregistered(spec: SessionSpec | TaskSessionSpec, registered: Collection[str]) -> list[Unregistered]:
    """Return the agents of a SessionSpec that are not among the registered ones, in the order of the document."""
    return [
        Unregistered(path, agent, tuple(get_close_matches(agent, registered, n=MOST_NAMED)))
        for path, agent in _named(spec)
        if agent not in registered
    ]


def _named(spec: SessionSpec | TaskSessionSpec) -> Iterator[tuple[str, str]]:
    for place, swarm in enumerate(() if isinstance(spec, TaskSessionSpec) else spec.swarms):
        for index, agent in enumerate(swarm.agents):
            yield f"swarms[{place}].agents[{index}]", agent
    for index, agent in enumerate(spec.members):
        yield f"members[{index}]", agent
