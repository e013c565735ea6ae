"""`apc dead-letter requeue|discard`: send an operator's receipts, and wait until the log shows their effect."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import asyncpg

from apc_bus import headers
from apc_bus.port import ActPublisher, Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import RECEIPTS
from apc_client.operator import acting_operator
from apc_client.sending import until
from apc_console.commands.dead_letter.dead_letters_view import Filter, Row, dead_of, matching
from apc_console.connections.database import open_log
from apc_console.connections.door import Door, find_door
from apc_console.errors import InputUnusable, ServiceAway
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id, shard_of
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_log.queries import DeadDelivery, DeliveryId, delivery_states, list_dead

MAX_NOTE = 300
PATIENCE = timedelta(seconds=8)
PATIENCE_FOR_EACH = timedelta(milliseconds=20)
DEAD = "DEAD_LETTERED"
DONE = {ReceiptKind.REQUEUE: "requeued", ReceiptKind.DISCARD: "discarded"}


async def settle_dead(
    kind: ReceiptKind, texts: Sequence[str], narrowed: Filter, *, is_all: bool = False, note: str | None = None
) -> list[Row]:
    """Requeue or discard dead deliveries as an operator; return the outcome of each.

    A packet keeps its id: its next delivery is the next attempt. With `is_all`, expired packets and those of
    halted sessions are not requeued.

    Raises:
        InputUnusable: a named delivery is not dead, has expired, or its session has halted; no agent of this broker
    user has the right operate; no broker.
        ServiceAway: broker, database or gate do not answer.
    """
    if bool(texts) == is_all:
        raise InputUnusable(
            "name packets (`apc dead-letter list` shows them), or give --all; not both, and not neither"
        )
    _check_note(note)
    door = find_door(BusSettings())
    async with open_log() as pool:
        meant = await (matching(pool, narrowed) if is_all else dead_of(pool, texts, narrowed))
        return await _settle(pool, door, kind, meant, note, is_all=is_all)


async def settle_deliveries(
    pool: asyncpg.Pool,
    door: Door,
    kind: ReceiptKind,
    deliveries: Sequence[DeliveryId],
    note: str | None,
    named: str | None = None,
) -> list[Row]:
    """Requeue or discard these dead deliveries in the name of `named`, else of the operator of the broker user.

    Returns the outcome of each. Raises as `settle_dead`.
    """
    _check_note(note)
    found = await list_dead(pool, packet_ids=[one.packet_id for one in deliveries])
    meant = [one for one in found if one.id in set(deliveries)]
    missing = set(deliveries) - {one.id for one in meant}
    if missing:
        one = min(missing)
        raise InputUnusable(f"the delivery of packet {one.packet_id} to {one.recipient} is not dead, or not any more")
    return await _settle(pool, door, kind, meant, note, named=named)


async def _settle(
    pool: asyncpg.Pool,
    door: Door,
    kind: ReceiptKind,
    meant: list[DeadDelivery],
    note: str | None,
    *,
    named: str | None = None,
    is_all: bool = False,
) -> list[Row]:
    if kind is ReceiptKind.REQUEUE:
        meant = _of_use(meant, is_all=is_all)
    operator = await acting_operator(pool, door.user, named)
    if meant:
        async with door.open() as bus:
            await _report(bus, kind, meant, operator.agent_id, note, door.shards)
        await _until_logged(pool, kind, meant)
    states = await delivery_states(pool, [one.packet_id for one in meant])
    return [_row(one.id, states) for one in meant]


def _check_note(note: str | None) -> None:
    if note is not None and len(note) > MAX_NOTE:
        raise InputUnusable(f"--note has {len(note)} characters: {MAX_NOTE} are allowed")


def _of_use(meant: Sequence[DeadDelivery], *, is_all: bool) -> list[DeadDelivery]:
    """Return the deliveries whose handlers can do something. Raises InputUnusable for others, unless `is_all`."""
    now = datetime.now(UTC)
    useless = [one for one in meant if one.expires_at <= now or one.is_in_halted_session]
    if useless and not is_all:
        raise InputUnusable(_why_useless(useless[0], now))
    return [one for one in meant if one not in useless]


def _why_useless(one: DeadDelivery, now: datetime) -> str:
    if one.expires_at <= now:
        return (
            f"packet {one.packet_id} expired at {one.expires_at:%Y-%m-%d %H:%M:%S} UTC, so nobody would handle it: "
            "send a new packet, and `apc dead-letter discard` this one"
        )
    return (
        f"session {one.session_id} has halted ({one.halt_reason}), so all that a handler sends there would be refused: "
        f"do the work in a new session, and `apc dead-letter discard` packet {one.packet_id}"
    )


async def _report(
    bus: ActPublisher, kind: ReceiptKind, meant: Sequence[DeadDelivery], by: str, note: str | None, shards: int
) -> None:
    """Publish the receipts, each message to the gate of its shard. Raises BusError."""
    said = f"{DONE[kind]} by {by}" + (f": {note}" if note else "")
    by_shard: dict[int, list[Receipt]] = {}
    for one in meant:
        receipt = Receipt(
            packet_id=one.packet_id,
            session_id=one.session_id,
            recipient=one.recipient,
            kind=kind,
            attempt=one.attempt,
            at=datetime.now(UTC),
            error=said,
            by=by,
        )
        by_shard.setdefault(shard_of(one.session_id, shards), []).append(receipt)
    for shard, receipts in by_shard.items():
        for body in _bodies(receipts):
            message = Message(body, str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=bus.user)
            await bus.publish(Publication(RECEIPTS, str(shard), message))


def _bodies(receipts: Sequence[Receipt]) -> Iterator[bytes]:
    """Yield messages of receipts, as few as fit."""
    try:
        yield encode_receipts(receipts)
    except PacketRefused:
        half = len(receipts) // 2
        yield from _bodies(receipts[:half])
        yield from _bodies(receipts[half:])


async def _until_logged(pool: asyncpg.Pool, kind: ReceiptKind, meant: Sequence[DeadDelivery]) -> None:
    """Wait until no delivery is dead in the same attempt: one that failed again at once is another attempt."""
    packet_ids = [one.packet_id for one in meant]

    async def are_logged() -> bool:
        states = await delivery_states(pool, packet_ids)
        return all(states.get(one.id) != (DEAD, one.attempt) for one in meant)

    patience = PATIENCE + len(meant) * PATIENCE_FOR_EACH
    try:
        await until(are_logged, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the {kind} was sent, but is not in the log after {patience.total_seconds():g} s: do `apc serve "
            "orchestrator` and `apc serve persister` run? It counts as soon as they do"
        ) from error


def _row(delivery: DeliveryId, states: dict[DeliveryId, tuple[str, int]]) -> Row:
    state, attempt = states[delivery]
    return delivery._asdict() | {"state": state, "attempt": attempt}
