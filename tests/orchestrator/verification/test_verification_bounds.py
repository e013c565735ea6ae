"""Verification ends: for bytes that are too many, come too slowly or never, and however many packets wait."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tests.orchestrator.conftest import House

from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactError
from apc_contracts import ArtifactPayload, Packet
from apc_contracts.packet import ProofBundle
from apc_contracts.payloads.by_type import ClaimPayload
from apc_contracts.vocabulary import ArtifactKind

Build = Callable[..., Packet]
REASON = "SELECT metadata ->> 'error' FROM apc_log.packet_events WHERE packet_id = $1 AND to_state = 'REJECTED_POLICY'"
MAX_BYTES = 1000


class Slow(ArtifactStore):
    """A store that never comes to the end of one artifact, and cannot be asked for another."""

    endless = ""
    away = ""

    async def check(self, artifact_hash: str) -> None:
        if artifact_hash == self.endless:
            await asyncio.Event().wait()
        await super().check(artifact_hash)

    async def exists(self, artifact_hash: str) -> bool:
        if artifact_hash == self.away:
            raise ArtifactError("away")
        return await super().exists(artifact_hash)


def artifact(packet: Build, opening: Packet, artifact_hash: str) -> Packet:
    payload = ArtifactPayload(
        artifact_id=artifact_hash[7:15],
        artifact_kind=ArtifactKind.MODEL_SNAPSHOT,
        artifact_uri="memory:///x",
        artifact_hash=artifact_hash,
    )
    return packet("red-1", payload, ("sentinel",), parent=opening, phase="DISCOVERY")


def claim(packet: Build, sender: str, opening: Packet, name: str, evidence: str) -> Packet:
    payload = ClaimPayload(claim_id=name, hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    return packet(sender, payload, parent=opening, proof_bundle=ProofBundle(evidence_refs=(evidence,)))


async def ended(house: House, sent: Packet) -> tuple[str | None, str]:
    """State and reason of a packet that has left APPLIED."""

    async def is_settled() -> bool:
        return bool(await house.state_of(sent) in ("ARCHIVED", "REJECTED_POLICY"))

    await house.until(is_settled)
    return await house.state_of(sent), await house.pool.fetchval(REASON, sent.packet_id) or ""


async def test_bytes_that_are_too_many_too_slow_or_no_file_are_findings(
    house: House, packet: Build, start: Build, tmp_path: Path
) -> None:
    opening = start()
    folder = tmp_path / "store"
    house.artifacts = store = Slow(folder, max_bytes=MAX_BYTES)
    good, store.endless = await store.put(b"good"), await store.put(b"endless")
    large = await ArtifactStore(folder).put(b"x" * (MAX_BYTES + 1))
    pipe = "sha256:" + hashlib.sha256(b"pipe").hexdigest()
    place = folder / "sha256" / pipe[7:9] / pipe[9:11] / pipe[7:]
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    expected = {
        large: f"has {MAX_BYTES + 1} bytes",
        store.endless: "cannot be read within 0.5 s",
        pipe: "no regular file",
    }
    async with house.persister(), house.gate(verifications_at_once=1, verification_seconds=0.5):
        await house.discover(opening)
        sent = {artifact_hash: artifact(packet, opening, artifact_hash) for artifact_hash in (*expected, good)}
        for one in sent.values():
            await house.publish(one)
        await house.quiet()
        await house.handle("sentinel")
        for artifact_hash, words in expected.items():
            state, reason = await ended(house, sent[artifact_hash])
            assert state == "REJECTED_POLICY"
            assert reason.startswith("payload.artifact_hash: ") and words in reason
        assert await ended(house, sent[good]) == ("ARCHIVED", "")


async def test_who_fills_its_share_of_what_waits_is_refused_and_no_other(
    house: House, packet: Build, start: Build, tmp_path: Path
) -> None:
    opening = start()
    house.artifacts = store = Slow(tmp_path / "store")
    store.away, near = await store.put(b"away"), await store.put(b"near")
    async with house.persister(), house.gate(verifications_pending=8):
        await house.register()
        await house.publish(opening)
        waiting = [claim(packet, "red-1", opening, f"w-{at}", store.away) for at in range(2)]
        for one in waiting:
            await house.publish(one)
        beyond = claim(packet, "red-1", opening, "beyond", near)
        await house.publish(beyond)
        state, reason = await ended(house, beyond)
        assert (state, reason.partition(";")[0]) == ("REJECTED_POLICY", "too many verifications wait")
        other = claim(packet, "blue-1", opening, "other", near)
        await house.publish(other)
        assert await ended(house, other) == ("ARCHIVED", "")
        store.away = ""
        for one in waiting:
            assert await ended(house, one) == ("ARCHIVED", "")
        later = claim(packet, "red-1", opening, "later", near)
        await house.publish(later)
        assert await ended(house, later) == ("ARCHIVED", "")
