"""Packets that are too large: their long texts go through the artifact store, and the handlers never notice."""

from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import obstore
import pytest
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker

from apc_agents import Agent, AgentTestClient, EmitRefused, HandlerContext, HandlerFailed, Retry
from apc_agents.emitter import ClaimChecks
from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactCorrupt, ArtifactMissing
from apc_contracts import Packet, PacketType, ReceiptKind, payload_hash
from apc_contracts.claim_check import check_in, redeem, references_of
from apc_contracts.payloads.by_type import ErrorPayload, IdeaPayload, NackPayload

TEXT = "a long story " * 40_000
HASH = f"sha256:{sha256(TEXT.encode()).hexdigest()}"


def echoing() -> tuple[Agent, list[Packet]]:
    """Return an agent that sends every IDEA on to itself, and what its handler was given."""
    agent = Agent("sentinel-1", role="sentinel", swarm="s")
    given: list[Packet] = []

    @agent.on(PacketType.IDEA)
    async def echo(idea: Packet, ctx: HandlerContext) -> None:
        given.extend((idea, ctx.published))
        await ctx.emit(idea.payload, to="builder-1", metadata={"note": "sent on"})

    return agent, given


async def test_a_handler_is_given_the_text_and_may_emit_one(idea: MakeIdea) -> None:
    agent, given = echoing()
    async with AgentTestClient(agent) as client:
        payload = idea().model_copy(update={"intent": TEXT})
        answer = await client.send(payload)
        assert answer is not None
        assert answer.payload_as(IdeaPayload).intent == TEXT and answer.metadata == {"note": "sent on"}
        assert await client.artifacts.get(HASH) == TEXT.encode()
    handled, published = given
    assert handled.payload == payload and handled.metadata is None
    assert published.payload_as(IdeaPayload).intent == HASH and published.packet_id == handled.packet_id
    (reference,) = references_of(published)
    assert (reference.path, reference.size) == ("/payload/intent", len(TEXT.encode()))
    assert (reference.uri or "").endswith(HASH.removeprefix("sha256:"))
    assert payload_hash(published.payload) != payload_hash(handled.payload)


async def test_what_travels_is_small_and_the_same_in_every_attempt(
    make_stage: StageMaker, idea: MakeIdea, make_packet: MakePacket, tmp_path: Path
) -> None:
    agent, _ = echoing()
    store = ArtifactStore(tmp_path)
    stage = await make_stage(agent, artifacts=store)
    gate = await stage.start()
    await store.put(TEXT.encode())
    packet = checked(make_packet(idea().model_copy(update={"intent": TEXT})), store)
    for attempt in (1, 2):
        await gate.deliver(packet, attempt=attempt)
        await gate.until(lambda attempt=attempt: gate.kinds(packet).count(ReceiptKind.OUTCOME) == attempt)
    bodies = [message.body for message in gate.messages if message.type == "IDEA"]
    assert len(bodies) == 2 and max(map(len, bodies)) < 3_000
    first, second = gate.packets
    assert (first.packet_id, first.payload) == (second.packet_id, second.payload)
    assert first.payload.intent == HASH


def checked(packet: Packet, store: ArtifactStore) -> Packet:
    found = check_in(packet, store.uri)
    assert found is not None
    return found.packet


@pytest.mark.parametrize("is_missing", [True, False])
async def test_a_text_that_the_store_does_not_hold_dead_letters_its_packet(
    idea: MakeIdea, make_packet: MakePacket, tmp_path: Path, is_missing: bool
) -> None:
    agent, given = echoing()
    store = ArtifactStore(tmp_path)
    packet = checked(make_packet(idea().model_copy(update={"intent": TEXT})), store)
    if not is_missing:
        digits = HASH.removeprefix("sha256:")
        await obstore.put_async(store._store, f"sha256/{digits[:2]}/{digits[2:4]}/{digits}", b"another story")
    async with AgentTestClient(agent, artifacts=store) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.deliver(packet)
        assert isinstance(failed.value.__cause__, ArtifactMissing if is_missing else ArtifactCorrupt)
        (error,) = [one for one in client.emitted if one.packet_type is PacketType.ERROR]
        assert HASH in error.payload_as(ErrorPayload).message
        await store.put(TEXT.encode())
        await client.deliver(packet, attempt=2)  # requeued by an operator, once the text is there
    assert given[0].payload_as(IdeaPayload).intent == TEXT


