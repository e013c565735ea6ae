"""The lifecycle of a packet for one recipient: who it goes to, its machine's moves, its verification, its end.

It is moved by a verdict (`verdicts`), by receipts and new attempts (`receipts`), and, once it is applied, by the
orchestrator itself. Source: docs/specification/contract.md section 8.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apc_contracts.admission.rules.routing import is_ask, reached
from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import VerificationRules
from apc_contracts.identity.registry import CLIENT, Registration
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.packet import (
    ARTIFACT_PREFIX,
    CLAIM_PREFIX,
    PACKET_PREFIX,
    Packet,
    defines,
    packet_named,
    reference_of,
)
from apc_contracts.session.movement import Advance, FailedCheck, Hop, Verification
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    CONTROL_TYPES,
    ORCHESTRATOR,
    SUBSTRATE_RECIPIENT,
    Channel,
    PacketType,
)
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt, ReceiptKind

Record = dict[str, Any]
"""JSON object of the log."""

LIFECYCLE = "packet_lifecycle"
ADMITTED = ["emit", "schema_pass", "policy_pass", "route_selected"]
HANDED_OVER = ["delivery_ack", "consumer_apply"]
ADVANCE = ("ROUTED", "DEAD_LETTERED", "DELIVERED", "APPLIED", "SUPERSEDED", "VERIFIED", "PROMOTED", "ARCHIVED")
"""How far a delivery has come, in the order of the diagram (docs/specification/contract.md section 8).

