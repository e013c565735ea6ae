"""What comes back about a delivery: receipts, which move its machine, and ACKs, which its sender waits for.

Receipts end an attempt or begin another; a delivery that fails permanently is told to the sender, once for each
recipient. Source: docs/specification/contract.md sections 1, 8 and 10.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from math import ceil
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import RetryBackoff
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import AckPayload, ErrorPayload, NackPayload
from apc_contracts.session import budgets, emissions
from apc_contracts.session.document import PendingAck
from apc_contracts.session.lifecycle import (
    HANDED_OVER,
    LIFECYCLE,
    Record,
    begin_verification,
    complete,
    end_delivery,
    move,
)
from apc_contracts.session.movement import Advance, Effects, Hop, Route, start_timer
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT, AckStatus, PacketType
from apc_contracts.wire.receipts import OPERATOR_KINDS, Receipt, ReceiptKind, Usage

# Retries: how often, and when the next attempt is due (docs/specification/contract.md section 8).
#
# A pure function of contract, packet, recipient and attempt: a replay finds the same delay, and deliveries that failed
# together are not retried together.

MILLISECOND = timedelta(milliseconds=1)
_GROWTH_ENDS = 64
"""A back-off that has not reached its longest delay by this attempt never does; beyond it a power could overflow."""


def backoff_ms(backoff: RetryBackoff, packet_id: UUID, recipient: str, attempt: int) -> int:
    """Return the milliseconds to wait after an attempt whose handler named no delay: the back-off, less its jitter."""
    grown = backoff.first_ms * backoff.factor ** min(attempt - 1, _GROWTH_ENDS)
    longest = min(grown, backoff.longest_ms)
    return max(1, round(longest * (1 - backoff.jitter * _share(packet_id, recipient, attempt))))


def within_limit(receipt: Receipt, packet: Packet, attempt: int, contract: Contract) -> Receipt:
    """Return the receipt, turned from `retry` into dead_lettered when it is beyond the limit.

    The first attempt is no retry.
    """
    if receipt.kind is not ReceiptKind.RETRY:
        return receipt
    named = packet.routing.retry_limit
    limit = contract.session.delivery_retry_limit if named is None else named
    if attempt <= limit:
        return receipt
    error = f"retry_limit {limit} reached: {receipt.error or 'no reason given'}"
    return replace(receipt, kind=ReceiptKind.DEAD_LETTERED, error=error)


def planned_retry(receipt: Receipt, packet: Packet, now: datetime, contract: Contract) -> dict[str, Any] | None:
    """Return what the log keeps of a `retry`: {"asked_ms"?, "delay_ms", "due_at"}; never later than the packet's end.

    At the packet's end it is not handled again: its delivery then ends as expired. None: it is due at once.
    """
    delay = _delay_ms(contract.session.retry_backoff, packet.packet_id, receipt)
    if delay is None:
        return None
    delay = min(delay, max(0, ceil((packet.expires - now) / MILLISECOND)))
    asked = {} if receipt.after_ms is None else {"asked_ms": receipt.after_ms}
    return asked | {"delay_ms": delay, "due_at": (now + delay * MILLISECOND).isoformat()}


def _delay_ms(backoff: RetryBackoff | None, packet_id: UUID, receipt: Receipt) -> int | None:
    if receipt.after_ms:
        return receipt.after_ms
    return None if backoff is None else backoff_ms(backoff, packet_id, receipt.recipient, receipt.attempt)


def due_at(planned: dict[str, Any] | None) -> datetime | None:
    """Return when the planned attempt of a retry may begin."""
    return None if planned is None else datetime.fromisoformat(planned["due_at"])


def planned_at(planned: dict[str, Any]) -> datetime:
    """Return when a retry was planned: the timestamp of its log batch."""
    due, delay_ms = datetime.fromisoformat(planned["due_at"]), int(planned["delay_ms"])
    return due - delay_ms * MILLISECOND


def _share(packet_id: UUID, recipient: str, attempt: int) -> float:
    """Return a fraction in 0..1, evenly distributed over deliveries and attempts."""
    digest = sha256(f"{packet_id}/{recipient}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


# Deliver a packet to one recipient again: asked for by the recipient, an operator, or a deadline of the orchestrator.

_AGAIN = {
    "ROUTED": ["dead_lettered", "requeued"],
    "DELIVERED": ["retry_scheduled"],
    "DEAD_LETTERED": ["requeued"],
}
"""How the orchestrator begins a new attempt. ROUTED has no edge to itself: the delivery is given up, then requeued."""


def route_again(moment: Advance, opened: OpenPacket, recipient: str, why: str) -> bool:
    """Begin a new attempt for one recipient; return False when its machine cannot go back to ROUTED."""
    progress = opened.recipients[recipient]
    before, events = progress.state, _AGAIN.get(progress.state)
    if events is None:
        return False
    for event in events:
        progress.state = moment.contract.machine(LIFECYCLE).step(progress.state, event)
    packet_id, times = opened.packet.packet_id, [moment.now] * len(events)
    metadata: Record = {"error": why}
    if progress.is_open:
        progress.given_up.add(progress.attempt)
        metadata["given_up"] = progress.attempt
    hop = Hop(packet_id, recipient, progress.attempt + 1, before, progress.state, events, times, ORCHESTRATOR, metadata)
    moment.effects.hops.append(hop)
    reroute(moment, opened, recipient)
    return True


def reroute(moment: Advance, opened: OpenPacket, recipient: str, not_before: datetime | None = None) -> None:
    """Begin a new attempt: the delivery before it has ended, so counters count one more."""
    end_delivery(moment, opened, recipient)
    progress, outstanding = opened.recipients[recipient], moment.session.outstanding
    progress.attempt += 1
    progress.is_open = True
    progress.not_before = not_before
    outstanding[recipient] = outstanding.get(recipient, 0) + 1
    moment.effects.routes.append(Route(opened.received, (recipient,), progress.attempt, not_before))


def release_retry(moment: Advance, opened: OpenPacket, progress: Progress, receipt: Receipt) -> Receipt | None:
    """Deliver a deferred retry that is due, or expire it; return None when nothing is to be logged.

    It may come twice, because a new lease holder re-arms every pending retry; the worker drops the second delivery.
    """
    if progress.not_before is None or not progress.is_open:
        return None
    if opened.packet.expires <= moment.now:
        return replace(receipt, kind=ReceiptKind.EXPIRED, at=moment.now)
    moment.effects.due.append(Route(opened.received, (receipt.recipient,), progress.attempt, progress.not_before))
    return None


# How receipts change a delivery: they move its machine, end or restart it, and charge what handling it cost.

REROUTING = frozenset({"retry_scheduled", "requeued"})
"""Events that begin a new attempt."""
ENDING_KINDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.EXPIRED, ReceiptKind.DEAD_LETTERED})


def receive(moment: Advance, arrived: Sequence[Receipt]) -> OpenPacket | None:
    """Move one recipient's machine by its receipts; return None when they change nothing."""
    first, session = arrived[0], moment.session
    opened = session.open.get(first.packet_id)
    if opened is None or first.recipient not in opened.recipients:
        _note_misdirected(session, arrived, moment.effects)
        return None
    progress = opened.recipients[first.recipient]
    if first.attempt != progress.attempt:
        _charge_late(moment, opened, progress, arrived)
        return None
    if first.kind is ReceiptKind.RETRY_DUE:
        expired = release_retry(moment, opened, progress, first)
        if expired is None:
            return None
        arrived = (expired,)
    moves = _take(moment, opened, progress, arrived)
    spent = {} if moves.told is None else _spend(moment, opened, moves.told.usage)
    _log_moves(opened, first, progress, moves, spent, moment.effects)
    if not REROUTING.isdisjoint(moves.events):
        reroute(moment, opened, first.recipient, due_at(moves.planned))
    elif moves.events:
        progress.not_before = None
    if progress.state == "APPLIED":
        begin_verification(moment, opened)
    complete(moment, opened)
    return opened


