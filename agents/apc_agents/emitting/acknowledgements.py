"""Emits that wait for their ACK or NACK."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from apc_agents.errors import EmitRefused, EmitRejected, EmitTimeout
from apc_bus.backoff import Backoff
from apc_contracts.packet import AckPacket, NackPacket, Packet
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, PacketType

FIRST_LOOK, LONGEST_LOOK = 0.2, 2.0
"""Seconds between two looks for answers that come another way."""
_ANSWERS = frozenset({PacketType.ACK, PacketType.NACK})


class Expectation:
    """One emitted packet and those whose ACK is still missing."""

    def __init__(self, packet: Packet) -> None:
        self._packet_id = packet.packet_id
        self._missing = {recipient.agent_id for recipient in packet.recipients}
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answered(self, patience: timedelta, look: Callable[[], Awaitable[Iterable[Packet]]]) -> None:
        """Wait for every recipient's ACK; of a BROADCAST for the first.

        `look` finds the answers that do not come by this worker's inbox: now and then, for most come there.

        Raises:
            EmitRefused: the gate refused the packet.
            EmitRejected: a recipient answered NACK.
            EmitTimeout: not all have answered in time, as the gate says, or it says nothing either.
        """
        try:
            async with asyncio.timeout(patience.total_seconds()):
                pauses = Backoff(FIRST_LOOK, LONGEST_LOOK)
                while not (await asyncio.wait((self._answered,), timeout=pauses.take()))[0]:
                    for answer in await look():
                        self.take(answer)
                await self._answered
        except TimeoutError:
            why = f"nobody has answered within {patience.total_seconds():g} s"
            raise EmitTimeout(self._packet_id, why) from None

    def take(self, answer: Packet) -> None:
        """Take an ACK or NACK of this packet."""
        if self._answered.done():
            return
        if isinstance(answer, NackPacket):
            self._answered.set_exception(_refusal(answer))
            self._answered.exception()  # a caller that gave up waiting has not lost an exception
            return
        self._missing -= {answer.sender.agent_id, ALL_RECIPIENTS}
        if not self._missing:
            self._answered.set_result(None)


class Acknowledgements:
    """The waiting emits of a worker by packet_id."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, Expectation] = {}
        self._early: dict[UUID, dict[UUID, Packet]] = {}
        """Packet -> its answers that have arrived and wait for their turn behind a handler."""

    @contextmanager
    def expect(self, packet: Packet) -> Iterator[Expectation]:
        """Watch for the answers to a packet that is about to be published, which may be a repeat."""
        expectation = self._waiting[packet.packet_id] = Expectation(packet)
        for answer in self._early.get(packet.packet_id, {}).values():
            expectation.take(answer)
        try:
            yield expectation
        finally:
            self._waiting.pop(packet.packet_id, None)

    def take(self, packet: Packet) -> None:
        """Pass an ACK or NACK on to the emit that waits for it, if one does."""
        if packet.packet_type not in _ANSWERS or not isinstance(packet, AckPacket | NackPacket):
            return
        self._early.setdefault(packet.payload.acked_packet_id, {})[packet.packet_id] = packet
        expectation = self._waiting.get(packet.payload.acked_packet_id)
        if expectation is not None:
            expectation.take(packet)

    def forget(self, packet: Packet) -> None:
        """Forget an answer whose delivery has ended: it is recorded, or comes again."""
        if packet.packet_type not in _ANSWERS or not isinstance(packet, AckPacket | NackPacket):
            return
        packet_id = packet.payload.acked_packet_id
        early = self._early.get(packet_id, {})
        early.pop(packet.packet_id, None)
        if not early:
            self._early.pop(packet_id, None)


def _refusal(nack: NackPacket) -> Exception:
    if nack.sender.agent_id != ORCHESTRATOR:
        return EmitRejected(nack)
    told = nack.metadata or {}
    refusal, overdue = told.get("refusal"), told.get("acknowledgement")
    if isinstance(refusal, dict):
        code, path, message = (str(refusal.get(name, "")) for name in ("code", "path", "message"))
        wait = refusal.get("retry_after_ms")
        return EmitRefused(code, path, message, wait if isinstance(wait, int) else None)
    missing = overdue.get("missing") if isinstance(overdue, dict) else None
    if isinstance(missing, dict):
        states = {agent: str(state) for agent, state in missing.items()}
        return EmitTimeout(nack.payload.acked_packet_id, nack.payload.reason or "time is up", states)
    return EmitRejected(nack)
