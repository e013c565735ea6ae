"""What `admit` needs beside the packet and the session: passed in, never fetched."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.identity.registry import Registration


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
    """It came over the broker: no packet of the gate's own, whatever it says of its sender."""
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
    outstanding: Mapping[str, int] = msgspec.field(default_factory=dict)
    """agent_id -> deliveries routed and not ended."""
    own_outstanding: Mapping[str, int] | None = None
    """Those of them that came from this sender; None = all."""
    is_contract_deployed: bool = True
    """The session was opened under the contract file that judges now."""
    outstanding_bound: int | None = None
    quota_wait_ms: int = 0
    """Until the sender's quota admits a packet; 0 = it does now."""
    decayed_protocols: frozenset[str] = frozenset()
    """Protocols under a block at `now`, descendants included."""
    decay: Mapping[str, Any] | None = None
    """Of a DECISION of the orchestrator about a protocol: the record of what was decided, and on which evidence."""

    @property
    def proven_cause(self) -> UUID | None:
        """The cause, if it was delivered to this sender: what anybody may claim is recorded as a claim alone."""
        return self.cause if self.is_cause_delivered else None
