"""How receipts change a delivery: they move its machine, end or restart it, and charge what handling it cost."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from apc_contracts.contract.contract import Contract
from apc_contracts.session import budgets
from apc_contracts.session.delivery import retries
from apc_contracts.session.delivery.lifecycle import HANDED_OVER, LIFECYCLE, Record, end_delivery, move
from apc_contracts.session.delivery.rerouting import release_retry, reroute
from apc_contracts.session.path.completion import complete, verify
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.session.session_effects import Effects, Hop, ReceiptsInput
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT
from apc_contracts.wire.receipts import OPERATOR_KINDS, Receipt, ReceiptKind, Usage

REROUTING = frozenset({"retry_scheduled", "requeued"})
"""Events that begin a new attempt."""
ENDING_KINDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.EXPIRED, ReceiptKind.DEAD_LETTERED})


def receive(session: Session, given: ReceiptsInput, effects: Effects, contract: Contract) -> OpenPacket | None:
    """Move one recipient's machine by its receipts; return None when they change nothing."""
    first = given.receipts[0]
    arrived = given.receipts
    opened = session.open.get(first.packet_id)
    if opened is None or first.recipient not in opened.recipients:
        _note_misdirected(session, given.receipts, effects)
        return None
    progress = opened.recipients[first.recipient]
    if first.attempt != progress.attempt:
        _charge_late(session, opened, progress, given.receipts, effects, contract)
        return None
    if first.kind is ReceiptKind.RETRY_DUE:
        expired = release_retry(opened, progress, first, given.now, effects)
        if expired is None:
            return None
        arrived = (expired,)
    moves = _take(session, opened, progress, arrived, given.now, effects, contract)
    spent = {} if moves.told is None else _spend(session, opened, moves.told.usage, contract)
    _log_moves(opened, first, progress, moves, spent, effects)
    if not REROUTING.isdisjoint(moves.events):
        reroute(session, opened, first.recipient, progress, effects, retries.due_at(moves.planned))
    elif moves.events:
        progress.not_before = None
    if progress.state == "APPLIED":
        verify(session, opened, effects, contract)
    complete(session, opened, given.now, effects, contract)
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


def _take(
    session: Session,
    opened: OpenPacket,
    progress: Progress,
    arrived: Iterable[Receipt],
    now: datetime,
    effects: Effects,
    contract: Contract,
) -> _Moves:
    """Move the machine of one delivery by its receipts, up to the end of its attempt."""
    machine, moves = contract.machine(LIFECYCLE), _Moves(progress.state)
    for received in arrived:
        receipt = retries.within_limit(received, opened.packet, progress.attempt, contract)
        for event in _events_of(receipt.kind, progress.state):
            progress.state = machine.step(progress.state, event)
            moves.events.append(event)
            moves.times.append(receipt.time_of(event))
        if receipt.kind in ENDING_KINDS and progress.is_open:
            moves.ended = moves.told = receipt
            end_delivery(session, opened, receipt.recipient, effects)
        if not REROUTING.isdisjoint(moves.events):
            moves.told = receipt
            if receipt.kind is ReceiptKind.RETRY:
                moves.planned = retries.plan(receipt, opened.packet, now, contract)
            break  # later receipts are about an attempt that is over
        if receipt.kind is ReceiptKind.DISCARD and moves.events[-1:] == ["discarded"]:
            moves.told = receipt
    return moves


def confirm_substrate(
    session: Session, packet_id: UUID, now: datetime, effects: Effects, contract: Contract
) -> OpenPacket | None:
    """Mark a delivery confirmed by the stream as applied. None when that is known already."""
    opened = session.open.get(packet_id)
    progress = opened.recipients.get(SUBSTRATE_RECIPIENT) if opened else None
    if opened is None or progress is None or not progress.is_open:
        return None
    end_delivery(session, opened, SUBSTRATE_RECIPIENT, effects)
    move(opened, SUBSTRATE_RECIPIENT, progress, HANDED_OVER, now, effects, contract)
    verify(session, opened, effects, contract)
    complete(session, opened, now, effects, contract)
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


def _actor_of(receipt: Receipt) -> str:
    """Return who moved a delivery: the operator whom a requeue or a discard names, else the recipient."""
    by = receipt.by if receipt.kind in OPERATOR_KINDS else None
    return by or receipt.recipient


def _error_of(receipt: Receipt) -> Record:
    return {} if receipt.error is None else {"error": receipt.error}


def _charge_late(
    session: Session,
    opened: OpenPacket,
    progress: Progress,
    receipts: Iterable[Receipt],
    effects: Effects,
    contract: Contract,
) -> None:
    """Charge the usage of a handler that ended after the gate had given its attempt up, once; nothing moves."""
    for receipt in receipts:
        usage = receipt.usage
        if receipt.attempt not in progress.given_up or usage is None:
            continue
        progress.given_up.remove(receipt.attempt)
        spent = _spend(session, opened, usage, contract)
        metadata = {"late": str(receipt.kind)} | spent | _error_of(receipt)
        packet_id, recipient, kind = opened.packet.packet_id, receipt.recipient, str(receipt.kind)
        effects.hops.append(
            Hop(packet_id, recipient, receipt.attempt, progress.state, "", [kind], [receipt.at], recipient, metadata)
        )


def _spend(session: Session, opened: OpenPacket, usage: Usage | None, contract: Contract) -> Record:
    """Draw what handling a packet has cost from the budget of its task; the caller counts each receipt once.

    Returns the log's record: `usage` as reported; `usage_refused` is the part that was neither accepted nor drawn.
    """
    if usage is None:
        return {}
    document, task_id = session.document, opened.packet.trace.task_id
    told: Record = usage.amounts()
    refused: Record = {}
    for name, amount in told.items():
        believed = budgets.believable(document, task_id, name, amount, contract.limits.usage)
        if believed < amount:
            refused[name] = amount - believed
        budgets.draw(document, task_id, name, float(believed))
    return {"usage": told} | ({"usage_refused": refused} if refused else {})


def _note_misdirected(session: Session, receipts: Iterable[Receipt], effects: Effects) -> None:
    for receipt in receipts:
        identity = session.identities.get(receipt.packet_id)
        if identity is None or receipt.recipient not in identity.recipients:
            effects.misdirected.append(receipt)