async def test_a_store_that_is_away_asks_for_another_attempt(
    idea: MakeIdea, make_packet: MakePacket, tmp_path: Path
) -> None:
    agent, given = echoing()
    packet = checked(make_packet(idea().model_copy(update={"intent": TEXT})), ArtifactStore(tmp_path))
    away = ArtifactStore(tmp_path / "away")
    (tmp_path / "away").rmdir()
    (tmp_path / "away").write_text("no folder any more")
    async with AgentTestClient(agent, artifacts=away) as client:
        await client.deliver(packet)
        kinds = {receipt.kind: receipt for receipt in client.receipts}
    assert ReceiptKind.OUTCOME not in kinds and "cannot read artifact" in (kinds[ReceiptKind.RETRY].error or "")
    assert not given
    with pytest.raises(Retry, match="cannot store artifact"):
        await ClaimChecks(away, 1 << 20).check_in(make_packet(idea().model_copy(update={"intent": TEXT})))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"size": 17 * 1024 * 1024}, "16777216 are allowed"),
        ({"size": 5}, "5 are allowed"),
        ({"path": "/payload/method_id"}, "there is no text"),
    ],
)
async def test_a_claim_check_that_does_not_fit_is_rejected(
    idea: MakeIdea, make_packet: MakePacket, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    agent, given = echoing()
    store = ArtifactStore(tmp_path)
    await store.put(TEXT.encode())
    packet = checked(make_packet(idea().model_copy(update={"intent": TEXT})), store)
    reference = {**references_of(packet)[0].model_dump(), **changed}
    forged = packet.model_copy(update={"metadata": {"claim_check": [reference]}})
    async with AgentTestClient(agent, artifacts=store) as client:
        (nack,) = await client.deliver(forged)
    assert nack.packet_type is PacketType.NACK and words in (nack.payload_as(NackPayload).reason or "")
    assert not given


@pytest.mark.parametrize(
    ("fields", "has_store", "words"),
    [
        ({"intent": TEXT}, False, "no artifact store .* ctx.artifacts .*claim check"),
        ({"assumptions": ("x" * 900,) * 400}, True, "stays larger than a packet may be.* ctx.artifacts .*claim check"),
        ({"intent": "x" * (17 * 1024 * 1024)}, True, "have 17825792 bytes; 16777216 are allowed"),
    ],
)
async def test_what_cannot_be_made_to_fit_is_refused_and_names_the_claim_check(
    make_stage: StageMaker,
    idea: MakeIdea,
    make_packet: MakePacket,
    tmp_path: Path,
    fields: dict[str, Any],
    has_store: bool,
    words: str,
) -> None:
    agent, refused = Agent("sentinel-1", role="sentinel", swarm="s"), []

    @agent.on(PacketType.IDEA)
    async def swell(packet: Packet, ctx: HandlerContext) -> None:
        with pytest.raises(EmitRefused, match=words) as found:
            await ctx.emit(packet.payload.model_copy(update=fields))
        refused.append(found.value)

    store = ArtifactStore(tmp_path) if has_store else None
    stage = await make_stage(agent, artifacts=store)
    gate = await stage.start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert [(error.code, error.path) for error in refused] == [("TOO_LARGE", "$")]
    assert not gate.packets
    if store is not None:
        assert [page async for page in obstore.list(store._store) if page] == []


async def test_the_texts_come_back_in_a_larger_packet_than_may_be_sent(idea: MakeIdea, make_packet: MakePacket) -> None:
    store = ArtifactStore("memory:///")
    checks = ClaimChecks(store, 16 << 20)
    payload = idea().model_copy(update={"assumptions": tuple(letter * 1_000_000 for letter in "abc")})
    packet = make_packet(payload, ttl=timedelta(hours=1))
    published = await checks.check_in(packet)
    assert redeem(published, {one.hash: await store.get(one.hash) for one in references_of(published)}) == packet
    assert await checks.redeem(published) == packet
