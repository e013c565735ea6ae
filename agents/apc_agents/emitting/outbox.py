"""The receipts on their way to the gate: batched, never waiting (docs/specification/architecture.md section 2).

A batch is what has gathered while the previous one was being confirmed, and for a moment before: each message of
receipts costs broker, gate and log writer a batch of their own, and nobody waits for it but a barrier. A delivery_ack
lingers longer, so that it travels with the end of a fast handler; a slow handler's goes alone.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from apc_agents.emitting.publishing import publish_confirmed
from apc_bus.headers import TYPE_RECEIPTS
from apc_bus.port import Bus, Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts.errors import PacketRefused
from apc_contracts.wire.receipts import Receipt, encode_receipts, merge

BATCH_RECEIPTS = 180
"""Receipts tried in one message; one with all times and without an error text is about 320 bytes."""

Settlement = tuple[asyncio.Future[None], Exception | None]
"""A delivery that waits for its receipts, and how it ends: None = acknowledge it, else raise this."""


class ReceiptOutbox:
    """Publishes receipts confirmed, and settles each delivery once everything added before it is confirmed."""

    def __init__(self, bus: Bus, linger: timedelta, end_linger: timedelta = timedelta()) -> None:
        """Prepare an outbox; `linger` delays receipts that wait for their handler's end, `end_linger` the end."""
        self._bus = bus
        self._linger = linger.total_seconds()
        self._end_linger = end_linger.total_seconds()
        self._waiting: list[tuple[int, Receipt]] = []
        self._places: dict[tuple[str, UUID, int], int] = {}
        """(session_id, packet_id, attempt) -> where its last receipt waits."""
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
        key = (receipt.session_id, receipt.packet_id, receipt.attempt)
        place = self._places.get(key)
        merged = None if place is None else merge(self._waiting[place][1], receipt)
        if place is None or merged is None:
            self._places[key] = len(self._waiting)
            self._waiting.append((shard, receipt))
        else:
            self._waiting[place] = (shard, merged)
        self._is_idle.clear()
        if len(self._waiting) >= BATCH_RECEIPTS:
            self._due.set()
        self._send_within(self._linger if may_linger else self._end_linger)

    def settle(self, done: asyncio.Future[None], error: Exception | None = None) -> None:
        """End `done` when every receipt added so far is confirmed: with a result, or with this error."""
        self._settlements.append((done, error))
        self._is_idle.clear()
        self._send_within(self._end_linger)

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await self._due.wait()
            waiting, settlements = self._take()
            for publication in _publications(waiting, self._bus.user):
                await publish_confirmed(self._bus, publication, deadline=None)
            for done, error in settlements:
                _end(done, error)
            if not self._waiting and not self._settlements:
                self._is_idle.set()

    async def drained(self) -> None:
        """Wait until everything added so far is confirmed."""
        if not self._is_idle.is_set():
            self._due.set()
        await self._is_idle.wait()

    def _send_within(self, seconds: float) -> None:
        if self._due.is_set():
            return
        if not seconds:
            self._due.set()
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + seconds
        if self._timer is not None:
            if self._timer_due <= due_at:
                return
            self._timer.cancel()
        self._timer_due = due_at
        self._timer = loop.call_at(due_at, self._due.set)

    def _take(self) -> tuple[list[tuple[int, Receipt]], list[Settlement]]:
        taken = (self._waiting, self._settlements)
        self._waiting, self._settlements, self._places = [], [], {}
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return taken


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _publications(waiting: Sequence[tuple[int, Receipt]], user: str) -> Iterator[Publication]:
    by_shard: dict[int, list[Receipt]] = defaultdict(list)
    for shard, receipt in waiting:
        by_shard[shard].append(receipt)
    for shard, receipts in by_shard.items():
        for start in range(0, len(receipts), BATCH_RECEIPTS):
            for body in _bodies(receipts[start : start + BATCH_RECEIPTS]):
                message = Message(body, message_id=str(uuid4()), type=TYPE_RECEIPTS, user_id=user)
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