The log ranks them alike.
"""


def move(
    moment: Advance,
    opened: OpenPacket,
    recipient: str,
    events: list[str],
    *,
    remark: Record | None = None,
) -> None:
    """Take the events of one of the orchestrator's own hops; `remark` is the hop's metadata."""
    progress, machine = opened.recipients[recipient], moment.contract.machine(LIFECYCLE)
    before = progress.state
    for event in events:
        progress.state = machine.step(progress.state, event)
    packet_id = opened.packet.packet_id
    times = [moment.now] * len(events)
    hop = Hop(packet_id, recipient, progress.attempt, before, progress.state, events, times, ORCHESTRATOR, remark)
    moment.effects.hops.append(hop)


def end_delivery(moment: Advance, opened: OpenPacket, recipient: str) -> None:
    """Stop counting the delivery as outstanding."""
    session, effects, progress = moment.session, moment.effects, opened.recipients[recipient]
    if not progress.is_open:
        return
    progress.is_open = False
    effects.ended.append(recipient)
    effects.ended_senders.append(opened.packet.sender.agent_id)
    left = session.outstanding[recipient] - 1
    if left:
        session.outstanding[recipient] = left
    else:
        del session.outstanding[recipient]


def overall_state(states: Sequence[str]) -> str:
    """Return a routed packet's state: the least advanced recipient's. Rejected and expired ones do not count."""
    advancing = [state for state in states if state in ADVANCE]
    return min(advancing, key=ADVANCE.index) if advancing else min(states, default="ROUTED")


# Who a packet goes to: `_all` expanded from the session's members and the registry.


def ends_at_gate(packet: Packet) -> bool:
    """Return whether a packet has the form of one that ends here if its recipient is the client of a run."""
    first, is_control = packet.recipients[0], packet.packet_type in CONTROL_TYPES
    is_direct = packet.channel is Channel.INTER_AGENT and len(packet.recipients) == 1
    return is_control and is_direct and first.agent_id.startswith(f"{CLIENT}-") and not is_ask(packet)


def resolve_recipients(packet: Packet, session: Session, registry: Mapping[str, Registration]) -> tuple[str, ...]:
    """Return the agent_ids a packet is delivered to, in a fixed order; the sender of a BROADCAST is left out.

    A BROADCAST that no member handles goes to the orchestrator alone: it is never UNROUTABLE, and it comes to an end.
    So does what a client of a run is told, because the client reads the log.
    """
    first = packet.recipients[0]
    named = registry.get(first.agent_id)
    if named is not None and named.is_run_client and ends_at_gate(packet):
        return (ORCHESTRATOR,)
    found = reached(packet, session.members, registry, session)
    return found or (ORCHESTRATOR,) if first.agent_id == ALL_RECIPIENTS else found


# What a repeat does: deliveries of the packet that may still be missing are sent again, and no others.
#
# A delivery that the broker has confirmed is in the inbox until it ends: another one would only fill the inbox. This is
# the orchestrator's memory of one epoch and not part of the log; a new lease holder delivers again.


def confirm_delivery(opened: OpenPacket, recipient: str, attempt: int) -> None:
    """Note that the broker has confirmed this delivery."""
    progress = opened.recipients.get(recipient)
    if progress is not None and progress.attempt == attempt:
        progress.confirmed = attempt


def confirm_all(session: Session) -> None:
    """Note that every delivery of the session that is in flight was confirmed before."""
    for opened in session.open.values():
        for progress in opened.recipients.values():
            progress.confirmed = progress.attempt


def deliveries_to_repeat(opened: OpenPacket, now: datetime, interval: timedelta) -> Iterator[tuple[str, Progress]]:
    """Yield the recipients that a repeat is delivered to: open, not confirmed, and once per interval."""
    for recipient, progress in opened.recipients.items():
        is_missing = progress.is_open and progress.confirmed != progress.attempt and recipient != SUBSTRATE_RECIPIENT
        if not is_missing or (progress.repeated_at is not None and now - progress.repeated_at < interval):
            continue
        progress.repeated_at = now
        yield recipient, progress


# What must be verified of a packet, and what its session can check (docs/specification/contract.md section 8).
#
# The rest is checked beside the gate: bytes in the artifact store, keys in the registry. The result is a receipt of the
# orchestrator, so that a replay needs neither.


def verification_needed(session: Session, received: ReceivedPacket, contract: Contract) -> Verification | None:
    """Return what to verify beside the gate.

    None when the session's memory is enough and nothing is wrong.
    """
    rules, packet = contract.verification, received.packet
    findings = tuple(finding for finding in _findings(session, packet) if getattr(rules, finding.check) != "off")
    if findings or _needs_others(packet, rules):
        return Verification(received, findings)
    return None


def verification_again(session: Session, received: ReceivedPacket) -> Verification:
    """Return a verification that has begun and has no result: again, by what the session knows now."""
    return Verification(received, tuple(_findings(session, received.packet)))


def evidence_artifacts(packet: Packet) -> Iterator[tuple[int, str]]:
    """Yield place and hash of each evidence_ref that names an artifact."""
    if packet.proof_bundle is not None:
        for at, text in enumerate(packet.proof_bundle.evidence_refs):
            reference = reference_of(text)
            if reference is not None and reference.startswith(ARTIFACT_PREFIX):
                yield at, reference


def verification_ruling(findings: Sequence[FailedCheck], rules: VerificationRules) -> tuple[bool, str | None]:
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


# How packets finish: verified, then completed, promoted or superseded; or retracted by a RETRACTION.

SUPERSEDED = ["higher_conflict_resolution_arrived", "supersession_recorded"]
COMPLETABLE = frozenset({"APPLIED", "VERIFIED"})
"""States from which the orchestrator itself finishes a delivery."""


def begin_verification(moment: Advance, opened: OpenPacket) -> None:
    """Begin verification at the first APPLIED, once; packets with nothing to check pass at once."""
    if opened.verification:
        return
    request = verification_needed(moment.session, opened.received, moment.contract)
    if request is None:
        opened.verification = "passed"
    else:
        opened.verification = "pending"
        moment.session.document.verifying += 1
        moment.effects.verifications.append(request)


def settle_verification(moment: Advance, receipt: Receipt) -> OpenPacket | None:
    """Take the result of a verification, a receipt of the orchestrator; return the packet it moves, or None."""
    session = moment.session
    opened = session.open.get(receipt.packet_id)
    if opened is None or opened.verification != "pending":
        return None
    has_passed = receipt.kind is ReceiptKind.VERIFICATION_PASS
    opened.verification = "passed" if has_passed else "failed"
    session.document.verifying -= 1
    remark = {"warning" if has_passed else "error": receipt.error} if receipt.error else None
    if has_passed and opened.packet.packet_type in moment.contract.superseding.types and not session.is_terminal:
        # It waits: the result moves nothing yet, and must be in the log all the same.
        packet_id, event = opened.packet.packet_id, [str(receipt.kind)]
        moment.effects.hops.append(Hop(packet_id, "", 1, "", "", event, [moment.now], ORCHESTRATOR, remark))
    complete(moment, opened, remark)
    return opened


def complete(moment: Advance, opened: OpenPacket, remark: Record | None = None) -> None:
    """Move every machine of a packet as far as it can go now, and forget the packet when all have finished.

    `remark` is the metadata of the hops: why a verification failed, or its warnings.
    """
    is_at_end, session, contract = True, moment.session, moment.contract
    terminal = contract.machine(LIFECYCLE).terminal
    for recipient, progress in opened.recipients.items():
        # The other recipients of a packet to many are mostly in flight or finished: each receipt passes over all of
        # them.
        moves = progress.state in COMPLETABLE
        events = _completion_events(session, opened, progress, contract) if moves else []
        if events and events[0] == SUPERSEDED[0]:
            by = {"superseded_by": str(session.document.superseded[opened.packet.packet_id])}
            move(moment, opened, recipient, events, remark=by)
        elif events:
            move(moment, opened, recipient, events, remark=remark)
        is_at_end = is_at_end and progress.state in terminal and not progress.is_open
    if is_at_end and _forget(session, opened.packet.packet_id) is not None:
        ended = overall_state([progress.state for progress in opened.recipients.values()])
        session.identities[opened.packet.packet_id].ended = ended


def release_rest(moment: Advance) -> None:
    """Finish what waited at APPLIED or VERIFIED when the session has ended."""
    for opened in list(moment.session.open.values()):
        if opened.completion is None:
            opened.completion = "non_promotable_complete"
        complete(moment, opened)


def promote(moment: Advance, packet_id: UUID) -> None:
    """Promote a packet, then archive it: now if it is VERIFIED, later if it is not applied yet."""
    opened = moment.session.open.get(packet_id)
    if opened is not None:
        opened.completion = "promotion_eligible"
        complete(moment, opened)


def retract(moment: Advance, packet_id: UUID, by: str, replacement: UUID | None) -> None:
    """Write one row for the whole packet that ends all its machines and names its replacement."""
    session = moment.session
    opened = _forget(session, packet_id)
    identity = session.identities[packet_id]
    state, refusal = identity.ended, identity.refusal
    if refusal is not None:
        state = "EXPIRED" if refusal.code == "EXPIRED" else "REJECTED_POLICY"
    if opened is not None:
        state = overall_state([one.state for one in opened.recipients.values()])
        for recipient in opened.recipients:
            end_delivery(moment, opened, recipient)
    if session.held.pop(packet_id, None) is not None:
        state = "SCHEMA_VALIDATED"
    identity.retracted = True
    metadata: Record = {"ended": "retraction"}
    if replacement is not None:
        metadata["replacement"] = str(replacement)
    event = ["retraction_packet_received"]
    moment.effects.hops.append(Hop(packet_id, "", 0, state, "RETRACTED", event, [moment.now], by, metadata))


def _completion_events(session: Session, opened: OpenPacket, progress: Progress, contract: Contract) -> list[str]:
    events = []
    if progress.state == "APPLIED":
        if opened.verification == "failed":
            return ["verification_fail"]
        if opened.packet.packet_id in session.document.superseded:
            return SUPERSEDED
        is_resting = opened.packet.packet_type in contract.superseding.types and not session.is_terminal
        if opened.verification != "passed" or is_resting:
            return []
        events.append("verification_pass")
    if opened.completion == "promotion_eligible":
        events += ["promotion_eligible", "persisted"]
    elif opened.completion is not None:
        events.append(opened.completion)
    return events


def _forget(session: Session, packet_id: UUID) -> OpenPacket | None:
    """Forget a packet whose machines have all finished."""
    opened: OpenPacket | None = session.open.pop(packet_id, None)
    if opened is not None and opened.verification == "pending":
        session.document.verifying -= 1
    session.document.superseded.pop(packet_id, None)
    return opened
