"""Tell the sender's log what the gate refused."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial

from apc_agents.emitter import Acknowledgements
from apc_agents.errors import EmitRefused
from apc_agents.running.delivery import (
    DeliveryHeaders,
    DeliveryKey,
    Inbound,
    KnownSessions,
    Orchestrators,
    OrchestratorTime,
    RecentKeys,
    is_acceptance,
    is_refusal,
    read_body,
    read_headers,
)
from apc_bus.concurrency import boottime
from apc_bus.errors import DeadLetter, QueueMissing
from apc_bus.last_resort import ATTEMPTS
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.telemetry import CountedWarning, TraceHeaders, get_logger, packet_ids, trace_headers
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import shard_of
from apc_contracts.packet import NackPacket, Packet
from apc_contracts.vocabulary import Channel
from apc_contracts.wire.receipts import SET_ASIDE, Receipt, ReceiptKind

_log = get_logger("apc_agents")


def log_refusal(agent_id: str, nack: Packet) -> None:
    """Log a warning `packet_refused` for the gate's NACK of a packet that this agent sent."""
    if not isinstance(nack, NackPacket):
        return
    document = (nack.metadata or {}).get("refusal")
    refused = EmitRefused.of({"message": nack.payload.reason, **(document if isinstance(document, dict) else {})})
    _log.warning(
        "packet_refused",
        agent_id=agent_id,
        packet_id=str(nack.payload.acked_packet_id),
        session_id=nack.trace.session_id,
        code=refused.code,
        rule=refused.rule,
        field=refused.path,
        reason=refused.message,
        remedy=refused.remedy,
    )


# The packets that wait for a handler: urgent ones first, one session never twice at once.

URGENT_IN_A_ROW = 8
"""After so many urgent packets one normal packet has its turn (docs/specification/architecture.md section 3)."""


class Inbox:
    """Two queues in the worker's memory; the broker's prefetch bounds them."""

    __slots__ = ("_busy", "_normal", "_urgent", "_urgent_in_a_row")

    def __init__(self) -> None:
        # Lists and a dictionary: a host has thousands of empty inboxes, and an empty deque takes 10 times the memory.
        self._urgent: list[Inbound] = []
        self._normal: list[Inbound] = []
        self._busy: dict[str, None] = {}
        self._urgent_in_a_row = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._normal)

    def put(self, inbound: Inbound) -> None:
        """Take a packet that has arrived."""
        (self._urgent if inbound.is_urgent else self._normal).append(inbound)

    def take(self) -> Inbound | None:
        """Return the next packet whose session is free, None without one; its session is busy until `release`."""
        order = (self._urgent, self._normal)
        if self._urgent_in_a_row >= URGENT_IN_A_ROW:
            order = (self._normal, self._urgent)
        for queue in order:
            if (inbound := self._first_free(queue)) is not None:
                self._urgent_in_a_row = self._urgent_in_a_row + 1 if queue is self._urgent else 0
                self._busy[inbound.session_id] = None
                return inbound
        return None

    def release(self, inbound: Inbound) -> None:
        """Free the session of a handled packet."""
        self._busy.pop(inbound.session_id, None)

    def empty(self) -> list[Inbound]:
        """Take out and return everything that waits."""
        waiting = self._urgent + self._normal
        self._urgent, self._normal = [], []
        return waiting

    def _first_free(self, queue: list[Inbound]) -> Inbound | None:
        # A packet behind another one of its session waits for that one, so the order of a session stands.
        for index, inbound in enumerate(queue):
            if inbound.session_id not in self._busy:
                del queue[index]
                return inbound
        return None


# What agents hear on the substrate: the packets that others have sent to everybody.


LAST_SECONDS = 10.0
"""In this time a stream gives the last message that was heard; one that was made again has none at its offset."""
MOST_HEARD = 1_000
"""Packets of the substrate that wait for an agent of a host; it hears no more until it has handled some."""


