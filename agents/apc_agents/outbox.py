"""The receipts on their way to the orchestrator: batched, never waiting (docs/specification/architecture.md section 2).

A batch is what has gathered while the previous one was being confirmed, and for a moment before: each message of
receipts costs broker, orchestrator and persister a separate batch, and nobody waits for it but a barrier. A
delivery_ack lingers longer, so that it travels with the end of a fast handler; a slow handler's goes alone.

A few ends that wait when a packet leaves for the same shard ride on it (`riding`).
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

from msgspec.structs import replace

from apc_agents.errors import EmitUnconfirmed
from apc_agents.metrics import ENDS
from apc_bus import headers
from apc_bus.concurrency import Backoff, end_future, unasked_cancel_fails
from apc_bus.errors import BusUnavailable, PublishError
from apc_bus.headers import TYPE_RECEIPTS
from apc_bus.port import Bus, Message, Publication
from apc_bus.telemetry import get_logger
from apc_bus.topology import RECEIPTS
from apc_contracts.errors import PacketRefused
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts, merge

# Confirmed publishing that does not give up at the first failure.

FIRST_WAIT = 0.05
LONGEST_WAIT = 5.0
"""Seconds between two attempts."""

_log = get_logger("apc_agents")


async def publish_confirmed(bus: Bus, publication: Publication, deadline: timedelta | None) -> None:
    """Publish until the broker confirms.

    The same bytes go out again after each failure, never while an earlier attempt is in flight. That is safe even
    when an earlier attempt was stored: the orchestrator knows the packet by its id, a receipt by its packet and kind.

    Args:
        deadline: for all attempts together; None = try forever.

    Raises:
        EmitUnconfirmed: the deadline has passed.
    """
    loop = asyncio.get_running_loop()
    end = None if deadline is None else loop.time() + deadline.total_seconds()
    backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
    while True:
        try:
            with unasked_cancel_fails():
                return await bus.publish(publication)
        except (PublishError, BusUnavailable) as error:
            message_id = publication.message.message_id
            if end is not None and loop.time() + backoff.pause > end:
                raise EmitUnconfirmed(message_id, f"{type(error).__name__}: {error}") from error
            if backoff.is_fresh:
                _log.warning("publish_repeated", message_id=message_id, error=type(error).__name__, reason=str(error))
        await backoff.wait()


# Receipts that ride on a packet, in a header: one message to the orchestrator and one batch there, instead of two.

RIDERS = ENDS | {ReceiptKind.EFFECT}
RIDING_RECEIPTS = 8
RIDING_BYTES = 4_096
"""Bounds of what rides on one packet. More of them cost the orchestrator less in a separate message."""


class WaitingReceipt(NamedTuple):
    """A receipt of an outbox; `number` is its place among all that were added."""

    number: int
    due_at: float
    """Loop time at which it leaves, alone if need be; 0 = at once."""
    shard: int
    receipt: Receipt


class Settlement(NamedTuple):
    """A delivery that waits for the receipts up to a number, and its end: None = acknowledge it, else raise this."""

    after: int
    due_at: float
    done: asyncio.Future[None]
    error: Exception | None


class Riding(NamedTuple):
    """Receipts on their way with a packet, and the deliveries that end when the broker has confirmed it."""

    text: str
    """The value of the header."""
    receipts: list[WaitingReceipt]
    settlements: list[Settlement]

    def on(self, publication: Publication) -> Publication:
        """Return the packet with these receipts on it."""
        message = publication.message
        return replace(publication, message=replace(message, headers={**message.headers, headers.RECEIPTS: self.text}))


def riding(waiting: Sequence[WaitingReceipt], settlements: Sequence[Settlement], shard: int) -> Riding | None:
    """Return the riders among the waiting receipts, for a packet to this shard; None when they had better go alone.

    What waits for the end of its handler stays, and with it every delivery that was settled after it.
    """
    riders = [one for one in waiting if one.receipt.kind in RIDERS]
    if not riders or any(one.shard != shard for one in riders):
        return None
    text = encode_receipts([one.receipt for one in riders]).decode()
    if len(text) > RIDING_BYTES:
        return None
    first_left = min((one.number for one in waiting if one.receipt.kind not in RIDERS), default=None)
    ended = [one for one in settlements if first_left is None or one.after < first_left]
    return Riding(text, riders, ended)


BATCH_RECEIPTS = 180
"""Receipts tried in one message; one with all times and without an error text is about 320 bytes."""


_Place = tuple[str, str, UUID, int]
"""Of a handling: recipient, session_id, packet_id, attempt. A host's agents share an outbox, and may share a packet."""


