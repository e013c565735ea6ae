"""Verification of ARTIFACTs in a task beside the gate: the bytes in the store against the hash in the packet.

The result enters the gate queue as a receipt of the orchestrator, so that order and replay hold. A store that does
not answer is no failure of the packet: the check is repeated with back-off.
"""

import asyncio
from datetime import UTC, datetime

import structlog

from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, BusError
from apc_bus.port import Bus
from apc_contracts.parsing import ReceivedPacket
from apc_contracts.receipts import Receipt, ReceiptKind
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_orchestrator.publications import receipts

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0

_log = structlog.get_logger("apc_orchestrator")


class Verifier:
    """Checks artifacts one after another; `run` ends only when it is cancelled."""

    def __init__(self, bus: Bus, artifacts: ArtifactStore, shard: int) -> None:
        self._bus = bus
        self._artifacts = artifacts
        self._shard = shard
        self._waiting: asyncio.Queue[ReceivedPacket] = asyncio.Queue()

    def submit(self, received: ReceivedPacket) -> None:
        """Check this ARTIFACT's bytes."""
        self._waiting.put_nowait(received)

    async def run(self) -> None:
        """Verify what is submitted and report it as receipts."""
        while True:
            received = await self._waiting.get()
            await self._report(await self._check(received))

    async def _check(self, received: ReceivedPacket) -> Receipt:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._artifacts.get(received.packet.payload.artifact_hash)
            except (ArtifactMissing, ArtifactCorrupt) as error:
                return _result(received, ReceiptKind.VERIFICATION_FAIL, str(error))
            except (ArtifactError, OSError) as error:
                _log.warning("artifact_store_awaited", reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                return _result(received, ReceiptKind.VERIFICATION_PASS, None)

    async def _report(self, receipt: Receipt) -> None:
        pause = FIRST_PAUSE_SECONDS
        message_id = f"{receipt.packet_id}/{receipt.kind}"
        while True:
            try:
                await self._bus.publish(receipts([receipt], self._shard, message_id, self._bus.user))
                return
            except BusError as error:
                _log.warning("verification_unreported", packet_id=str(receipt.packet_id), reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _result(received: ReceivedPacket, kind: ReceiptKind, error: str | None) -> Receipt:
    packet = received.packet
    return Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=ORCHESTRATOR,
        kind=kind,
        attempt=1,
        at=datetime.now(UTC),
        error=error,
    )
