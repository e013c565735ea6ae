"""What `admit` needs beside packet and session: passed in, never fetched."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.identity.registry import Registration
from apc_contracts.schemas.schema import ContentFault, RegisteredSchema


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
    """It came over the broker: not one of the gate's own packets, whatever it claims as its sender."""
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
    decay: Mapping[str, Any] | None = None
    """For the orchestrator's DECISION about a protocol: the record of the decision and its evidence."""

    @property
    def proven_cause(self) -> UUID | None:
        """The cause, if it was delivered to this sender; any other cause is recorded as a claim only."""
        return self.cause if self.is_cause_delivered else None
