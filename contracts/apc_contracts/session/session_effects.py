"""The inputs and outputs of `advance`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import VerificationRules
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.packet import (
    ARTIFACT_PREFIX,
    CLAIM_PREFIX,
    PACKET_PREFIX,
    Packet,
    defines,
    packet_named,
    reference_of,
)
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt

# What must be verified of a packet, and what its session can check (docs/specification/contract.md section 8).
#
# The rest is checked beside the gate: bytes in the artifact store, keys in the registry. The result is a receipt of the
# orchestrator, so that a replay needs neither.


class FailedCheck(NamedTuple):
    """A failed check: its name in section `verification` of the contract, and what is wrong."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """A packet to verify, with what its session found when it was first applied."""

    received: ReceivedPacket
    findings: tuple[FailedCheck, ...]


def requested(session: Session, received: ReceivedPacket, contract: Contract) -> Verification | None:
    """Return what to verify beside the gate.

    None when the session's memory is enough and nothing is wrong.
    """
    rules, packet = contract.verification, received.packet
    findings = tuple(one for one in _findings(session, packet) if getattr(rules, one.check) != "off")
    if findings or _needs_others(packet, rules):
        return Verification(received, findings)
    return None


def repeated(session: Session, received: ReceivedPacket) -> Verification:
    """Return a verification that has begun and has no result: again, by what the session knows now."""
    return Verification(received, tuple(_findings(session, received.packet)))


def evidence_artifacts(packet: Packet) -> Iterator[tuple[int, str]]:
    """Yield place and hash of each evidence_ref that names an artifact."""
    if packet.proof_bundle is not None:
        for at, text in enumerate(packet.proof_bundle.evidence_refs):
            reference = reference_of(text)
            if reference is not None and reference.startswith(ARTIFACT_PREFIX):
                yield at, reference


def ruling(findings: Sequence[FailedCheck], rules: VerificationRules) -> tuple[bool, str | None]:
    """Return whether the packet passes, and the reason of a failure or the text of a warning."""
    for mode in ("enforce", "warn"):
        for finding in findings:
            if getattr(rules, finding.check) == mode:
                return mode == "warn", finding.message
    return True, None


def note_claims(session: Session, packet: Packet) -> None:
    """Remember the claims that a packet makes: falsifiers may target them."""
    if packet.packet_type in (PacketType.CLAIM, PacketType.TASK_IR):
        session.claims.update(name.removeprefix(CLAIM_PREFIX) for name in defines(packet))


def _findings(session: Session, packet: Packet) -> Iterator[FailedCheck]:
    bundle = packet.proof_bundle
    if bundle is None:
        return
    for at, falsifier in enumerate(bundle.falsifiers):
        if falsifier.target_claim_id not in session.claims:
            place = f"proof_bundle.falsifiers[{at}].target_claim_id"
            yield FailedCheck("falsifiers", f"{place}: no claim {falsifier.target_claim_id!r} was made in this session")
    for at, text in enumerate(bundle.evidence_refs):
        # A bare UUID may be anything; `packet:` says that it is a packet.
        reference = reference_of(text) if text.startswith(PACKET_PREFIX) else None
        packet_id = packet_named(reference) if reference is not None else None
        identity = session.identity(packet_id) if packet_id is not None else None
        if packet_id is not None and (identity is None or identity.verdict is VerdictKind.REFUSED):
            message = f"proof_bundle.evidence_refs[{at}]: {packet_id} is no admitted packet of this session"
            yield FailedCheck("evidence_packets", message)


def _needs_others(packet: Packet, rules: VerificationRules) -> bool:
    """Return whether the artifact store or the registry must be asked."""
    if packet.packet_type is PacketType.ARTIFACT and rules.artifact_bytes != "off":
        return True
    if packet.proof_bundle is None:
        return False
    if packet.proof_bundle.signatures and rules.endorsements != "off":
        return True
    return rules.evidence_artifacts != "off" and any(True for _ in evidence_artifacts(packet))


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
