"""How packets finish: verified, then completed, promoted or superseded; or retracted by a RETRACTION."""

from datetime import datetime
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.session import session_effects
from apc_contracts.session.lifecycle import LIFECYCLE, Record, end_delivery, move, overall_state
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.session.session_effects import Effects, Hop
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.receipts import Receipt, ReceiptKind

SUPERSEDED = ["higher_conflict_resolution_arrived", "supersession_recorded"]
COMPLETABLE = frozenset({"APPLIED", "VERIFIED"})
"""States from which the gate itself finishes a delivery."""


def verify(session: Session, opened: OpenPacket, effects: Effects, contract: Contract) -> None:
    """Begin verification at the first APPLIED, once; packets with nothing to check pass at once."""
    if opened.verification:
        return
    request = session_effects.requested(session, opened.received, contract)
    if request is None:
        opened.verification = "passed"
    else:
        opened.verification = "pending"
        session.document.verifying += 1
        effects.verifications.append(request)


def settle_verification(
    session: Session, receipt: Receipt, now: datetime, effects: Effects, contract: Contract
) -> OpenPacket | None:
    """Take the result of a verification, a receipt of the orchestrator; return the packet it moves, or None."""
    opened = session.open.get(receipt.packet_id)
    if opened is None or opened.verification != "pending":
        return None
    has_passed = receipt.kind is ReceiptKind.VERIFICATION_PASS
    opened.verification = "passed" if has_passed else "failed"
    session.document.verifying -= 1
    remark = {"warning" if has_passed else "error": receipt.error} if receipt.error else None
    if has_passed and opened.packet.packet_type in contract.superseding.types and not session.is_terminal:
        # It waits: the result moves nothing yet, and must be in the log all the same.
        event = [str(receipt.kind)]
        effects.hops.append(Hop(opened.packet.packet_id, "", 1, "", "", event, [now], ORCHESTRATOR, remark))
    complete(session, opened, now, effects, contract, remark=remark)
    return opened


def complete(
    session: Session,
    opened: OpenPacket,
    now: datetime,
    effects: Effects,
    contract: Contract,
    remark: Record | None = None,
) -> None:
    """Move every machine of a packet as far as it can go now, and forget the packet when all have finished.

    `remark` is the metadata of the hops: why a verification failed, or its warnings.
    """
    is_at_end = True
    terminal = contract.machine(LIFECYCLE).terminal
    for recipient, progress in opened.recipients.items():
        # The other recipients of a packet to many are mostly in flight or finished: each receipt passes over all of
        # them.
        moves = progress.state in COMPLETABLE
        events = _completion_events(session, opened, progress, contract) if moves else []
        if events and events[0] == SUPERSEDED[0]:
            by = {"superseded_by": str(session.document.superseded[opened.packet.packet_id])}
            move(opened, recipient, progress, events, now, effects, contract, remark=by)
        elif events:
            move(opened, recipient, progress, events, now, effects, contract, remark=remark)
        is_at_end = is_at_end and progress.state in terminal and not progress.is_open
    if is_at_end and _forget(session, opened.packet.packet_id) is not None:
        ended = overall_state([progress.state for progress in opened.recipients.values()])
        session.identities[opened.packet.packet_id].ended = ended


def release_rest(session: Session, now: datetime, effects: Effects, contract: Contract) -> None:
    """Finish what waited at APPLIED or VERIFIED when the session has ended."""
    for opened in list(session.open.values()):
        if opened.completion is None:
            opened.completion = "non_promotable_complete"
        complete(session, opened, now, effects, contract)


def promote(session: Session, packet_id: UUID, now: datetime, effects: Effects, contract: Contract) -> None:
    """Promote a packet, then archive it: now if it is VERIFIED, later if it is not applied yet."""
    opened = session.open.get(packet_id)
    if opened is not None:
        opened.completion = "promotion_eligible"
        complete(session, opened, now, effects, contract)


def retract(
    session: Session, packet_id: UUID, by: str, replacement: UUID | None, now: datetime, effects: Effects
) -> None:
    """Write one row for the whole packet that ends all its machines and names its replacement."""
    opened = _forget(session, packet_id)
    identity = session.identities[packet_id]
    state, refusal = identity.ended, identity.refusal
    if refusal is not None:
        state = "EXPIRED" if refusal.code == "EXPIRED" else "REJECTED_POLICY"
    if opened is not None:
        state = overall_state([one.state for one in opened.recipients.values()])
        for recipient in opened.recipients:
            end_delivery(session, opened, recipient, effects)
    if session.held.pop(packet_id, None) is not None:
        state = "SCHEMA_VALIDATED"
    identity.retracted = True
    metadata: Record = {"ended": "retraction"}
    if replacement is not None:
        metadata["replacement"] = str(replacement)
    event = ["retraction_packet_received"]
    effects.hops.append(Hop(packet_id, "", 0, state, "RETRACTED", event, [now], by, metadata))


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
