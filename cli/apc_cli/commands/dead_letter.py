"""`apc dead-letter`: which deliveries are dead, why, and their history; requeue them, or discard them.

The acts bring the whole system along (`apc_client`), so it is imported when they run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import typer

from apc_bus import headers
from apc_bus.port import ActPublisher, Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import RECEIPTS
from apc_cli.commands.group import Commands, whole_packet_id, whole_session_id
from apc_cli.connections import Door, find_door, open_log, require_agent
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.output import AsJson, print_json, print_rows, tell, wants_json
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.text import numbered
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_log.queries import (
    DeadDelivery,
    DeliveryId,
    delivery_history,
    delivery_states,
    get_session,
    list_dead,
)
from apc_log.queries.questions import is_logged

_LISTED = (
    "session_id",
    "packet_id",
    "recipient",
    "attempt",
    "reason",
    "died_at",
    "packet_type",
    "sender",
    "expires_at",
)
_WEIGHT = ("packet_id", "reason", "recipient", "died_at", "expires_at", "packet_type", "session_id")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead deliveries to select; None = any. `reason` is how the reason begins."""

    session_id: str | None = None
    recipient: str | None = None
    reason: str | None = None


async def dead_rows(narrowed: Filter, *, limit: int) -> list[Row]:
    """Return the dead deliveries in the order of the log. Raises InputUnusable for an unknown session."""
    async with open_log() as pool:
        deliveries = await matching(pool, narrowed, limit=limit)
    return [{name: getattr(one, name) for name in _LISTED} for one in deliveries]


async def dead_documents(packet_id: str, narrowed: Filter) -> list[Row]:
    """Return a packet's dead deliveries, each with its `hops`, oldest first. Raises InputUnusable when none is dead."""
    async with open_log() as pool:
        deliveries = await dead_of(pool, [packet_id], narrowed)
        return [
            asdict(one) | {"hops": [asdict(hop) for hop in await delivery_history(pool, one.id)]} for one in deliveries
        ]


def _print_documents(documents: Sequence[Row], *, as_json: bool) -> None:
    """Print dead deliveries and their hops."""
    if wants_json(as_json):
        print_json(documents)
        return
    for document in documents:
        delivery = {name: value for name, value in document.items() if name != "hops"}
        title = f"{document['packet_id']} for {document['recipient']}"
        print_rows([delivery], title=title, as_json=False, empty="")
        print_rows([_hop(hop) for hop in document["hops"]], title="hops", as_json=False, empty="")


async def matching(pool: asyncpg.Pool, narrowed: Filter, *, limit: int | None = None) -> list[DeadDelivery]:
    """Return the dead deliveries that match. Raises InputUnusable for a session or agent that the log does not hold."""
    if narrowed.session_id is not None and await get_session(pool, narrowed.session_id) is None:
        raise InputUnusable(
            f"--session: the log holds no session {narrowed.session_id!r}: `apc session list` shows them"
        )
    await require_agent(pool, narrowed.recipient)
    return await list_dead(
        pool, session_id=narrowed.session_id, recipient=narrowed.recipient, reason=narrowed.reason, limit=limit
    )


async def dead_of(pool: asyncpg.Pool, texts: Sequence[str], narrowed: Filter) -> list[DeadDelivery]:
    """Return the dead deliveries of these packets.

    Raises:
        InputUnusable: no UUID, a packet that the log does not hold, one that is not dead (any more) for the selected
    recipients, or an id that is dead in two sessions.
    """
    packet_ids = list(dict.fromkeys(map(_uuid, texts)))
    deliveries = await list_dead(
        pool,
        session_id=narrowed.session_id,
        recipient=narrowed.recipient,
        reason=narrowed.reason,
        packet_ids=packet_ids,
    )
    sessions: dict[UUID, set[str]] = {packet_id: set() for packet_id in packet_ids}
    for delivery in deliveries:
        sessions[delivery.packet_id].add(delivery.session_id)
    for packet_id, names in sessions.items():
        if not names:
            states = await delivery_states(pool, [packet_id])
            raise InputUnusable(await _why_not(pool, packet_id, states, narrowed))
        if len(names) > 1:
            raise InputUnusable(f"packet {packet_id} is dead in {', '.join(sorted(names))}: name one with --session")
    return deliveries


async def _why_not(
    pool: asyncpg.Pool, packet_id: UUID, states: Mapping[DeliveryId, tuple[str, int]], narrowed: Filter
) -> str:
    if not states:
        if not await is_logged(pool, packet_id):
            return f"the log holds no packet {packet_id}"
        return f"packet {packet_id} is not dead: nobody has had a delivery of it"
    said = ", ".join(f"{one.recipient} {state} (attempt {attempt})" for one, (state, attempt) in sorted(states.items()))
    for_whom = " for those who are meant" if narrowed != Filter() else ""
    return f"packet {packet_id} is not dead{for_whom}: {said}"


