"""The reader of the dead queue (docs/specification/architecture.md section 3).

Every dead letter of a delivery becomes a receipt to its packet's shard; every other one goes back to a gate queue, so
that the log gets it.
"""

import asyncio
from datetime import UTC, datetime
from typing import NoReturn

from msgspec.structs import replace

from apc_bus import headers
from apc_bus.concurrency import Health, cancelled, run_until_success
from apc_bus.errors import BusError
from apc_bus.last_resort import ATTEMPTS, LastResort, taken_alone
from apc_bus.port import Bus, Delivery, Publication, Subscription
from apc_bus.telemetry import CountedWarning, get_logger
from apc_bus.topology import DEAD_QUEUE, gate_queue, recipient_of
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import shard_of
from apc_contracts.limits import DocumentLimits
from apc_contracts.session.receipts import HANDLER_ERROR
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import parse_packet
from apc_contracts.wire.receipts import Receipt, ReceiptKind
from apc_orchestrator.publications import dead_input, receipts

TASK = "dead_letters"
RETRY_SECONDS = 1.0
PREFETCH = 100
DEATH_QUEUE = "x-first-death-queue"
DEATH_REASON = "x-first-death-reason"
_log = get_logger("apc_orchestrator")


async def read_dead_letters(
    bus: Bus, shards: int, limits: DocumentLimits, health: Health, last_resort: LastResort
) -> None:
    """Report dead letters until cancelled; a letter is acknowledged once its receipt is confirmed."""
    reader = _LetterReader(bus, shards, limits, health, last_resort)
    await run_until_success(reader.run, name=TASK, task=TASK, awaits=(BusError,), health=health)


class _LetterReader:
    """Reports letters. One that fails is retried after those behind it, and /readyz reports it meanwhile."""

    def __init__(self, bus: Bus, shards: int, limits: DocumentLimits, health: Health, last_resort: LastResort) -> None:
        self._bus = bus
        self._shards = shards
        self._limits = limits
        self._health = health
        self._last_resort = last_resort
        self._ignored = CountedWarning(_log, "dead_letter_ignored")

    async def run(self) -> NoReturn:
        """Read letters. Raises BusError."""
        failed: list[tuple[Delivery, int]] = []
        watch = self._last_resort.watch(self._bus, DEAD_QUEUE)
        async with self._bus.subscribe(DEAD_QUEUE, prefetch=PREFETCH, watch=watch) as letters:
            receiving = asyncio.ensure_future(letters.receive())
            try:
                while True:
                    await asyncio.wait({receiving}, timeout=RETRY_SECONDS if failed else None)
                    waiting = failed
                    if receiving.done():
                        waiting = [*((letter, 0) for letter in receiving.result()), *failed]
                        receiving = asyncio.ensure_future(letters.receive())
                    failed = []
                    for letter, failures in waiting:
                        # One that is alone holds up all others, and so do very many.
                        is_over = failures >= ATTEMPTS and (letter.risk is not None or len(waiting) > PREFETCH // 2)
                        async with taken_alone([letter]):
                            is_settled = await self._report(letters, letter, is_over=is_over)
                        if not is_settled:
                            failed.append((letter, failures + 1))
                    if failed:
                        self._health.fail(TASK, f"{len(failed)} dead letters cannot be reported; the log says why")
                    else:
                        self._health.resume(TASK)
            finally:
                await cancelled(receiving)

    async def _report(self, letters: Subscription, letter: Delivery, *, is_over: bool) -> bool:
        """Report a letter, or with `is_over` hand it to a gate as it is; return whether it is settled.

        False is a fault of ours: it stays in the queue. Raises BusError.
        """
        try:
            if is_over or letter.set_aside is not None:
                reports = unread_reports_of(letter, self._bus.user)
            else:
                reports = reports_of(letter, self._bus.user, self._shards, self._limits)
        except Exception:
            _log.exception("dead_letter_failed", message_id=letter.message.message_id)
            return False
        if not reports:
            self._ignored.note(message_id=letter.message.message_id)
        for report in reports:
            await self._bus.publish(report)
        await letters.ack(letter)
        return True


def reports_of(letter: Delivery, own_user: str, shards: int, limits: DocumentLimits) -> list[Publication]:
    """Return the report of a dead letter; nothing for a NACK of the orchestrator, whose refused row is in the log.

    A letter that is no delivery of the orchestrator had been confirmed to its sender: the log gets it with its bytes.
    """
    receipt = receipt_of(letter, own_user, limits)
    if receipt is not None:
        message_id = f"{receipt.packet_id}/{receipt.recipient}/{receipt.attempt}/dead"
        return [receipts([receipt], _shard_of_delivery(letter, receipt, shards), message_id, own_user)]
    message = letter.message
    queue, reason = (str(message.headers.get(name, "unknown")) for name in (DEATH_QUEUE, DEATH_REASON))
    if message.user_id == own_user and message.type == PacketType.NACK and _recipient_of(letter) is not None:
        return []
    shard = next((shard for shard in range(shards) if gate_queue(shard) == queue), 0)
    return dead_input(message, queue, reason, shard, own_user)


def _shard_of_delivery(letter: Delivery, receipt: Receipt, shards: int) -> int:
    """Return the shard that delivered it: the session may have been opened with another number of shards."""
    told = letter.message.headers.get(headers.SHARD)
    return told if type(told) is int and 0 <= told < shards else shard_of(receipt.session_id, shards)


def unread_reports_of(letter: Delivery, own_user: str) -> list[Publication]:
    """Return a letter that cannot be read, for a gate to record: its body, its sender, its receipts and properties."""
    message, set_aside = letter.message, letter.set_aside
    if set_aside is not None and set_aside.properties is not None:
        message = replace(message, headers={**message.headers, headers.UNREADABLE: set_aside.properties})
    return dead_input(message, DEAD_QUEUE, "it cannot be read", 0, own_user)


def receipt_of(letter: Delivery, own_user: str, limits: DocumentLimits) -> Receipt | None:
    """Return the receipt of a dead letter; None when it is no delivery to an agent. TTL means expired.

    An agent can let its own messages die: only messages published by the orchestrator's broker user count as
    deliveries. The orchestrator's NACKs are not entries of a session, so they are not reported.
    """
    values = letter.message.headers
    recipient = _recipient_of(letter)
    if headers.UNREADABLE in values or recipient is None:
        return None
    if letter.message.user_id != own_user or letter.message.type == PacketType.NACK:
        return None
    try:
        packet = parse_packet(letter.message.body, limits)
    except PacketRefused:
        return None
    reason = str(values.get(DEATH_REASON, "unknown"))
    attempt = values.get(headers.ATTEMPT)
    is_expired = reason == "expired"
    return Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=recipient,
        kind=ReceiptKind.EXPIRED if is_expired else ReceiptKind.DEAD_LETTERED,
        attempt=attempt if isinstance(attempt, int) and attempt > 0 else 1,
        at=datetime.now(UTC),
        error=HANDLER_ERROR if reason == "rejected" else reason,
    )


def _recipient_of(letter: Delivery) -> str | None:
    """Return to whom a dead letter was delivered; None when it was no agent.

    A dead letter keeps the routing key with which it was published.
    """
    return recipient_of(str(letter.message.headers.get(DEATH_QUEUE, "")), letter.routing_key)
