"""A retraction on a real gate: the marks are those of the query, owners are told, and a takeover forgets nothing."""

from collections.abc import Callable
from typing import Any

from tests.orchestrator.conftest import House

from apc_contracts import ClaimPayload, Packet, ProofBundle, RetractionPayload
from apc_contracts.vocabulary import PacketType, Signal
from apc_log.queries import get_packet_impact

Build = Callable[..., Packet]
STALE = "SELECT packet_id, because_packet_id, retraction_packet_id FROM apc_log.packet_stale"


def claim(packet: Build, agent: str, parent: Packet, *evidence: str) -> Packet:
    payload = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    bundle = ProofBundle(evidence_refs=("log://1", *evidence))
    return packet(agent, payload, parent=parent, proof_bundle=bundle)


async def told(house: House, agent: str) -> list[Any]:
    """Return what stale packets an agent was told of since it was last asked."""
    packets: list[Any] = await house.handle(agent)
    await house.quiet()
    signals = [one for one in packets if one.packet_type is PacketType.SIGNAL]
    return [one.metadata["stale"] for one in signals if one.payload.signal is Signal.QUERY]


async def test_a_replacement_is_remembered_across_a_takeover(house: House, packet: Build, start: Build) -> None:
    opening = start()
    ground = claim(packet, "red-1", opening)
    replacement = claim(packet, "red-1", ground)
    payload = RetractionPayload(
        target_packet_id=ground.packet_id, reason="wrong", replacement_packet_id=replacement.packet_id
    )
    async with house.persister():
        async with house.gate():
            await house.register()
            for one in (opening, ground, packet("red-1", payload, parent=ground)):
                await house.publish(one)
            await house.quiet()
        async with house.gate():
            await house.publish(replacement)
            await house.publish(claim(packet, "blue-1", replacement))
            await house.quiet()
    assert await house.pool.fetch(STALE) == []
    whole = await get_packet_impact(house.pool, ground.packet_id)
    assert whole is not None and len(whole.resting) == 2
    spared = await get_packet_impact(house.pool, ground.packet_id, replacement=replacement.packet_id)
    assert spared is not None and spared.resting == ()


async def test_the_blast_radius_of_a_retraction(house: House, packet: Build, start: Build) -> None:
    opening = start()
    ground = claim(packet, "red-1", opening)
    child = claim(packet, "blue-1", ground)
    cited = claim(packet, "red-1", opening, f"packet:{child.packet_id}")
    apart = claim(packet, "blue-1", opening)
    retraction = packet("red-1", RetractionPayload(target_packet_id=ground.packet_id, reason="wrong"), parent=ground)
    late = claim(packet, "blue-1", cited)
    async with house.persister():
        async with house.gate():
            await house.register()
            for one in (opening, ground, child, cited, apart):
                await house.publish(one)
            await house.quiet()
            before = await get_packet_impact(house.pool, ground.packet_id)
            assert before is not None and not any(row.is_stale for row in before.resting)
        async with house.gate():  # the graph is read from the log again
            await house.publish(retraction)
            await house.quiet()
            assert [list(one["packets"]) for one in await told(house, "blue-1")] == [[str(child.packet_id)]]
            assert [list(one["packets"]) for one in await told(house, "red-1")] == [[str(cited.packet_id)]]
        async with house.gate():  # and so are the marks
            await house.publish(late)
            await house.quiet()
            assert [one["because"] for one in await told(house, "blue-1")] == [str(cited.packet_id)]
    marks = {row["packet_id"]: row for row in await house.pool.fetch(STALE)}
    assert {row.packet_id for row in before.resting} | {late.packet_id} == set(marks)
    assert {child.packet_id, cited.packet_id, late.packet_id} == set(marks)
    assert marks[cited.packet_id]["because_packet_id"] == ground.packet_id
    assert marks[cited.packet_id]["retraction_packet_id"] == retraction.packet_id
    assert marks[late.packet_id]["retraction_packet_id"] is None
    after = await get_packet_impact(house.pool, ground.packet_id)
    assert after is not None and all(row.is_stale for row in after.resting) and len(after.resting) == 3
    states = await house.pool.fetch(
        "SELECT DISTINCT state FROM apc_log.packet_state WHERE packet_id = ANY($1)", [*marks]
    )
    assert [row["state"] for row in states] == ["ARCHIVED"], "stale is an event, not a state"