def _hop(hop: Row) -> Row:
    """Return one row of a table; of several events of one hop, the time of the last."""
    shown = {name: hop[name] for name in ("attempt", "to_state", "events", "actor", "metadata")}
    return shown | {"occurred_at": hop["occurred_at"][-1]}


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InputUnusable(
            f"{text!r} is no packet_id: a packet_id is a UUID, as `apc dead-letter list` shows it"
        ) from error


# `apc dead-letter requeue|discard`: send an operator's receipts, and wait until the log shows their effect.

MAX_NOTE = 300
PATIENCE = timedelta(seconds=8)
PATIENCE_FOR_EACH = timedelta(milliseconds=20)
"""How long to wait until the log shows the effect, and how much longer for each delivery."""
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
        ServiceAway: broker, database or orchestrator do not answer.
    """
    if bool(texts) == is_all:
        raise InputUnusable(
            "name packets (`apc dead-letter list` shows them), or give --all; not both, and not neither"
        )
    _check_note(note)
    door = find_door(BusSettings())
    async with open_log() as pool:
        meant = await (matching(pool, narrowed) if is_all else dead_of(pool, texts, narrowed))
        return await _settle_letters(pool, door, kind, meant, note, is_all=is_all)


async def settle_deliveries(
    pool: asyncpg.Pool,
    door: Door,
    kind: ReceiptKind,
    deliveries: Sequence[DeliveryId],
    note: str | None,
    named: str | None = None,
    attempts: Mapping[DeliveryId, int] | None = None,
) -> list[Row]:
    """Requeue or discard these dead deliveries in the name of `named`, else of the operator of the broker user.

    Returns the outcome of each, with a `verdict` in words. What cannot be settled is left as it is, and so is a
    delivery that died in another attempt than `attempts` says: it failed again since somebody looked at it.

    Raises as `settle_dead`; InputUnusable when all of them are left as they are.
    """
    _check_note(note)
    wanted = list(dict.fromkeys(deliveries))
    dead = {one.id: one for one in await list_dead(pool, packet_ids=[one.packet_id for one in wanted])}
    left = {one: why for one in wanted if (why := _why_left(kind, one, dead.get(one), attempts or {}, door.shards))}
    meant = [dead[one] for one in wanted if one not in left]
    if not meant:
        raise InputUnusable(next(iter(left.values())))
    rows = await _settle_letters(pool, door, kind, meant, note, named=named)
    done = [row | {"verdict": DONE[kind]} for row in rows]
    return done + [one._asdict() | {"verdict": f"left as it is: {why}"} for one, why in left.items()]


def _why_left(
    kind: ReceiptKind, named: DeliveryId, dead: DeadDelivery | None, attempts: Mapping[DeliveryId, int], shards: int
) -> str | None:
    """Return why a delivery is left as it is; None when it can be settled."""
    if dead is None:
        return f"the delivery of packet {named.packet_id} to {named.recipient} is not dead, or not any more"
    if attempts.get(named, dead.attempt) != dead.attempt:
        return f"the delivery of packet {named.packet_id} failed again since, in attempt {dead.attempt}: look at it"
    now = datetime.now(UTC)
    if kind is ReceiptKind.REQUEUE and (dead.expires_at <= now or dead.is_in_halted_session):
        return _why_useless(dead, now)
    return _why_unserved(dead, shards) if dead.shard >= shards else None


async def _settle_letters(
    pool: asyncpg.Pool,
    door: Door,
    kind: ReceiptKind,
    meant: list[DeadDelivery],
    note: str | None,
    *,
    named: str | None = None,
    is_all: bool = False,
) -> list[Row]:
    from apc_client.operator import acting_operator

    if kind is ReceiptKind.REQUEUE:
        meant, useless = _of_use(meant, is_all=is_all)
        tell([_left_out(len(useless))] if useless else [])
    meant = _within(meant, door.shards, is_all=is_all)
    operator = await acting_operator(pool, door.user, named)
    if meant:
        async with door.open() as bus:
            await _report(bus, kind, meant, operator.agent_id, note)
        await _until_logged(pool, kind, meant)
    states = await delivery_states(pool, [one.packet_id for one in meant])
    return [_row(one.id, states) for one in meant]


def _check_note(note: str | None) -> None:
    if note is not None and len(note) > MAX_NOTE:
        raise InputUnusable(f"--note has {len(note)} characters: {MAX_NOTE} are allowed")


def _of_use(meant: Sequence[DeadDelivery], *, is_all: bool) -> tuple[list[DeadDelivery], list[DeadDelivery]]:
    """Return the deliveries whose handlers can do something, and the others.

    Raises InputUnusable when there are others, unless `is_all`.
    """
    now = datetime.now(UTC)
    useless = [one for one in meant if one.expires_at <= now or one.is_in_halted_session]
    if useless and not is_all:
        raise InputUnusable(_why_useless(useless[0], now))
    return [one for one in meant if one not in useless], useless


def _left_out(count: int) -> str:
    what = numbered(count, "dead delivery stays", "dead deliveries stay")
    return f"{what}: the packet has expired, or its session has halted; `apc dead-letter discard` gives them up"


def _why_useless(dead: DeadDelivery, now: datetime) -> str:
    if dead.expires_at <= now:
        return (
            f"packet {dead.packet_id} expired at {dead.expires_at:%Y-%m-%d %H:%M:%S} UTC, so nobody would handle it: "
            "send a new packet, and `apc dead-letter discard` this one"
        )
    return (
        f"session {dead.session_id} has halted ({dead.halt_reason}), so all that a handler sends there would be "
        f"refused: do the work in a new session, and `apc dead-letter discard` packet {dead.packet_id}"
    )


def _within(meant: Sequence[DeadDelivery], shards: int, *, is_all: bool) -> list[DeadDelivery]:
    """Return the deliveries whose shard has an orchestrator. Raises InputUnusable for others, unless `is_all`."""
    lost = next((one for one in meant if one.shard >= shards), None)
    if lost is not None and not is_all:
        raise InputUnusable(_why_unserved(lost, shards))
    return [one for one in meant if one.shard < shards]


def _why_unserved(dead: DeadDelivery, shards: int) -> str:
    return (
        f"session {dead.session_id} is in shard {dead.shard} of the log, which nobody serves with "
        f"APC_SHARDS={shards}: its dead letters, such as packet {dead.packet_id}, stay in the log as they are"
    )


async def _report(
    bus: ActPublisher, kind: ReceiptKind, meant: Sequence[DeadDelivery], by: str, note: str | None
) -> None:
    """Publish the receipts, each message to the shard that has its sessions. Raises BusError."""
    said = f"{DONE[kind]} by {by}" + (f": {note}" if note else "")
    by_shard: dict[int, list[Receipt]] = {}
    for delivery in meant:
        receipt = Receipt(
            packet_id=delivery.packet_id,
            session_id=delivery.session_id,
            recipient=delivery.recipient,
            kind=kind,
            attempt=delivery.attempt,
            at=datetime.now(UTC),
            error=said,
            by=by,
        )
        by_shard.setdefault(delivery.shard, []).append(receipt)
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
    from apc_client.sending import until

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


# `apc dead-letter`: look at permanently failed deliveries, requeue them, discard them.

app = Commands(help="List, show, requeue and discard dead letters.")

NOTHING = "no such delivery is dead"
NOTHING_DONE = {ReceiptKind.REQUEUE: "no such delivery can be requeued", ReceiptKind.DISCARD: NOTHING}

SessionId = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Only of this session.", parser=whole_session_id)
]
AgentId = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only deliveries to this agent.")]
Reason = Annotated[
    str | None,
    typer.Option(
        help="Only with a reason that begins with this: handler_error, delivery_limit, overflow, retry_limit…"
    ),
]
PacketIds = Annotated[
    list[str] | None, typer.Argument(metavar="PACKET_ID…", help="The packets.", parser=whole_packet_id)
]
All = Annotated[bool, typer.Option("--all", help="Everything that is dead and that the filters let through.")]
Note = Annotated[str | None, typer.Option(help="The reason, which the log keeps.")]


@app.command("list")
async def list_(
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many deliveries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print dead deliveries, oldest first: packet, recipient, attempt, reason and since when."""
    rows = await dead_rows(Filter(session_id, agent_id, reason), limit=limit)
    print_rows(rows, title="dead letters", as_json=as_json, empty=NOTHING, weight=_WEIGHT)