class _Moves(msgspec.Struct):
    """The effect of receipts on the machine of one delivery."""

    before: str
    events: list[str] = msgspec.field(default_factory=list)
    times: list[datetime] = msgspec.field(default_factory=list)
    ended: Receipt | None = None
    """The receipt that ended the delivery."""
    told: Receipt | None = None
    """The receipt that ended the attempt."""
    planned: Record | None = None
    """When the next attempt is due, for a retry."""


def _take(moment: Advance, opened: OpenPacket, progress: Progress, arrived: Iterable[Receipt]) -> _Moves:
    """Move the machine of one delivery by its receipts, up to the end of its attempt."""
    contract, moves = moment.contract, _Moves(progress.state)
    machine = contract.machine(LIFECYCLE)
    for received in arrived:
        receipt = within_limit(received, opened.packet, progress.attempt, contract)
        for event in _events_of(receipt.kind, progress.state):
            progress.state = machine.step(progress.state, event)
            moves.events.append(event)
            moves.times.append(receipt.time_of(event))
        if receipt.kind in ENDING_KINDS and progress.is_open:
            moves.ended = moves.told = receipt
            end_delivery(moment, opened, receipt.recipient)
        if not REROUTING.isdisjoint(moves.events):
            moves.told = receipt
            if receipt.kind is ReceiptKind.RETRY:
                moves.planned = planned_retry(receipt, opened.packet, moment.now, contract)
            break  # later receipts are about an attempt that is over
        if receipt.kind is ReceiptKind.DISCARD and moves.events[-1:] == ["discarded"]:
            moves.told = receipt
    return moves