class Ear:
    """An agent that listens.

    Args:
        agent_id: whose own packets it does not hear.
        sessions: learns from each packet.
        put: takes what is heard.
        time: by which a packet expires.
    """

    def __init__(
        self, agent_id: str, sessions: KnownSessions, put: Callable[[Inbound], None], time: OrchestratorTime
    ) -> None:
        self.agent_id = agent_id
        self.time = time
        self._sessions = sessions
        self._put = put
        self._waiting = 0
        self._missed = CountedWarning(_log, "substrate_not_heard")

    def hear(self, packet: Packet, told: DeliveryHeaders | None, shard: int, trace: TraceHeaders) -> Inbound | None:
        """Take a packet; None for one of the agent's own or one that has expired."""
        if packet.sender.agent_id == self.agent_id or packet.expires <= self.time.now(shard):
            return None
        self._sessions.learn(packet, told.moment if told else None)
        return Inbound(
            packet,
            1,
            shard,
            has_receipts=False,
            is_urgent=False,
            is_heard=True,
            now=partial(self.time.now, shard),
            trace=trace,
        )

    def put(self, inbound: Inbound) -> None:
        """Hand a packet on."""
        self._put(inbound)

    def put_if_room(self, inbound: Inbound) -> None:
        """Hand a packet on unless too many wait already: then it is missed, and the log says how many were."""
        if self._waiting >= MOST_HEARD:
            self._missed.note(agent_id=self.agent_id, waiting=self._waiting)
            return
        self._waiting += 1
        inbound.done.add_done_callback(self._count_down)
        self._put(inbound)

    def _count_down(self, done: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not done.cancelled():
            done.exception()


class SubstrateListener:
    """Reads the stream from where it was last, at first from its end, and hands packets on one batch after another.

    Args:
        bus: stays the caller's.
        ears: who listens, by agent_id; may change meanwhile.
        shards: of the system.
        reader: who reads, as the log names it.
        waits: whether the next batch waits until this one is handled; for a host it does not, because the slowest of
            its agents would hold up all others.
    """

    def __init__(self, bus: Bus, ears: Mapping[str, Ear], shards: int, reader: str, *, waits: bool = True) -> None:
        self._bus = bus
        self._ears = ears
        self._shards = shards
        self._reader = reader
        self._waits = waits
        self._since: float | None = None
        """CLOCK_BOOTTIME, in seconds, of the last that was heard, or of the first subscription."""
        self._last: tuple[int, str] | None = None
        """Offset and id of the last message that was heard."""
        self._failures: Counter[int] = Counter()
        """By the offset of what ended this listener."""

    async def run(self) -> None:
        """Listen until cancelled. Raises BusError when the stream is lost: what is heard next follows on."""
        while True:
            try:
                async with self._subscription() as stream:
                    await self._listen(stream)
            except QueueMissing:
                self._last = None  # another stream, when there is one, begins at 0
                raise
            _log.warning("substrate_began_again", reader=self._reader)
            self._last = None

    def _subscription(self) -> AbstractAsyncContextManager[Subscription]:
        if self._last is not None:
            return self._bus.read_substrate(self._last[0])
        return self._bus.read_substrate(since=self._since)

    async def _listen(self, stream: Subscription) -> None:
        """Listen until the end. Return when the stream is not the one whose last message is known."""
        if self._since is None:
            self._since = boottime()
        batch = await self._following(stream)
        while batch:
            came_at = boottime()
            heard = [one for delivery in batch for one in self._hear(delivery)]
            for ear, inbound in heard:
                ear.put(inbound) if self._waits else ear.put_if_room(inbound)
            if self._waits:
                await asyncio.gather(*(inbound.done for _, inbound in heard), return_exceptions=True)
            newest = batch[-1]
            if newest.offset is not None:
                self._last, self._since = (newest.offset, newest.message.message_id), came_at
                self._failures.clear()
            await stream.ack(newest, multiple=True)
            batch = await stream.receive()

    async def _following(self, stream: Subscription) -> list[Delivery]:
        """Return what follows the last message, which a stream that is still the same has: it keeps its newest part."""
        if self._last is None:
            return await stream.receive()
        try:
            async with asyncio.timeout(LAST_SECONDS):
                batch = await stream.receive()
        except TimeoutError:
            return []
        first, (offset, message_id) = batch[0], self._last
        if first.offset != offset:
            return batch
        if first.message.message_id != message_id:
            return []
        await stream.ack(first)
        return batch[1:] or await stream.receive()

    def _hear(self, delivery: Delivery) -> list[tuple[Ear, Inbound]]:
        """Read a delivery. One that fails ATTEMPTS times for a reason that nobody foresaw is passed over."""
        try:
            return self._read(delivery)
        except Exception:
            offset = delivery.offset or 0
            self._failures[offset] += 1
            if self._failures[offset] < ATTEMPTS:
                raise
            _log.exception("substrate_passed_over", reader=self._reader, offset=delivery.offset)
            return []

    def _read(self, delivery: Delivery) -> list[tuple[Ear, Inbound]]:
        """Return who hears the packet of a delivery, which is read once for all; nobody does if it is none."""
        try:
            packet = read_body(delivery.message)
            told = read_headers(delivery.message.headers)
        except (PacketRefused, ValueError) as error:
            _log.warning("substrate_unreadable", reader=self._reader, offset=delivery.offset, reason=str(error))
            return []
        shard = shard_of(packet.trace.session_id, self._shards)
        trace = trace_headers(delivery.message.headers)
        heard = [(ear, ear.hear(packet, told, shard, trace)) for ear in tuple(self._ears.values())]
        return [(ear, inbound) for ear, inbound in heard if inbound is not None]


# What happens to a delivery at once, even while a handler runs: read, fence, learn, and drop what came before.


class Intake:
    """Turns deliveries into packets to handle, each (packet_id, attempt) once."""

    def __init__(
        self,
        agent_id: str,
        sessions: KnownSessions,
        acknowledgements: Acknowledgements,
        shards: int,
        *,
        keeps_deliveries: bool = False,
        orchestrators: Orchestrators | None = None,
    ) -> None:
        """Make one.

        Args:
            agent_id: whose deliveries it takes.
            sessions: learns from each packet.
            acknowledgements: those that the agent waits for.
            shards: of the system.
            keeps_deliveries: child processes are to handle them.
            orchestrators: learns from each packet; agents of a host share it.
        """
        self._keeps_deliveries = keeps_deliveries
        self._agent_id = agent_id
        self._sessions = sessions
        self._acknowledgements = acknowledgements
        self._shards = shards
        self._orchestrators = orchestrators or Orchestrators(agent_id)
        self._open: dict[DeliveryKey, Inbound] = {}
        self._ended: RecentKeys[DeliveryKey] = RecentKeys()
        self.time = self._orchestrators.time

    def take(self, delivery: Delivery, is_urgent: bool) -> tuple[Inbound | None, bool]:
        """Return the packet of a delivery, and whether it is new.

        (None, False) = drop it. (inbound, False) = it is being handled already: wait for the same end.

        Raises:
            DeadLetter: bytes that are no packet of an orchestrator.
        """
        packet, told = self._read(delivery)
        if told is not None and self._orchestrators.is_fenced(told):
            _log.info(
                "delivery_fenced",
                agent_id=self._agent_id,
                shard=told.shard,
                epoch=told.epoch,
                batch=told.batch_no,
                **packet_ids(packet),
            )
            return None, False
        self._sessions.learn(packet, told.moment if told else None)
        if told is not None:
            self.time.learn(packet, told, delivery.message)
        key = (packet.packet_id, told.attempt if told else 1)
        if key in self._ended:
            return None, False
        if (known := self._open.get(key)) is not None:
            return known, False
        self._acknowledgements.take(packet)
        if told is not None and is_refusal(packet):
            log_refusal(self._agent_id, packet)
        shard = told.shard if told else shard_of(packet.trace.session_id, self._shards)
        has_receipts = told is not None and not is_refusal(packet) and not is_acceptance(packet)
        trace = trace_headers(delivery.message.headers)
        inbound = self._open[key] = Inbound(packet, key[1], shard, has_receipts, is_urgent, trace)
        inbound.rights = told.rights if told else frozenset()
        inbound.risk = delivery.risk
        if self._keeps_deliveries or delivery.risk is not None:
            inbound.delivery = delivery
        inbound.now = partial(self.time.now, shard)
        return inbound, True

    def set_aside(self, delivery: Delivery) -> tuple[int, Receipt] | None:
        """Return the shard and the receipt of a delivery that is set aside; None for what has no receipts.

        Raises:
            DeadLetter: as `take`.
        """
        packet, told = self._read(delivery)
        if told is None or is_refusal(packet) or is_acceptance(packet):
            return None
        return told.shard, Receipt(
            packet_id=packet.packet_id,
            session_id=packet.trace.session_id,
            recipient=self._agent_id,
            kind=ReceiptKind.DEAD_LETTERED,
            attempt=told.attempt,
            at=datetime.now(UTC),
            error=SET_ASIDE,
            set_aside=True,
        )

    def end(self, inbound: Inbound, done: asyncio.Future[None]) -> None:
        """Record the delivery's end: a failed one may come again, any other is remembered."""
        self._open.pop(inbound.key, None)
        self._acknowledgements.forget(inbound.packet)
        if not done.cancelled() and done.exception() is None:
            self._ended.add(inbound.key)

    def give_back(self, error: Exception) -> None:
        """End what is still open with this error."""
        for inbound in tuple(self._open.values()):
            if not inbound.done.done():
                inbound.done.set_exception(error)

    def _read(self, delivery: Delivery) -> tuple[Packet, DeliveryHeaders | None]:
        try:
            packet, told = read_body(delivery.message), read_headers(delivery.message.headers)
            if told is None:
                self._check_own(packet)
            return packet, told
        except (PacketRefused, ValueError) as error:
            _log.error(
                "delivery_unreadable",
                agent_id=self._agent_id,
                message_id=delivery.message.message_id,
                reason=str(error),
            )
            raise DeadLetter(f"message {delivery.message.message_id} is no delivery of a gate: {error}") from error

    def _check_own(self, packet: Packet) -> None:
        """Check a message that no orchestrator sent: only a replica of this agent may send it, to its modules."""
        if packet.channel is not Channel.INTRA_AGENT or packet.sender.agent_id != self._agent_id:
            raise ValueError(f"no gate has delivered it, and it is no INTRA_AGENT packet of {self._agent_id}")
