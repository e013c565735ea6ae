"""The loop guard through the gate: asked by a delivered QUERY, refused by a NACK, remembered over a takeover."""

from collections.abc import Callable
from typing import Any

import orjson
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet, load_contract, parse_packet, read_packet
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal

Build = Callable[..., Packet]
LOOPS = load_contract().loops
RECORDED = """
SELECT facts, refusal, body_stored FROM apc_log.agent_packets
WHERE refusal_code = 'LOOP_DETECTED' ORDER BY seq
"""


async def from_the_gate(house: House, agent: str) -> tuple[list[str], list[str]]:
    """(reasons of the QUERYs, codes of the NACKs) in an agent's inbox."""
    found: list[Any] = [parse_packet(delivery.message.body) for delivery in await house.read(agent)]
    own = [packet for packet in found if packet.sender.agent_id == ORCHESTRATOR]
    queries = [packet for packet in own if packet.packet_type is PacketType.SIGNAL]
    return (
        [packet.payload.reason for packet in queries if packet.payload.signal is Signal.QUERY],
        [packet.metadata["refusal"]["code"] for packet in own if packet.packet_type is PacketType.NACK],
    )


async def test_a_repetition_is_asked_about_and_refused_across_a_takeover(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            for _ in range(LOOPS.same_content.query_after + 1):
                await house.publish(packet("red-1", idea, ("sentinel",), parent=opening))
            await house.quiet()
            queries, nacks = await from_the_gate(house, "red-1")
            assert len(queries) == 1 and not nacks
        async with house.gate():
            for _ in range(LOOPS.same_content.refuse_after - LOOPS.same_content.query_after + 1):
                await house.publish(packet("red-1", idea, ("sentinel",), parent=opening))
            await house.quiet()
    queries, nacks = await from_the_gate(house, "red-1")
    assert nacks == ["LOOP_DETECTED"] * 2
    assert not [reason for reason in queries if "once more" in reason][1:]  # redelivered at most, not raised again


async def test_a_cycle_is_refused_across_a_takeover_and_replayed(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    said = opening = start()
    turns = LOOPS.idle_turns.refuse_after + 2
    async with house.persister():
        for half in range(2):
            async with house.gate():
                if half == 0:
                    await house.register()
                    await house.publish(opening)
                for number in range(half * turns // 2, (half + 1) * turns // 2):
                    sender, to = ("red-1", "blue-1") if number % 2 == 0 else ("blue-1", "red-1")
                    payload = idea.model_copy(update={"method_id": f"answer-{number}"})
                    said = packet(sender, payload, (to,), parent=said)
                    await house.publish(said)
                    await house.quiet()
        async with house.gate():
            payload = idea.model_copy(update={"method_id": "one too many"})
            await house.publish(packet("red-1", payload, ("blue-1",), parent=said))
            await house.quiet()
    (row,) = await house.pool.fetch(RECORDED)
    refusal, facts = orjson.loads(row["refusal"]), orjson.loads(row["facts"])
    assert refusal["path"] == "trace.parent_packet_id"
    assert facts["loop"]["voices"] == ["blue-1", "red-1"]
    replayed = judge_recorded(read_packet(row["body_stored"]), facts, load_contract())
    assert replayed.refusal is not None and replayed.refusal.document == refusal
    queries, _ = await from_the_gate(house, "blue-1")
    assert any("nothing new" in reason for reason in queries)
