"""What goes into `advance` and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.verdict import Refusal, Verdict
from apc_contracts.session.path.verification import Verification
from apc_contracts.session.session import HeldPacket
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt


class PacketInput(msgspec.Struct, frozen=True):
    """A judged packet: `recipients` are the resolved ones (`_all` spelled out)."""

    received: ReceivedPacket
    verdict: Verdict
    recipients: tuple[str, ...]
    cause: UUID | None
    now: datetime
    decayed: frozenset[str] = frozenset()
    """Protocols under a block now: what a barrier that this input closes reads."""


class ReceiptsInput(msgspec.Struct, frozen=True):
    """Authenticated receipts for one (packet, recipient, attempt), in the order in which they were sent."""

    receipts: Sequence[Receipt]
    now: datetime
    decayed: frozenset[str] = frozenset()


class ReleaseInput(msgspec.Struct, frozen=True):
    """A packet that a pause held, judged at RESUME. `cause` is the RESUME.

    The RESUME and all that it releases are one cause, so they have one SYNC: it follows from the last of them.
    """

    item: HeldPacket
    verdict: Verdict
    cause: UUID
    now: datetime
    is_last: bool
    decayed: frozenset[str] = frozenset()


class Hop(msgspec.Struct, frozen=True):
    """What one input did to one packet for one recipient ('' = the whole packet).

    `to_state` '' moves nothing: it records the end of a delivery whose machine had already come to rest.
    """

    packet_id: UUID
    recipient: str
    attempt: int
    from_state: str
    to_state: str
    events: list[str]
    occurred_at: list[datetime]
    actor: str
    metadata: dict[str, Any] | None = None


class Transition(msgspec.Struct, frozen=True):
    """A row of coordination_events: a step of the session's machine, or a barrier (from_state == to_state)."""

    event: str
    from_state: str
    to_state: str
    round: int
    generation: int
    step: int
    cause: UUID
    facts: dict[str, Any]


class Route(msgspec.Struct, frozen=True):
    """A packet to deliver: at admission, at the barrier that released it, at a retry."""

    received: ReceivedPacket
    recipients: tuple[str, ...]
    attempt: int
    not_before: datetime | None = None
    """Of a retry: to be put off until then."""


class Denial(msgspec.Struct, frozen=True):
    """A held packet that was refused in the end: its sender gets a NACK."""

    received: ReceivedPacket
    refusal: Refusal


class FinalVerdict(msgspec.Struct, frozen=True):
    """A TRANSFER or EVAL that was admitted (refusal_code None) or refused for good: protocols are measured by these."""

    packet: Packet
    refusal_code: str | None


@dataclass(slots=True)
class Effects:
    """Everything one input caused, in order. The gate logs hops and transitions, then does the rest."""

    hops: list[Hop] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    emissions: list[Packet] = field(default_factory=list)
    """Packets of the orchestrator, to be sealed, judged and advanced in the same batch."""
    routes: list[Route] = field(default_factory=list)
    due: list[Route] = field(default_factory=list)
    """Routes of earlier inputs that were put off: they count as outstanding already."""
    denials: list[Denial] = field(default_factory=list)
    final_verdicts: list[FinalVerdict] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    """What is to be checked beside the gate; the result comes back as a receipt."""
    strangers: list[Receipt] = field(default_factory=list)
    """Receipts for packets that were not delivered to that recipient: security events."""
    resumed: list[HeldPacket] = field(default_factory=list)
    """What was held by a pause, to be judged now, in log order."""
    ended: list[str] = field(default_factory=list)
    """The recipient of every delivery that ended."""
    ended_senders: list[str] = field(default_factory=list)
    """Of each of these the sender."""
    is_sync_due: bool = False
