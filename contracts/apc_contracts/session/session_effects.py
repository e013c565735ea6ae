"""The inputs and outputs of `advance`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from apc_contracts.judging.verdict import Refusal, Verdict
from apc_contracts.packet import Packet
from apc_contracts.session.session import HeldPacket
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt


class FailedCheck(NamedTuple):
    """A failed check: its name in section `verification` of the contract, and what is wrong."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """A packet to verify, with what its session found when it was first applied."""

    received: ReceivedPacket
    findings: tuple[FailedCheck, ...]


class PacketInput(msgspec.Struct, frozen=True):
    """A judged packet; `recipients` are resolved (`_all` expanded)."""

    received: ReceivedPacket
    verdict: Verdict
    recipients: tuple[str, ...]
    cause: UUID | None
    now: datetime
    decayed: frozenset[str] = frozenset()
    """Protocols blocked now: read by a barrier that this input closes."""


class ReceiptsInput(msgspec.Struct, frozen=True):
    """Authenticated receipts for one (packet, recipient, attempt), in the order in which they were sent."""

    receipts: Sequence[Receipt]
    now: datetime
    decayed: frozenset[str] = frozenset()


class ReleaseInput(msgspec.Struct, frozen=True):
    """A packet that a pause held, judged at RESUME. `cause` is the RESUME.

    The RESUME and all packets that it releases are one cause, so they have one SYNC, after the last of them.
    """

    item: HeldPacket
    verdict: Verdict
    cause: UUID
    now: datetime
    is_last: bool
    decayed: frozenset[str] = frozenset()


class Hop(msgspec.Struct, frozen=True):
    """The effect of one input on one packet for one recipient ('' = the whole packet).

    `to_state` '' moves nothing: it records the end of a delivery whose machine had already reached its final state.
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
    """For a retry: not delivered before this time."""


class Denial(msgspec.Struct, frozen=True):
    """A held packet that was finally refused: its sender gets a NACK."""

    received: ReceivedPacket
    refusal: Refusal


class FinalVerdict(msgspec.Struct, frozen=True):
    """A TRANSFER or EVAL that was finally admitted (refusal_code None) or refused: protocols are measured by these."""

    packet: Packet
    refusal_code: str | None


class Effects(msgspec.Struct):
    """Everything one input caused, in order. The gate logs hops and transitions, then does the rest."""

    hops: list[Hop] = msgspec.field(default_factory=list)
    transitions: list[Transition] = msgspec.field(default_factory=list)
    emissions: list[Packet] = msgspec.field(default_factory=list)
    """Packets of the orchestrator, to be sealed, judged and advanced in the same batch."""
    routes: list[Route] = msgspec.field(default_factory=list)
    due: list[Route] = msgspec.field(default_factory=list)
    """Deferred routes of earlier inputs that are due: they count as outstanding already."""
    denials: list[Denial] = msgspec.field(default_factory=list)
    final_verdicts: list[FinalVerdict] = msgspec.field(default_factory=list)
    verifications: list[Verification] = msgspec.field(default_factory=list)
    """What to verify beside the gate; the result comes back as a receipt."""
    misdirected: list[Receipt] = msgspec.field(default_factory=list)
    """Receipts for packets that were not delivered to that recipient: security events."""
    resumed: list[HeldPacket] = msgspec.field(default_factory=list)
    """Packets held by a pause that are to be judged now, in log order."""
    ended: list[str] = msgspec.field(default_factory=list)
    """The recipient of every delivery that ended."""
    ended_senders: list[str] = msgspec.field(default_factory=list)
    """The sender of each of these deliveries."""
    is_sync_due: bool = False