def note_effect(moment: Advance, receipt: Receipt) -> None:
    """Log an entry about an effect, once; it moves nothing.

    The packet may have ended, and the attempt be over: an effect is often reported after both.
    """
    session, effects = moment.session, moment.effects
    packet_id, agent, told = receipt.packet_id, receipt.recipient, receipt.effect
    identity = session.identities.get(packet_id)
    is_delivered = identity is not None and identity.refusal is None and packet_id not in session.held
    if identity is None or not is_delivered or agent not in identity.recipients:
        effects.misdirected.append(receipt)
        return
    assert told is not None, "a receipt of this kind has an effect"
    if session.effects.knows(packet_id, agent, told.key, told.claim, told.entry):
        return
    if not session.effects.has_room_for(agent):
        effects.surplus.append(receipt)
        return
    number = session.effects.note(packet_id, agent, told.key, told.claim, told.entry)
    said = msgspec.to_builtins(told) | {"attempt": receipt.attempt}
    events, times = [f"effect_{told.entry}"], [receipt.at]
    # No attempt of the delivery: its hops are unique by attempt and state, and these number themselves.
    effects.hops.append(Hop(packet_id, agent, -number, "", "", events, times, receipt.by or agent, {"effect": said}))


def confirm_substrate(moment: Advance, packet_id: UUID) -> OpenPacket | None:
    """Mark a delivery confirmed by the stream as applied. None when that is known already."""
    opened = moment.session.open.get(packet_id)
    progress = opened.recipients.get(SUBSTRATE_RECIPIENT) if opened else None
    if opened is None or progress is None or not progress.is_open:
        return None
    end_delivery(moment, opened, SUBSTRATE_RECIPIENT)
    move(moment, opened, SUBSTRATE_RECIPIENT, HANDED_OVER)
    begin_verification(moment, opened)
    complete(moment, opened)
    return opened


def _events_of(kind: ReceiptKind, state: str) -> Iterable[str]:
    """Return the lifecycle events that a receipt raises in a state; a later receipt implies the earlier ones."""
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