@app.command()
async def show(
    packet_id: Annotated[str, typer.Argument(metavar="PACKET_ID", help="The packet.", parser=whole_packet_id)],
    session_id: SessionId = None,
    agent_id: AgentId = None,
    as_json: AsJson = False,
) -> None:
    """Print a packet's dead deliveries with everything that happened to them, attempt by attempt."""
    _print_documents(await dead_documents(packet_id, Filter(session_id, agent_id)), as_json=as_json)


@app.command()
async def requeue(
    packet_ids: PacketIds = None,
    is_all: All = False,
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    note: Note = None,
    as_json: AsJson = False,
) -> None:
    """Deliver dead packets again, under their ids, as their next attempt; wait until the log shows it.

    Packets that have expired, and work of a session that has halted, are refused; --all leaves them out and says so.
    """
    narrowed = (session_id, agent_id, reason)
    await _settle(ReceiptKind.REQUEUE, packet_ids, narrowed, is_all=is_all, note=note, as_json=as_json)


@app.command()
async def discard(
    packet_ids: PacketIds = None,
    is_all: All = False,
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    note: Note = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead packets: they are archived and never delivered again."""
    narrowed = (session_id, agent_id, reason)
    await _settle(ReceiptKind.DISCARD, packet_ids, narrowed, is_all=is_all, note=note, as_json=as_json)


async def _settle(
    kind: ReceiptKind,
    packet_ids: list[str] | None,
    narrowed: tuple[str | None, str | None, str | None],
    *,
    is_all: bool,
    note: str | None,
    as_json: bool,
) -> None:
    rows = await settle_dead(kind, packet_ids or (), Filter(*narrowed), is_all=is_all, note=note)
    title = f"{kind}: {numbered(len(rows), 'delivery', 'deliveries')}"
    print_rows(rows, title=title, as_json=as_json, empty=NOTHING_DONE[kind])
