"""A minimal worker that does what every worker must: dedupe, check the expiry, report, acknowledge last."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tests.support.waiting import until

from apc_bus import headers
from apc_bus.errors import BusError
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.topology import RECEIPTS, agent_queue
from apc_contracts.identity.ids import new_packet_id, slot_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import NackPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_contracts.wire.parsing import parse_packet
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts

PAUSE_SECONDS = 0.02
RECEIPTS_A_MESSAGE = 150
"""A message of this many receipts fits into 64 KiB."""


class ScriptedWorker:
    """Consumes both queues of one agent and records what it did.

    Args:
        bus: its bus; lost subscriptions are renewed, publishes of unknown outcome are repeated.
        agent: whose queues.
        rejects: tells which packets it gives to the dead-letter exchange.
    """

    def __init__(
        self,
        bus: Bus,
        agent: str,
        *,
        rejects: Callable[[Packet], bool] = lambda packet: False,
    ) -> None:
        self.agent = agent
        self.effects: Counter[UUID] = Counter()
        """packet_id -> how often a handler ran for it."""
        self.expired: set[UUID] = set()
        self.rejected: set[UUID] = set()
        self.nacks: dict[UUID, str] = {}
        """Refused packet -> the code, from the gate's NACKs."""
        self.duplicates = 0
        """Deliveries dropped because their (packet_id, attempt) had arrived before."""
        self._bus = bus
        self._rejects = rejects
        self._seen: set[tuple[UUID, int]] = set()
        self._busy: set[bool] = set()
        """The queues, urgent or not, whose deliveries it has in hand."""

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing in hand: a repeat may come when the log has everything, and is reported too."""
        return not self._busy

    @asynccontextmanager
    async def working(self) -> AsyncIterator["ScriptedWorker"]:
        """Consume until the context is left."""
        tasks = [asyncio.create_task(self._consume(urgent)) for urgent in (True, False)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _consume(self, urgent: bool) -> None:
        async def lose_subscription() -> None:
            with suppress(BusError):
                async with self._bus.subscribe(agent_queue(self.agent, urgent)) as inbox:
                    while True:
                        deliveries = await inbox.receive()
                        self._busy.add(urgent)
                        await self._take(inbox, deliveries)
                        self._busy.discard(urgent)
            self._busy.discard(urgent)

        await until(lose_subscription, None, pause_seconds=PAUSE_SECONDS)

    async def _take(self, inbox: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Handle, report, and only then acknowledge: after a crash in between the delivery arrives again."""
        receipts: list[Receipt] = []
        letters: list[Delivery] = []
        for delivery in deliveries:
            packet = parse_packet(delivery.message.body)
            attempt = delivery.message.headers.get(headers.ATTEMPT)
            assert isinstance(attempt, int), "every delivery names its attempt"
            is_repeat = (packet.packet_id, attempt) in self._seen
            self.duplicates += is_repeat
            self._seen.add((packet.packet_id, attempt))
            if packet.packet_type is PacketType.NACK and packet.sender.agent_id == ORCHESTRATOR:
                told: Any = packet.metadata
                self.nacks[packet.payload_as(NackPayload).acked_packet_id] = told["refusal"]["code"]
            elif self._rejects(packet):
                # Repeats too: the first nack may not have reached the broker.
                self.rejected.add(packet.packet_id)
                letters.append(delivery)
            elif not is_repeat:
                receipts += self._handle(packet, attempt)
        await self._report(receipts)
        for letter in letters:
            await inbox.nack(letter, requeue=False)
        for delivery in deliveries:
            if delivery not in letters:
                await inbox.ack(delivery)

    def _handle(self, packet: Packet, attempt: int) -> list[Receipt]:
        now = datetime.now(UTC)
        if packet.expires <= now:
            self.expired.add(packet.packet_id)
            kinds: tuple[ReceiptKind, ...] = (ReceiptKind.EXPIRED,)
        else:
            self.effects[packet.packet_id] += 1
            kinds = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)
        return [
            Receipt(
                packet_id=packet.packet_id,
                session_id=packet.trace.session_id,
                recipient=self.agent,
                kind=kind,
                attempt=attempt,
                at=now,
            )
            for kind in kinds
        ]

    async def _report(self, receipts: Sequence[Receipt]) -> None:
        for session_id in dict.fromkeys(receipt.session_id for receipt in receipts):
            of_session = [receipt for receipt in receipts if receipt.session_id == session_id]
            for start in range(0, len(of_session), RECEIPTS_A_MESSAGE):
                body = encode_receipts(of_session[start : start + RECEIPTS_A_MESSAGE])
                message = Message(body, str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=self._bus.user)
                slot = str(slot_of(session_id))
                await publish_until_confirmed(self._bus, Publication(RECEIPTS, slot, message))


async def publish_until_confirmed(bus: Bus, publication: Publication) -> int:
    """Publish until confirmed, as every sender does; return the number of attempts.

    An exception means an unknown outcome, and publishing again is always safe.
    """
    attempts = 0

    async def is_confirmed() -> bool:
        nonlocal attempts
        attempts += 1
        try:
            await bus.publish(publication)
        except BusError:
            return False
        return True

    await until(is_confirmed, None, pause_seconds=PAUSE_SECONDS)
    return attempts