def _log_moves(
    opened: OpenPacket, first: Receipt, progress: Progress, moves: _Moves, spent: Record, effects: Effects
) -> None:
    """Log the effect of receipts as one hop; `spent` is what handling the packet has cost."""
    events, times, after, ended = moves.events, moves.times, progress.state, moves.ended
    if not events:
        if ended is None:
            return
        events, times, after = [str(ended.kind)], [ended.at], ""
    metadata: Record = {}
    if ended is not None:
        metadata |= {"ended": str(ended.kind), "ended_at": ended.at.isoformat()}
    if moves.told is not None:
        metadata |= spent | _error_of(moves.told)
        if moves.told.set_aside:
            metadata["set_aside"] = True
    if moves.planned is not None:
        metadata["retry"] = moves.planned
    attempt = first.attempt
    is_new_attempt = after == "ROUTED"
    if is_new_attempt:
        attempt += 1
    hop = Hop(
        opened.packet.packet_id,
        first.recipient,
        attempt,
        moves.before,
        after,
        events,
        times,
        _actor_of(first),
        metadata or None,
    )
    effects.hops.append(hop)


JUDGED_AT = "judged_at"
"""Member of a hop's metadata: when the orchestrator took the receipts, where no other entry that they cause says so."""


def record_time(moment: Advance) -> None:
    """Record when these receipts were taken: a deadline began with them."""
    hops = moment.effects.hops
    if hops and not moment.effects.emissions and all(hop.actor != ORCHESTRATOR for hop in hops):
        told = {JUDGED_AT: moment.now.isoformat()}
        hops[-1] = replace(hops[-1], metadata=(hops[-1].metadata or {}) | told)


def _actor_of(receipt: Receipt) -> str:
    """Return who moved a delivery: the operator whom a requeue or a discard names, else the recipient."""
    by = receipt.by if receipt.kind in OPERATOR_KINDS else None
    return by or receipt.recipient


def _error_of(receipt: Receipt) -> Record:
    return {} if receipt.error is None else {"error": receipt.error}


def _charge_late(moment: Advance, opened: OpenPacket, progress: Progress, receipts: Iterable[Receipt]) -> None:
    """Charge the usage of a handler that ended after the orchestrator had given its attempt up, once; nothing moves."""
    for receipt in receipts:
        usage = receipt.usage
        if receipt.attempt not in progress.given_up or usage is None:
            continue
        progress.given_up.remove(receipt.attempt)
        spent = _spend(moment, opened, usage)
        metadata = {"late": str(receipt.kind)} | spent | _error_of(receipt)
        packet_id, recipient, kind = opened.packet.packet_id, receipt.recipient, str(receipt.kind)
        moment.effects.hops.append(
            Hop(packet_id, recipient, receipt.attempt, progress.state, "", [kind], [receipt.at], recipient, metadata)
        )


def _spend(moment: Advance, opened: OpenPacket, usage: Usage | None) -> Record:
    """Draw what handling a packet has cost from the budget of its task; the caller counts each receipt once.

    Returns the log's record: `usage` as reported; `usage_refused` is the part that was neither accepted nor drawn.
    """
    if usage is None:
        return {}
    document, task_id = moment.session.document, opened.packet.trace.task_id
    reported: Record = usage.amounts()
    refused: Record = {}
    for name, amount in reported.items():
        believed = budgets.believable(document, task_id, name, amount, moment.contract.limits.usage)
        if believed < amount:
            refused[name] = amount - believed
        budgets.draw(document, task_id, name, float(believed))
    return {"usage": reported} | ({"usage_refused": refused} if refused else {})


def _note_misdirected(session: Session, receipts: Iterable[Receipt], effects: Effects) -> None:
    for receipt in receipts:
        identity = session.identities.get(receipt.packet_id)
        if identity is None or receipt.recipient not in identity.recipients:
            effects.misdirected.append(receipt)


