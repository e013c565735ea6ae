"""The life of a packet after its verdict: routing, receipts, verification, rest and end (contract.md section 8)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from apc_contracts.contract import Contract
from apc_contracts.parsing import ReceivedPacket
from apc_contracts.receipts import Receipt, ReceiptKind, Usage
from apc_contracts.session import budgets, retries, verification
from apc_contracts.session.effects import (
    Denial,
    Effects,
    FinalVerdict,
    Hop,
    PacketInput,
    ReceiptsInput,
    Route,
)
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.verdict import Refusal
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT, Channel, PacketType

Record = dict[str, Any]
"""JSON object of the log."""

LIFECYCLE = "packet_lifecycle"
ADMITTED = ["emit", "schema_pass", "policy_pass", "route_selected"]
RELEASED = ["policy_pass", "route_selected"]
SUPERSEDED = ["higher_conflict_resolution_arrived", "supersession_recorded"]
HANDED_OVER = ["delivery_ack", "consumer_apply"]
MEASURING_TYPES = frozenset({PacketType.TRANSFER, PacketType.EVAL})
"""Their final verdicts are what the effectiveness of protocols is computed from."""
ADVANCE = ("ROUTED", "DEAD_LETTERED", "DELIVERED", "APPLIED", "SUPERSEDED", "VERIFIED", "PROMOTED", "ARCHIVED")
"""How far a delivery has come, in the order of the diagram (contract.md section 8); the log ranks them alike."""
COMPLETABLE = frozenset({"APPLIED", "VERIFIED"})
"""From here the gate itself brings a delivery to its end."""
REROUTING = frozenset({"retry_scheduled", "requeued"})
"""Events that begin a new attempt."""
_AGAIN = {
    "ROUTED": ["dead_lettered", "requeued"],
    "DELIVERED": ["retry_scheduled"],
    "DEAD_LETTERED": ["requeued"],
}
"""How the gate itself begins a new attempt. ROUTED has no way to itself: the delivery is given up, then made again."""
ENDING_KINDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.EXPIRED, ReceiptKind.DEAD_LETTERED})


def refuse(given: PacketInput, effects: Effects) -> None:
    """The hop of a packet that was refused with an id of its own."""
    refusal = given.verdict.refusal
    is_expired = refusal is not None and refusal.code == "EXPIRED"
    event, state = ("ttl_expired", "EXPIRED") if is_expired else ("policy_fail", "REJECTED_POLICY")
    events = ["emit", "schema_pass", event]
    effects.hops.append(_whole(given.received, 1, "DRAFT", state, events, given.now))
    _note_final(given.received, refusal, effects)


def hold(given: PacketInput, effects: Effects) -> None:
    """The hop of a held packet: it stays SCHEMA_VALIDATED."""
    hop = _whole(given.received, 1, "DRAFT", "SCHEMA_VALIDATED", ["emit", "schema_pass"], given.now)
    effects.hops.append(hop)


def deny(
    session: Session,
    received: ReceivedPacket,
    refusal: Refusal,
    now: datetime,
    effects: Effects,
    record: Record | None = None,
) -> None:
    """The hop of a held packet that was refused in the end; it keeps the reason, and the sender gets a NACK.

    The identity keeps it too: whoever sends the packet again is told again.
    `record` holds the facts of a ruling at a barrier or at RESUME, for a replay.
    """
    is_expired = refusal.code == "EXPIRED"
    event, state = ("ttl_expired", "EXPIRED") if is_expired else ("policy_fail", "REJECTED_POLICY")
    metadata: Record = {"refusal": refusal.document}
    if record is not None:
        metadata["facts"] = record
    packet_id = received.packet.packet_id
    session.identities[packet_id].refusal = refusal
    hop = Hop(packet_id, "", 1, "SCHEMA_VALIDATED", state, [event], [now], ORCHESTRATOR, metadata)
    effects.hops.append(hop)
    effects.denials.append(Denial(received, refusal))
    _note_final(received, refusal, effects)


def route(
    session: Session,
    received: ReceivedPacket,
    recipients: tuple[str, ...],
    packet_round: int,
    now: datetime,
    effects: Effects,
    *,
    was_held: bool = False,
    record: Record | None = None,
    note: Record | None = None,
) -> OpenPacket:
    """Open one machine per recipient; those that live in the gate itself are finished by `apply_locally`.

    The hop keeps `record`, the facts of a ruling at a barrier or at RESUME, and `note`.
    """
    start, events = ("SCHEMA_VALIDATED", RELEASED) if was_held else ("DRAFT", ADMITTED)
    metadata = note if record is None else {"facts": record} | (note or {})
    effects.hops.append(_whole(received, 1, start, "ROUTED", events, now, metadata))
    _note_final(received, None, effects)
    opened = OpenPacket(received, packet_round, {})
    session.open[received.packet.packet_id] = opened
    remote = []
    for recipient in recipients:
        is_remote = not _is_in_gate(opened, recipient)
        opened.recipients[recipient] = Progress("ROUTED", 1, is_open=is_remote)
        if is_remote:
            remote.append(recipient)
            session.outstanding[recipient] = session.outstanding.get(recipient, 0) + 1
    if remote:
        effects.routes.append(Route(received, tuple(remote), 1))
    return opened


def apply_locally(session: Session, opened: OpenPacket, now: datetime, effects: Effects, contract: Contract) -> None:
    """Delivered and applied in the gate's own hop: the recipient `orchestrator`, and INTRA_AGENT packets."""
    for recipient, progress in opened.recipients.items():
        if _is_in_gate(opened, recipient):
            _move(opened, recipient, progress, HANDED_OVER, now, effects, contract)
            verify(session, opened, effects, contract)
    complete(session, opened, now, effects, contract)


