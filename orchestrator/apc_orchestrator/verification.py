"""Verification in tasks beside the gate: artifact bytes, evidence in the store, endorsements.

The result enters the gate queue as a receipt of the orchestrator, so that order and replay hold. A store that does not
answer is no failure of the packet: it stays pending, and the check is retried with back-off. Source:
docs/specification/contract.md section 8.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Health, run_until_success
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge, BusError
from apc_bus.port import Bus
from apc_bus.settings import OrchestratorSettings
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import SignatureInvalid
from apc_contracts.identity.registry import Registration
from apc_contracts.identity.signing import verify_endorsement
from apc_contracts.payloads.by_type import ArtifactPayload
from apc_contracts.session.lifecycle import evidence_artifacts, verification_ruling
from apc_contracts.session.movement import FailedCheck, Verification
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt, ReceiptKind
from apc_orchestrator.publications import receipts

LONGEST_REASON = 2000
"""Characters of a reason in the receipt: receipts are bounded, and a falsifier's name may be long."""

LOOKED_UP = ("artifact_bytes", "evidence_artifacts", "endorsements")
"""The checks made here."""


@dataclass(frozen=True)
class Bounds:
    """Limits of running and waiting verifications."""

    at_once: int
    time: timedelta
    """For the bytes of one artifact; a slower store counts as not having it."""
    pending: int
    """Packets that may wait for their verification; further ones fail at once."""

    @classmethod
    def of(cls, settings: OrchestratorSettings) -> Self:
        """Return the bounds that the settings give."""
        time = timedelta(seconds=settings.verification_seconds)
        return cls(settings.verifications_at_once, time, settings.verifications_pending)

    @property
    def pending_of_one(self) -> int:
        """The share of one sender: filling it does not affect others."""
        return max(1, self.pending // 4)


class Verifier:
    """Verifies submitted packets, several at a time. A slow store holds up no other check."""

    def __init__(
        self,
        bus: Bus,
        artifacts: ArtifactStore,
        shard: int,
        registry: Mapping[str, Registration],
        contract: Contract,
        health: Health,
        bounds: Bounds,
    ) -> None:
        self._bus = bus
        self._artifacts = artifacts
        self._shard = shard
        self._registry = registry
        self._rules = contract.verification
        self._health = health
        self._bounds = bounds
        self._slots = asyncio.Semaphore(bounds.at_once)
        self._pending: Counter[str] = Counter()
        self._submitted_ids: set[UUID] = set()
        self._submitted: asyncio.Queue[Verification | Receipt] = asyncio.Queue()

    def submit(self, request: Verification) -> None:
        """Verify this packet; the result arrives as a receipt. Beyond the bounds it fails at once."""
        packet_id, sender = request.received.packet.packet_id, request.received.packet.sender.agent_id
        if packet_id in self._submitted_ids:
            return  # its session was evicted and loaded again meanwhile
        if self._pending.total() >= self._bounds.pending or self._pending[sender] >= self._bounds.pending_of_one:
            self._submitted.put_nowait(self._refusal(request))
            return
        self._pending[sender] += 1
        self._submitted_ids.add(packet_id)
        self._submitted.put_nowait(request)

    async def run(self) -> None:
        """Verify what is submitted and report it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                submitted = await self._submitted.get()
                settle = self._settle(submitted) if isinstance(submitted, Verification) else self._tell(submitted)
                tasks.create_task(settle)

    async def _settle(self, request: Verification) -> None:
        packet = request.received.packet
        try:
            receipt = await run_until_success(
                lambda: self._verify(request),
                name="verification",
                task=packet.packet_id,
                awaits=(ArtifactError, OSError),
                health=self._health,
            )
        finally:
            self._pending -= Counter([packet.sender.agent_id])
            self._submitted_ids.discard(packet.packet_id)
        await self._tell(receipt)

    async def _tell(self, receipt: Receipt) -> None:
        await run_until_success(
            lambda: self._report(receipt),
            name="verification_report",
            task=receipt.packet_id,
            awaits=(BusError,),
            health=self._health,
        )

    def _refusal(self, request: Verification) -> Receipt:
        """Return the result for a verification beyond the bounds: nothing was checked, and the mode still applies."""
        checks = [name for name in LOOKED_UP if getattr(self._rules, name) != "off"]
        message = "too many verifications wait; send it again under a new id when some have ended"
        has_passed, reason = verification_ruling(
            [*request.findings, *(FailedCheck(name, message) for name in checks)], self._rules
        )
        return _receipt(request.received, has_passed=has_passed, reason=reason)

    async def _verify(self, request: Verification) -> Receipt:
        """Verify a packet. Raises ArtifactError or OSError when the store does not answer."""
        findings = list(request.findings)
        async with self._slots:
            if self._rules.endorsements != "off":
                findings += await asyncio.to_thread(lambda: list(self._endorsements(request.received)))
            findings += [finding async for finding in self._artifacts_of(request.received)]
        has_passed, reason = verification_ruling(findings, self._rules)
        return _receipt(request.received, has_passed=has_passed, reason=reason)

    async def _artifacts_of(self, received: ReceivedPacket) -> AsyncIterator[FailedCheck]:
        packet = received.packet
        if packet.packet_type is PacketType.ARTIFACT and self._rules.artifact_bytes != "off":
            if (message := await self._bytes_of(packet.payload_as(ArtifactPayload).artifact_hash)) is not None:
                yield FailedCheck("artifact_bytes", f"payload.artifact_hash: {message}")
        if self._rules.evidence_artifacts == "off":
            return
        for at, reference in evidence_artifacts(packet):
            if not await self._artifacts.exists(reference):
                message = f"proof_bundle.evidence_refs[{at}]: no artifact {reference} in the store"
                yield FailedCheck("evidence_artifacts", message)

    async def _bytes_of(self, artifact_hash: str) -> str | None:
        """Return what is wrong with an artifact; None when its bytes have the hash."""
        try:
            async with asyncio.timeout(self._bounds.time.total_seconds()) as limit:
                await self._artifacts.check(artifact_hash)
        except (ArtifactMissing, ArtifactCorrupt, ArtifactTooLarge) as error:
            return str(error)
        except TimeoutError:
            if not limit.expired():
                raise
            return f"artifact {artifact_hash} cannot be read within {self._bounds.time.total_seconds():g} s"
        return None

    def _endorsements(self, received: ReceivedPacket) -> Iterator[FailedCheck]:
        bundle, expected = received.packet.proof_bundle, received.payload_hash.hex()
        for at, endorsement in enumerate(bundle.signatures if bundle is not None else ()):
            place = f"proof_bundle.signatures[{at}]"
            if endorsement.payload_hash != expected:
                yield FailedCheck("endorsements", f"{place}.payload_hash: the canonical payload has {expected}")
                continue
            endorser = self._registry.get(endorsement.agent_id)
            try:
                verify_endorsement(endorsement, endorser.public_keys if endorser is not None else {})
            except SignatureInvalid as error:
                yield FailedCheck("endorsements", f"{place}.signature: of {endorsement.agent_id}: {error}")

    async def _report(self, receipt: Receipt) -> None:
        message_id = f"{receipt.packet_id}/{receipt.kind}"
        await self._bus.publish(receipts([receipt], self._shard, message_id, self._bus.user))


def _receipt(received: ReceivedPacket, *, has_passed: bool, reason: str | None) -> Receipt:
    packet = received.packet
    return Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=ORCHESTRATOR,
        kind=ReceiptKind.VERIFICATION_PASS if has_passed else ReceiptKind.VERIFICATION_FAIL,
        attempt=1,
        at=datetime.now(UTC),
        error=None if reason is None else reason[:LONGEST_REASON],
    )