# Deliveries that failed permanently: the sender is told, once for each recipient.

HANDLER_ERROR = "handler_error"
"""The recipient gave the delivery up; its SDK has sent an ERROR already."""
OVERFLOW = "overflow"
"""The recipient's inbox was full: a later packet may find room."""
DELIVERY_FAILED = "DELIVERY_FAILED"
_MAX_REASON = 1_000


def tell_sender(moment: Advance, opened: OpenPacket, hop: Hop) -> None:
    """Send an ERROR of the orchestrator for a dead letter that its recipient could not report.

    Causes are crashes, a full or missing inbox, and retries beyond the limit. No ERROR is sent about packets that are
    never answered, nor to the orchestrator about its own.
    """
    packet, contract = opened.packet, moment.contract
    reason = str((hop.metadata or {}).get("error") or "no reason given")[:_MAX_REASON]
    sender = packet.sender.agent_id
    if reason == HANDLER_ERROR or sender == ORCHESTRATOR or packet.packet_type in contract.refusals.never_answered:
        return
    error = ErrorPayload(
        error_code=DELIVERY_FAILED,
        message=f"{hop.recipient} has not handled packet {packet.packet_id}: {reason}",
        retryable=reason == OVERFLOW,
        details={
            "packet_id": str(packet.packet_id),
            "recipient": hop.recipient,
            "attempt": hop.attempt,
            "reason": reason,
        },
    )
    emissions.emit(moment, PacketType.ERROR, error, parent=packet.packet_id, recipient=sender)


# ACKs that a session waits for: expected at routing, settled by an ACK or NACK, enforced by timers.
#
# One deadline per packet and attempt, `ack:<packet_id>:<attempt>`, covers all recipients that are missing. When it
# passes, the packet is routed to them again, up to its retry_limit; then its sender gets a NACK DEFERRED that names
# them.

ANSWERS = frozenset({PacketType.ACK, PacketType.NACK})
ACK_TIMER = "ack"
_NOT_WAITED_FOR = frozenset({ORCHESTRATOR, SUBSTRATE_RECIPIENT})


def expect_acks(moment: Advance, opened: OpenPacket) -> None:
    """Wait for the ACK of each recipient of a routed packet.

    The orchestrator, if it is a recipient, answers at once.
    """
    packet, routing = opened.packet, opened.packet.routing
    if not packet.wants_ack(moment.contract.refusals.never_answered):
        return
    if ORCHESTRATOR in opened.recipients:
        payload = AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED)
        emissions.emit(moment, PacketType.ACK, payload, parent=packet.packet_id, recipient=packet.sender.agent_id)
    missing = [recipient for recipient in opened.recipients if recipient not in _NOT_WAITED_FOR]
    if not missing:
        return
    rules = moment.contract.session
    pending = PendingAck(
        packet.sender.agent_id,
        missing,
        rules.ack_timeout_ms if routing.ack_timeout_ms is None else routing.ack_timeout_ms,
        rules.ack_retry_limit if routing.retry_limit is None else routing.retry_limit,
    )
    moment.session.document.pending_acks[packet.packet_id] = pending
    _start_ack_timer(moment, packet.packet_id, pending)


def settle_ack(moment: Advance, packet: Packet) -> dict[str, Any] | None:
    """Settle an ACK or NACK: its sender is no longer waited for.

    Returns what the log keeps with the answer: {"acknowledges": {"packet_id", "as"}}, `as` being `settled`, `late` (the
    sender was told that it is missing), `not_awaited` or `unknown` (no such packet went to this agent).
    """
    document, agent = moment.session.document, packet.sender.agent_id
    answer = packet.payload
    assert isinstance(answer, AckPayload | NackPayload), "no other type answers"
    packet_id = answer.acked_packet_id
    pending = document.pending_acks.get(packet_id)
    overdue = document.overdue_acks.get(packet_id, [])
    identity = moment.session.identity(packet_id)
    if pending is not None and agent in pending.missing:
        pending.missing.remove(agent)
        if not pending.missing:
            forget_acks(moment.session, packet_id)
        how = "settled"
    elif agent in overdue:
        overdue.remove(agent)
        if not overdue:
            del document.overdue_acks[packet_id]
        how = "late"
    elif identity is not None and identity.refusal is None and agent in identity.recipients:
        how = "not_awaited"
    elif agent == ORCHESTRATOR:
        return None  # it does not answer: it tells a sender which recipients are missing
    else:
        how = "unknown"
    return {"acknowledges": {"packet_id": str(packet_id), "as": how}}