def receive(session: Session, given: ReceiptsInput, effects: Effects, contract: Contract) -> OpenPacket | None:
    """Move one recipient's machine by its receipts; None when they change nothing."""
    first = given.receipts[0]
    arrived = given.receipts
    opened = session.open.get(first.packet_id)
    if opened is None or first.recipient not in opened.recipients:
        _note_strangers(session, given.receipts, effects)
        return None
    progress, machine = opened.recipients[first.recipient], contract.machine(LIFECYCLE)
    if first.attempt != progress.attempt:
        _charge_late(session, opened, progress, given.receipts, effects)
        return None
    if first.kind is ReceiptKind.RETRY_DUE:
        expired = _release_retry(opened, progress, first, given.now, effects)
        if expired is None:
            return None
        arrived = (expired,)
    events: list[str] = []
    times: list[datetime] = []
    before, ended, told, planned = progress.state, None, None, None
    for received in arrived:
        receipt = retries.within_limit(received, opened.packet, progress.attempt, contract)
        for event in _events_of(receipt.kind, progress.state):
            progress.state = machine.step(progress.state, event)
            events.append(event)
            times.append(receipt.at)
        if receipt.kind in ENDING_KINDS and progress.is_open:
            ended = told = receipt
            end_delivery(session, progress, first.recipient, effects)
        if not REROUTING.isdisjoint(events):
            told = receipt
            if receipt.kind is ReceiptKind.RETRY:
                planned = retries.plan(receipt, opened.packet, given.now, contract)
            break  # what follows speaks of an attempt that is over
        if receipt.kind is ReceiptKind.DISCARD and events[-1:] == ["discarded"]:
            told = receipt
    _log_receipts(opened, first, before, progress, events, times, ended, told, planned, effects)
    if told is not None and told.usage is not None:
        spend(session, opened, told.usage)
    if not REROUTING.isdisjoint(events):
        _reroute(session, opened, first.recipient, progress, effects, retries.due_at(planned))
    elif events:
        progress.not_before = None
    if progress.state == "APPLIED":
        verify(session, opened, effects, contract)
    complete(session, opened, given.now, effects, contract)
    return opened


def verify(session: Session, opened: OpenPacket, effects: Effects, contract: Contract) -> None:
    """Verification begins at the first APPLIED and runs once; what has nothing to be checked passes at once."""
    if opened.verification:
        return
    request = verification.requested(session, opened.received, contract)
    if request is None:
        opened.verification = "passed"
    else:
        opened.verification = "pending"
        session.document.verifying += 1
        effects.verifications.append(request)


