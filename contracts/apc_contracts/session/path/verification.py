"""What must be verified of a packet, and what its session can check (docs/specification/contract.md section 8).

The rest is checked beside the gate: bytes in the artifact store, keys in the registry. The result is a receipt of the
orchestrator, so that a replay needs neither.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import VerificationRules
from apc_contracts.envelope.packet import Packet
from apc_contracts.envelope.references import (
    ARTIFACT_PREFIX,
    CLAIM_PREFIX,
    PACKET_PREFIX,
    defines,
    packet_named,
    reference_of,
)
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import ReceivedPacket


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