def expire_acks(moment: Advance, packet_id: UUID) -> None:
    """Route again after the deadline of an attempt where that is possible, else tell the sender."""
    session = moment.session
    pending = session.document.pending_acks.get(packet_id)
    if pending is None:
        return
    if pending.attempt <= pending.retry_limit and _route_to_missing(moment, packet_id, pending):
        pending.attempt += 1
        _start_ack_timer(moment, packet_id, pending)
        return
    forget_acks(session, packet_id)
    _tell_of_missing(moment, packet_id, pending)
    overdue = session.document.overdue_acks
    overdue[packet_id] = pending.missing
    while len(overdue) > moment.contract.limits.pending_acks:
        del overdue[next(iter(overdue))]


def forget_acks(session: Session, packet_id: UUID) -> None:
    """Stop waiting for ACKs of this packet: all have arrived, or it was retracted."""
    pending = session.document.pending_acks.pop(packet_id, None)
    if pending is not None:
        session.document.deadlines.pop(_ack_timer(packet_id, pending), None)


def forget_all_acks(session: Session) -> None:
    """Stop waiting for any ACK: the session has ended, and its timers with it."""
    session.document.pending_acks.clear()
    session.document.overdue_acks.clear()


def packet_of_timer(kind: str) -> UUID | None:
    """Return the packet whose ACKs a kind of timer is about; None for the other kinds."""
    name, _, rest = kind.partition(":")
    return UUID(rest.partition(":")[0]) if name == ACK_TIMER else None


def _route_to_missing(moment: Advance, packet_id: UUID, pending: PendingAck) -> bool:
    """Route again to every recipient whose machine can go back to ROUTED.

    Return False when there is none, or the packet has expired.
    """
    session = moment.session
    opened = session.open.get(packet_id)
    if opened is None or opened.packet.expires <= moment.now:
        return False
    again = [route_again(moment, opened, recipient, "no ACK in time") for recipient in pending.missing]
    return any(again)


def _tell_of_missing(moment: Advance, packet_id: UUID, pending: PendingAck) -> None:
    """Send NACK DEFERRED: which recipients are missing, and the state of the packet for each."""
    opened = moment.session.open.get(packet_id)
    machines = {} if opened is None else opened.recipients
    missing = {name: machines[name].state if name in machines else "ended" for name in pending.missing}
    named = ", ".join(f"{name} ({state})" for name, state in missing.items())
    times = "once" if pending.attempt == 1 else f"{pending.attempt} times"
    reason = f"no ACK from {named}: routed {times}, {pending.timeout_ms} ms each"
    payload = NackPayload(acked_packet_id=packet_id, ack_status=AckStatus.DEFERRED, reason=reason)
    metadata = {"acknowledgement": {"missing": missing, "attempts": pending.attempt}}
    emissions.emit(moment, PacketType.NACK, payload, parent=packet_id, recipient=pending.sender, metadata=metadata)


def _start_ack_timer(moment: Advance, packet_id: UUID, pending: PendingAck) -> None:
    start_timer(moment, _ack_timer(packet_id, pending), pending.timeout_ms)


def _ack_timer(packet_id: UUID, pending: PendingAck) -> str:
    return f"{ACK_TIMER}:{packet_id}:{pending.attempt}"