def settle_verification(
    session: Session, receipt: Receipt, now: datetime, effects: Effects, contract: Contract
) -> OpenPacket | None:
    """The result of a verification, as a receipt of the orchestrator."""
    opened = session.open.get(receipt.packet_id)
    if opened is None or opened.verification != "pending":
        return None
    has_passed = receipt.kind is ReceiptKind.VERIFICATION_PASS
    opened.verification = "passed" if has_passed else "failed"
    session.document.verifying -= 1
    remark = {"warning" if has_passed else "error": receipt.error} if receipt.error else None
    if has_passed and opened.packet.packet_type in contract.superseding.types and not session.is_terminal:
        # It rests: the result moves nothing yet, and must be in the log all the same.
        event = [str(receipt.kind)]
        effects.hops.append(Hop(opened.packet.packet_id, "", 1, "", "", event, [now], ORCHESTRATOR, remark))
    complete(session, opened, now, effects, contract, remark)
    return opened


def complete(
    session: Session,
    opened: OpenPacket,
    now: datetime,
    effects: Effects,
    contract: Contract,
    remark: Record | None = None,
) -> None:
    """Bring every machine of a packet as far as it can go now, and forget the packet when all are at their end.

    `remark` is the metadata of the hops: why a verification failed, or what it warns of.
    """
    is_at_end = True
    terminal = contract.machine(LIFECYCLE).terminal
    for recipient, progress in opened.recipients.items():
        # Of a packet to many the others are mostly on their way or at their end: each receipt passes by all of them.
        moves = progress.state in COMPLETABLE
        events = _completion_events(session, opened, progress, contract) if moves else []
        if events and events[0] == SUPERSEDED[0]:
            by = {"superseded_by": str(session.document.superseded[opened.packet.packet_id])}
            _move(opened, recipient, progress, events, now, effects, contract, by)
        elif events:
            _move(opened, recipient, progress, events, now, effects, contract, remark)
        is_at_end = is_at_end and progress.state in terminal and not progress.is_open
    if is_at_end and _forget(session, opened.packet.packet_id) is not None:
        ended = overall_state([progress.state for progress in opened.recipients.values()])
        session.identities[opened.packet.packet_id].ended = ended


def release_rest(session: Session, now: datetime, effects: Effects, contract: Contract) -> None:
    """The session has ended: what rested at APPLIED or VERIFIED goes to its end."""
    for opened in list(session.open.values()):
        if opened.completion is None:
            opened.completion = "non_promotable_complete"
        complete(session, opened, now, effects, contract)


def promote(session: Session, packet_id: UUID, now: datetime, effects: Effects, contract: Contract) -> None:
    """PROMOTED, then ARCHIVED: now where it is VERIFIED, later where it is not applied yet."""
    opened = session.open.get(packet_id)
    if opened is not None:
        opened.completion = "promotion_eligible"
        complete(session, opened, now, effects, contract)


def retract(
    session: Session, packet_id: UUID, by: str, replacement: UUID | None, now: datetime, effects: Effects
) -> None:
    """One row for the whole packet; it ends all its machines. It says what stands in the packet's place."""
    opened = _forget(session, packet_id)
    identity = session.identities[packet_id]
    state, refusal = identity.ended, identity.refusal
    if refusal is not None:
        state = "EXPIRED" if refusal.code == "EXPIRED" else "REJECTED_POLICY"
    if opened is not None:
        state = overall_state([one.state for one in opened.recipients.values()])
        for recipient, progress in opened.recipients.items():
            end_delivery(session, progress, recipient, effects)
    if session.held.pop(packet_id, None) is not None:
        state = "SCHEMA_VALIDATED"
    identity.retracted = True
    metadata: Record = {"ended": "retraction"}
    if replacement is not None:
        metadata["replacement"] = str(replacement)
    event = ["retraction_packet_received"]
    effects.hops.append(Hop(packet_id, "", 0, state, "RETRACTED", event, [now], by, metadata))


def overall_state(states: Sequence[str]) -> str:
    """Of a routed packet: the least advanced recipient's. Rejected and expired ones do not hold the rest back."""
    advancing = [state for state in states if state in ADVANCE]
    return min(advancing, key=ADVANCE.index) if advancing else min(states, default="ROUTED")


def confirm_substrate(
    session: Session, packet_id: UUID, now: datetime, effects: Effects, contract: Contract
) -> OpenPacket | None:
    """The stream has confirmed: delivered and applied. None when that is known already."""
    opened = session.open.get(packet_id)
    progress = opened.recipients.get(SUBSTRATE_RECIPIENT) if opened else None
    if opened is None or progress is None or not progress.is_open:
        return None
    end_delivery(session, progress, SUBSTRATE_RECIPIENT, effects)
    _move(opened, SUBSTRATE_RECIPIENT, progress, HANDED_OVER, now, effects, contract)
    verify(session, opened, effects, contract)
    complete(session, opened, now, effects, contract)
    return opened


