"""Verification in tasks beside the gate: artifact bytes, evidence in the store, endorsements (contract.md section 8).

The result enters the gate queue as a receipt of the orchestrator, so that order and replay hold. A store that does
not answer is no failure of the packet: it stays pending, and the check is repeated with back-off.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime

from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, BusError
from apc_bus.port import Bus
from apc_contracts.contract import Contract
from apc_contracts.errors import SignatureInvalid
from apc_contracts.parsing import ReceivedPacket
from apc_contracts.receipts import Receipt, ReceiptKind
from apc_contracts.registry import Registration
from apc_contracts.session import Verification
from apc_contracts.session.verification import Finding, evidence_artifacts, ruling
from apc_contracts.signing import verify_endorsement
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_orchestrator.publications import receipts
from apc_orchestrator.supervision import Health, persevere

LONGEST_REASON = 2000
"""Of a reason so much goes into the receipt: a message of receipts is bounded, a falsifier's name is not ours."""


class Verifier:
    """Checks what is submitted, `at_once` at a time. What waits for its store holds up no other."""

    def __init__(
        self,
        bus: Bus,
        artifacts: ArtifactStore,
        shard: int,
        registry: Mapping[str, Registration],
        contract: Contract,
        health: Health,
        at_once: int,
    ) -> None:
        self._bus = bus
        self._artifacts = artifacts
        self._shard = shard
        self._registry = registry
        self._rules = contract.verification
        self._health = health
        self._slots = asyncio.Semaphore(at_once)
        self._submitted: asyncio.Queue[Verification] = asyncio.Queue()

    def submit(self, request: Verification) -> None:
        """Verify this packet; the result comes as a receipt."""
        self._submitted.put_nowait(request)

    async def run(self) -> None:
        """Verify what is submitted and report it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._settle(await self._submitted.get()))

    async def _settle(self, request: Verification) -> None:
        packet_id = request.received.packet.packet_id
        receipt = await persevere(
            lambda: self._verify(request),
            name="verification",
            task=packet_id,
            awaits=(ArtifactError, OSError),
            health=self._health,
        )
        await persevere(
            lambda: self._report(receipt),
            name="verification_report",
            task=packet_id,
            awaits=(BusError,),
            health=self._health,
        )

    async def _verify(self, request: Verification) -> Receipt:
        """Raises ArtifactError or OSError when the store does not answer."""
        findings = list(request.findings)
        async with self._slots:
            if self._rules.endorsements != "off":
                findings += await asyncio.to_thread(lambda: list(self._endorsements(request.received)))
            findings += [finding async for finding in self._artifacts_of(request.received)]
        has_passed, reason = ruling(findings, self._rules)
        return _receipt(request.received, has_passed=has_passed, reason=reason)

    async def _artifacts_of(self, received: ReceivedPacket) -> AsyncIterator[Finding]:
        packet = received.packet
        if packet.packet_type is PacketType.ARTIFACT and self._rules.artifact_bytes != "off":
            try:
                await self._artifacts.check(packet.payload.artifact_hash)
            except (ArtifactMissing, ArtifactCorrupt) as error:
                yield Finding("artifact_bytes", f"payload.artifact_hash: {error}")
        if self._rules.evidence_artifacts == "off":
            return
        for at, reference in evidence_artifacts(packet):
            if not await self._artifacts.exists(reference):
                message = f"proof_bundle.evidence_refs[{at}]: no artifact {reference} in the store"
                yield Finding("evidence_artifacts", message)

    def _endorsements(self, received: ReceivedPacket) -> Iterator[Finding]:
        bundle, expected = received.packet.proof_bundle, received.payload_hash.hex()
        for at, endorsement in enumerate(bundle.signatures if bundle is not None else ()):
            place = f"proof_bundle.signatures[{at}]"
            if endorsement.payload_hash != expected:
                yield Finding("endorsements", f"{place}.payload_hash: the canonical payload has {expected}")
                continue
            endorser = self._registry.get(endorsement.agent_id)
            try:
                verify_endorsement(endorsement, endorser.public_keys if endorser is not None else {})
            except SignatureInvalid as error:
                yield Finding("endorsements", f"{place}.signature: of {endorsement.agent_id}: {error}")

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