class ReceiptOutbox:
    """Publishes receipts confirmed, and settles each delivery once everything added before it is confirmed."""

    def __init__(self, bus: Bus, linger: timedelta, end_linger: timedelta = timedelta()) -> None:
        """Prepare an outbox; `linger` delays receipts that wait for their handler's end, `end_linger` the end."""
        self._bus = bus
        self._linger = linger.total_seconds()
        self._end_linger = end_linger.total_seconds()
        self._waiting: list[WaitingReceipt] = []
        self._added = 0
        self._on_the_way = 0
        """Messages that are not confirmed: batches and packets with receipts on them."""
        self._effects = 0
        """Entries about effects that are not confirmed."""
        self._places: dict[_Place, int] = {}
        """Where the last receipt of a handling waits."""
        self._settlements: list[Settlement] = []
        self._due = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        """Loop time of the timer, kept here: uvloop's handle of a delay below a millisecond does not tell it."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def add(self, shard: int, receipt: Receipt, *, may_linger: bool = False) -> None:
        """Send this receipt with the next batch; with `may_linger` it may wait a moment for company.

        Receipts of one handling that wait together become one with all their times.
        """
        key = _key(receipt)
        place = self._places.get(key) if receipt.effect is None else None
        known = None if place is None else self._waiting[place]
        merged = None if known is None else merge(known.receipt, receipt)
        due_at = self._due_within(self._linger if may_linger else self._end_linger)
        if place is None or known is None or merged is None:
            self._added += 1
            if receipt.effect is None:
                self._places[key] = len(self._waiting)
            else:
                self._effects += 1
            self._waiting.append(WaitingReceipt(self._added, due_at, shard, receipt))
        else:
            self._waiting[place] = known._replace(receipt=merged, due_at=min(known.due_at, due_at))
        self._is_idle.clear()
        if len(self._waiting) >= BATCH_RECEIPTS:
            self._due.set()
        self._send_at(due_at)

    def settle(self, done: asyncio.Future[None], error: Exception | None = None) -> None:
        """End `done` when every receipt added so far is confirmed: with a result, or with this error."""
        due_at = self._due_within(self._end_linger)
        self._settlements.append(Settlement(self._added, due_at, done, error))
        self._is_idle.clear()
        self._send_at(due_at)

    async def confirmed(self) -> None:
        """Wait until everything added so far is confirmed; none of it lingers."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settle(done)
        self._due.set()
        await done

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await self._due.wait()
            waiting, settlements = self._take()
            self._on_the_way += 1
            for publication in _publications(waiting, self._bus.user):
                await publish_confirmed(self._bus, publication, deadline=None)
            self._arrive(waiting, settlements)

    @asynccontextmanager
    async def carried(self, publication: Publication, shard: int) -> AsyncIterator[Publication]:
        """Yield a packet for a shard, with receipts on it; leaving without an error says that it is confirmed.

        The orchestrator has the entries about effects before the packet: rules about it may read them.
        """
        found = self.board(shard)
        if found is None:
            if self._effects:
                await self.confirmed()
            yield publication
            return
        try:
            yield found.on(publication)
        except BaseException:
            self.give_back(found)
            raise
        self.arrived(found)

    def board(self, shard: int) -> Riding | None:
        """Return receipts to ride on a packet to this shard; `arrived` or `give_back` tells what became of it.

        None while others are on their way: a delivery ends when everything added before it is confirmed.
        """
        if self._on_the_way or not 0 < len(self._waiting) <= RIDING_RECEIPTS or self._due.is_set():
            return None
        found = riding(self._waiting, self._settlements, shard)
        if found is None:
            return None
        self._on_the_way += 1
        self._keep(
            [one for one in self._waiting if one not in found.receipts],
            [one for one in self._settlements if one not in found.settlements],
        )
        return found

    def arrived(self, found: Riding) -> None:
        """Take note that the packet, and what rode on it, is confirmed."""
        self._arrive(found.receipts, found.settlements)

    def give_back(self, found: Riding) -> None:
        """Take receipts back whose packet was not confirmed, and send them. A repeat is ignored by the orchestrator."""
        self._on_the_way -= 1
        self._due.set()
        self._keep([*found.receipts, *self._waiting], [*found.settlements, *self._settlements])

    async def drained(self) -> None:
        """Wait until everything added so far is confirmed."""
        if not self._is_idle.is_set():
            self._due.set()
        await self._is_idle.wait()

    def _due_within(self, seconds: float) -> float:
        """Return the loop time until which something may wait; 0 = not at all."""
        return asyncio.get_running_loop().time() + seconds if seconds else 0.0

    def _send_at(self, due_at: float) -> None:
        if self._due.is_set():
            return
        if not due_at:
            self._due.set()
        elif self._timer is None or due_at < self._timer_due:
            self._stop_timer()
            self._timer_due = due_at
            self._timer = asyncio.get_running_loop().call_at(due_at, self._due.set)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> tuple[list[WaitingReceipt], list[Settlement]]:
        taken = (self._waiting, self._settlements)
        self._keep([], [])
        self._due.clear()
        return taken

    def _keep(self, waiting: list[WaitingReceipt], settlements: list[Settlement]) -> None:
        """Let only these wait, from now on."""
        self._waiting, self._settlements = waiting, settlements
        self._places = {_key(one.receipt): place for place, one in enumerate(waiting) if one.receipt.effect is None}
        self._stop_timer()
        moments = [one.due_at for one in waiting] + [one.due_at for one in settlements]
        if moments:
            self._send_at(min(moments))

    def _arrive(self, sent: Sequence[WaitingReceipt], settlements: list[Settlement]) -> None:
        self._on_the_way -= 1
        self._effects -= sum(one.receipt.effect is not None for one in sent)
        for one in settlements:
            end_future(one.done, one.error)
        if not self._waiting and not self._settlements and not self._on_the_way:
            self._is_idle.set()


def _key(receipt: Receipt) -> _Place:
    return receipt.recipient, receipt.session_id, receipt.packet_id, receipt.attempt


def _publications(waiting: Sequence[WaitingReceipt], user: str) -> Iterator[Publication]:
    by_shard: dict[int, list[Receipt]] = defaultdict(list)
    for one in waiting:
        by_shard[one.shard].append(one.receipt)
    for shard, receipts in by_shard.items():
        for start in range(0, len(receipts), BATCH_RECEIPTS):
            for body in _bodies(receipts[start : start + BATCH_RECEIPTS]):
                message = Message(body, message_id=str(uuid4()), type=TYPE_RECEIPTS, user_id=user)
                # The shard's own number is one of its slots.
                yield Publication(RECEIPTS, str(shard), message)


def _bodies(receipts: list[Receipt]) -> Iterator[bytes]:
    try:
        yield encode_receipts(receipts)
    except PacketRefused:  # beyond 64 KiB, because some carry long errors
        if len(receipts) == 1:
            raise
        half = len(receipts) // 2
        yield from _bodies(receipts[:half])
        yield from _bodies(receipts[half:])