def end_delivery(session: Session, progress: Progress, recipient: str, effects: Effects) -> None:
    """The delivery no longer counts as outstanding."""
    if not progress.is_open:
        return
    progress.is_open = False
    effects.ended.append(recipient)
    left = session.outstanding[recipient] - 1
    if left:
        session.outstanding[recipient] = left
    else:
        del session.outstanding[recipient]


def spend(session: Session, opened: OpenPacket, usage: Usage) -> None:
    """Draw what handling a packet has cost from the budget of its task; receipts are counted once by their caller."""
    for name, amount in (("tokens", usage.tokens), ("cost", usage.cost)):
        budgets.draw(session.document, opened.packet.trace.task_id, name, float(amount or 0))


def _events_of(kind: ReceiptKind, state: str) -> Iterable[str]:
    """The lifecycle events that a receipt raises in a state; a later receipt implies the earlier ones."""
    handed = ["delivery_ack"] if state == "ROUTED" else []
    if kind is ReceiptKind.DELIVERY_ACK:
        return handed
    if kind in (ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME):
        return [*handed, "consumer_apply"] if state in ("ROUTED", "DELIVERED") else []
    if kind is ReceiptKind.EXPIRED:
        return {"ROUTED": ["ttl_expired"], "DELIVERED": ["expired_before_handler"]}.get(state, [])
    if kind is ReceiptKind.DEAD_LETTERED:
        return ["dead_lettered"] if state in ("ROUTED", "DELIVERED") else []
    if kind in (ReceiptKind.REQUEUE, ReceiptKind.DISCARD):
        event = "requeued" if kind is ReceiptKind.REQUEUE else "discarded"
        return [event] if state == "DEAD_LETTERED" else []
    if kind not in (ReceiptKind.REJECT, ReceiptKind.RETRY):
        return []
    if state not in ("ROUTED", "DELIVERED"):
        return []
    return [*handed, "consumer_reject" if kind is ReceiptKind.REJECT else "retry_scheduled"]


def _forget(session: Session, packet_id: UUID) -> OpenPacket | None:
    """All machines of a packet are at their end."""
    opened = session.open.pop(packet_id, None)
    if opened is not None and opened.verification == "pending":
        session.document.verifying -= 1
    session.document.superseded.pop(packet_id, None)
    return opened


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


def _move(
    opened: OpenPacket,
    recipient: str,
    progress: Progress,
    events: list[str],
    now: datetime,
    effects: Effects,
    contract: Contract,
    remark: Record | None = None,
) -> None:
    before, machine = progress.state, contract.machine(LIFECYCLE)
    for event in events:
        progress.state = machine.step(progress.state, event)
    packet_id = opened.packet.packet_id
    times = [now] * len(events)
    hop = Hop(packet_id, recipient, progress.attempt, before, progress.state, events, times, ORCHESTRATOR, remark)
    effects.hops.append(hop)


def _is_in_gate(opened: OpenPacket, recipient: str) -> bool:
    return recipient == ORCHESTRATOR or opened.packet.channel is Channel.INTRA_AGENT


def _log_receipts(
    opened: OpenPacket,
    first: Receipt,
    before: str,
    progress: Progress,
    events: list[str],
    times: list[datetime],
    ended: Receipt | None,
    told: Receipt | None,
    planned: Record | None,
    effects: Effects,
) -> None:
    """`told` is the receipt that ended the attempt, `ended` the same if the delivery is over with it; `planned` says
    when the next attempt of a retry is due."""
    if not events:
        if ended is None:
            return
        events, times, after = [str(ended.kind)], [ended.at], ""
    else:
        after = progress.state
    metadata: Record = {}
    if ended is not None:
        metadata |= {"ended": str(ended.kind), "ended_at": ended.at.isoformat()}
    if told is not None:
        metadata |= _told(told)
    if planned is not None:
        metadata["retry"] = planned
    attempt = first.attempt
    is_new_attempt = after == "ROUTED"
    if is_new_attempt:
        attempt += 1
    hop = Hop(
        opened.packet.packet_id,
        first.recipient,
        attempt,
        before,
        after,
        events,
        times,
        first.recipient,
        metadata or None,
    )
    effects.hops.append(hop)


