"""Verification beside a real gate: what it finds, that it waits for its store, and that a fault of ours is told."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactError
from apc_bus.port import Delivery, Message, Publication
from apc_bus.topology import DEAD_QUEUE, RECEIPTS, agent_queue
from apc_contracts import ClaimPayload, IdeaPayload, Packet, ProofBundle, SignalPayload
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.identity.signing import encode_public_key, endorse, new_private_key
from apc_contracts.packet import Endorsement
from apc_contracts.vocabulary import PacketType, Signal
from apc_contracts.wire.parsing import payload_hash
from apc_orchestrator import dead_letters

Build = Callable[..., Packet]
REASON = "SELECT metadata ->> 'error' FROM apc_log.packet_events WHERE packet_id = $1 AND to_state = 'REJECTED_POLICY'"
KEY = new_private_key()


def claim(packet: Build, opening: Packet, name: str, **bundle: Any) -> Packet:
    """Return a CLAIM of red-1 to the orchestrator, which applies it at once."""
    payload = ClaimPayload(claim_id=name, hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    bundle.setdefault("evidence_refs", ("log://1",))
    return packet("red-1", payload, parent=opening, proof_bundle=ProofBundle(**bundle))


async def add_key(house: House) -> None:
    """Register sentinel again, with a public key."""
    change = AgentAdded(
        change_id=uuid4(),
        agent_id="sentinel",
        broker_user="agent.sentinel",
        role="role",
        swarm_id="watch",
        rights=("veto",),
        handles=tuple(PacketType),
        public_keys={"k1": encode_public_key(KEY)},
    )
    message = Message(encode_registry_change(change), "key", type=headers.TYPE_REGISTRY, user_id="operator")
    await house.client("operator").publish(Publication(RECEIPTS, "0", message))


async def until_settled(house: House, *packets: Packet) -> None:
    """Wait until every packet has left APPLIED."""

    async def are_settled() -> bool:
        return all([await house.state_of(one) in ("ARCHIVED", "REJECTED_POLICY") for one in packets])

    await house.until(are_settled)


async def test_each_finding_refuses_with_its_reason(house: House, packet: Build, start: Build) -> None:
    opening = start()
    stored, missing = await house.artifacts.put(b"evidence"), "sha256:" + "1" * 64
    plain = claim(packet, opening, "c-1", evidence_refs=("log://1",))
    right = payload_hash(plain.payload)
    signed = endorse(KEY, "k1", "sentinel", right)
    good = claim(packet, opening, "c-1", evidence_refs=(stored,), signatures=(signed,))
    unsigned = claim(packet, opening, "c-1", signatures=(Endorsement(agent_id="blue-1", payload_hash=right),))
    bad = {
        "proof_bundle.evidence_refs[1]: no artifact": claim(packet, opening, "a", evidence_refs=(stored, missing)),
        "proof_bundle.evidence_refs[0]: ": claim(packet, opening, "b", evidence_refs=(f"packet:{uuid4()}",)),
        "proof_bundle.signatures[0].payload_hash: ": claim(packet, opening, "d", signatures=(signed,)),
        "proof_bundle.signatures[0].signature: of blue-1: ": claim(
            packet, opening, "c-1", signatures=(signed.model_copy(update={"agent_id": "blue-1"}),)
        ),
        "proof_bundle.signatures[1].signature: of sentinel: the signature does not fit": claim(
            packet,
            opening,
            "c-1",
            signatures=(signed, endorse(new_private_key(), "k1", "sentinel", right)),
        ),
    }
    async with house.persister(), house.gate():
        await house.register()
        await add_key(house)
        for one in (opening, plain, good, unsigned, *bad.values()):
            await house.publish(one)
        await until_settled(house, plain, good, unsigned, *bad.values())
        await house.quiet()
    assert [await house.state_of(one) for one in (plain, good, unsigned)] == ["ARCHIVED"] * 3
    for beginning, sent in bad.items():
        reason = await house.pool.fetchval(REASON, sent.packet_id)
        assert reason is not None and reason.startswith(beginning), reason


class Reluctant(ArtifactStore):
    """A store of which single objects cannot be reached, until they are let go."""

    def __init__(self, location: Any) -> None:
        super().__init__(location)
        self.away: set[str] = set()
        self.broken: set[str] = set()
        self.asked: set[str] = set()

    async def exists(self, artifact_hash: str) -> bool:
        self.asked.add(artifact_hash)
        if artifact_hash in self.away:
            raise ArtifactError("away")
        if artifact_hash in self.broken:
            raise LookupError("a fault of ours")
        return await super().exists(artifact_hash)


async def test_what_waits_for_its_store_holds_up_no_other(
    house: House, packet: Build, start: Build, tmp_path: Path
) -> None:
    opening = start()
    house.artifacts = store = Reluctant(tmp_path / "slow")
    first, second, third = [await store.put(text) for text in (b"1", b"2", b"3")]
    store.away.add(first)
    waiting = claim(packet, opening, "a", evidence_refs=(first,))
    other = claim(packet, opening, "b", evidence_refs=(second,))
    store.broken.add(third)
    faulty = claim(packet, opening, "c", evidence_refs=(third,))
    async with house.persister():
        async with house.gate(verifications_at_once=1) as gate:
            await house.register()
            await house.publish(opening)
            await house.publish(waiting)

            async def is_asked() -> bool:
                return first in store.asked

            await house.until(is_asked)
            await house.publish(other)
            await until_settled(house, other)
            assert await house.state_of(waiting) == "APPLIED"
            assert gate.is_ready, "a store that is away is waited for: nothing of ours has failed"
            await house.publish(faulty)

            async def is_told() -> bool:
                return not gate.is_ready

            await house.until(is_told)
            await house.quiet()
            assert await house.state_of(faulty) == "APPLIED", "not the packet's fault"
            store.broken.clear()
            await until_settled(house, faulty)

            async def is_well() -> bool:
                return bool(gate.is_ready)

            await house.until(is_well)
        assert await house.state_of(waiting) == "APPLIED"
        store.away.clear()
        async with house.gate():
            await until_settled(house, waiting)
    states = [await house.state_of(one) for one in (waiting, other, faulty)]
    assert states == ["ARCHIVED"] * 3


async def test_a_verification_of_an_ended_session_is_taken_up_again(
    house: House, packet: Build, start: Build, tmp_path: Path
) -> None:
    opening = start()
    house.artifacts = store = Reluctant(tmp_path / "slow")
    first = await store.put(b"1")
    store.away.add(first)
    waiting = claim(packet, opening, "a", evidence_refs=(first,))
    stop = packet("librarian", SignalPayload(signal=Signal.STOP), parent=opening)
    async with house.persister():
        async with house.gate():
            await house.register()
            for one in (opening, waiting, stop):
                await house.publish(one)
            await house.quiet()
            await house.handle_all()
            assert (await house.state(), await house.state_of(waiting)) == ("HALTED", "APPLIED")
            assert await house.pool.fetchval("SELECT open_deliveries FROM apc_log.sessions") == 0
        store.away.clear()
        async with house.gate():
            await until_settled(house, waiting)


async def test_a_dead_letter_that_fails_holds_up_no_other_and_is_told(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = start()
    sent, behind = (packet("red-1", idea, ("sentinel",), parent=opening) for _ in range(2))
    is_broken = asyncio.Event()
    is_broken.set()
    receipt_of = dead_letters.receipt_of

    def receipt_or_fault(letter: Delivery, *given: Any) -> Any:
        if is_broken.is_set() and letter.message.message_id == str(sent.packet_id):
            raise LookupError("a fault of ours")
        return receipt_of(letter, *given)

    monkeypatch.setattr(dead_letters, "receipt_of", receipt_or_fault)
    async with house.persister(), house.gate() as gate:
        await house.register()
        await house.publish(opening)
        await house.publish(sent)
        await house.publish(behind)
        await house.quiet()
        async with house.client("agent.sentinel").subscribe(agent_queue("sentinel", False)) as inbox:
            for _ in range(2):
                (delivery,) = await inbox.receive(1)
                await inbox.nack(delivery, requeue=False)

        async def is_told() -> bool:
            return not gate.is_ready

        def is_dead(dead: Packet) -> Callable[[], Awaitable[bool]]:
            async def holds() -> bool:
                return bool(await house.state_of(dead) == "DEAD_LETTERED")

            return holds

        await house.until(is_dead(behind))
        await house.until(is_told)
        assert await house.state_of(sent) != "DEAD_LETTERED"
        is_broken.clear()
        await house.until(is_dead(sent))
        assert (await house.client("operator").depth(DEAD_QUEUE)).messages == 0