def _told(receipt: Receipt) -> Record:
    """What a receipt says beside its kind."""
    said: Record = {}
    if receipt.usage is not None:
        said["usage"] = receipt.usage.model_dump(exclude_none=True)
    if receipt.error is not None:
        said["error"] = receipt.error
    return said


def _charge_late(
    session: Session, opened: OpenPacket, progress: Progress, receipts: Iterable[Receipt], effects: Effects
) -> None:
    """A handler ended after the gate had given its attempt up: what it spent is spent, once. It moves nothing."""
    for receipt in receipts:
        usage = receipt.usage
        if receipt.attempt not in progress.given_up or usage is None:
            continue
        progress.given_up.remove(receipt.attempt)
        spend(session, opened, usage)
        metadata = {"late": str(receipt.kind)} | _told(receipt)
        packet_id, recipient, kind = opened.packet.packet_id, receipt.recipient, str(receipt.kind)
        effects.hops.append(
            Hop(packet_id, recipient, receipt.attempt, progress.state, "", [kind], [receipt.at], recipient, metadata)
        )


def _reroute(
    session: Session,
    opened: OpenPacket,
    recipient: str,
    progress: Progress,
    effects: Effects,
    not_before: datetime | None = None,
) -> None:
    """A new attempt: the delivery before it has ended, whoever counts them counts one more."""
    end_delivery(session, progress, recipient, effects)
    progress.attempt += 1
    progress.is_open = True
    progress.not_before = not_before
    session.outstanding[recipient] = session.outstanding.get(recipient, 0) + 1
    effects.routes.append(Route(opened.received, (recipient,), progress.attempt, not_before))


def _release_retry(
    opened: OpenPacket, progress: Progress, receipt: Receipt, now: datetime, effects: Effects
) -> Receipt | None:
    """A retry that was put off is due: it is delivered, or has expired meanwhile. None when nothing is to be logged.

    It may come twice, for whoever takes a shard puts off anew what waits; the worker drops the second delivery.
    """
    if progress.not_before is None or not progress.is_open:
        return None
    if opened.packet.expires <= now:
        return receipt.model_copy(update={"kind": ReceiptKind.EXPIRED, "at": now})
    effects.due.append(Route(opened.received, (receipt.recipient,), progress.attempt, progress.not_before))
    return None


def route_again(
    session: Session,
    opened: OpenPacket,
    recipient: str,
    why: str,
    now: datetime,
    effects: Effects,
    contract: Contract,
) -> bool:
    """Begin a new attempt for one recipient; False when its machine cannot go back to ROUTED."""
    progress = opened.recipients[recipient]
    before, events = progress.state, _AGAIN.get(progress.state)
    if events is None:
        return False
    for event in events:
        progress.state = contract.machine(LIFECYCLE).step(progress.state, event)
    packet_id, times = opened.packet.packet_id, [now] * len(events)
    metadata: Record = {"error": why}
    if progress.is_open:
        progress.given_up.add(progress.attempt)
        metadata["given_up"] = progress.attempt
    hop = Hop(packet_id, recipient, progress.attempt + 1, before, progress.state, events, times, ORCHESTRATOR, metadata)
    effects.hops.append(hop)
    _reroute(session, opened, recipient, progress, effects)
    return True


def _note_final(received: ReceivedPacket, refusal: Refusal | None, effects: Effects) -> None:
    if received.packet.packet_type in MEASURING_TYPES:
        effects.final_verdicts.append(FinalVerdict(received.packet, None if refusal is None else refusal.code))


def _note_strangers(session: Session, receipts: Iterable[Receipt], effects: Effects) -> None:
    for receipt in receipts:
        identity = session.identities.get(receipt.packet_id)
        if identity is None or receipt.recipient not in identity.recipients:
            effects.strangers.append(receipt)


def _whole(
    received: ReceivedPacket,
    attempt: int,
    before: str,
    after: str,
    events: list[str],
    now: datetime,
    metadata: Record | None = None,
) -> Hop:
    packet = received.packet
    actor = ORCHESTRATOR if events[0] != "emit" else packet.sender.agent_id
    return Hop(packet.packet_id, "", attempt, before, after, events, [now] * len(events), actor, metadata)
