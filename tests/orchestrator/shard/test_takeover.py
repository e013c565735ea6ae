"""A gate that goes and one that comes: nothing judged twice, nothing lost, everything taken up again."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tests.orchestrator.conftest import House

from apc_bus.topology import gate_queue
from apc_contracts import ArtifactPayload, IdeaPayload, Packet, SignalPayload, TaskIrPayload
from apc_contracts.payloads.task_ir import IrConstraint, IrHeader
from apc_contracts.vocabulary import DeliveryMode, Signal
from apc_orchestrator.judging.judge import Judge

Build = Callable[..., Packet]


def brief_of(packet: Build, opening: Packet, agent: str, *keys: str) -> Packet:
    """Return a research brief of the librarian."""
    header = IrHeader(task_id="task-1", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    constraint = IrConstraint(id="c", constraint_kind="QUALITY", expression="best")
    payload = TaskIrPayload(ir_header=header, objects=(constraint,))
    return packet("librarian", payload, (agent,), parent=opening, keys=keys)


async def test_open_deliveries_come_again_under_the_new_epoch(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    sent = packet("red-1", idea, ("sentinel",), parent=opening)
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            await house.publish(sent)
            await house.quiet()
            for agent in ("red-1", "blue-1", "librarian"):
                await house.handle(agent)
            await house.quiet()
        first = await house.read("sentinel")
        async with house.gate() as gate:
            await house.publish(sent)
            await house.quiet()
            again = await house.read("sentinel")
            epoch = gate.shards[0].epoch
            await house.report("sentinel", sent.packet_id, "delivery_ack", "consumer_apply", "outcome")
            await house.quiet()
    ids = {delivery.message.message_id for delivery in first}
    assert {delivery.message.message_id for delivery in again} == ids
    assert all(delivery.message.headers["apc-attempt"] == 1 for delivery in again)
    assert {delivery.message.headers["apc-epoch"] for delivery in again} == {epoch}
    mark = str(again[0].message.headers["apc-mark"])
    old_epoch, old_batch = map(int, mark.split("."))
    newest = max((d.message.headers["apc-epoch"], d.message.headers["apc-batch"]) for d in first)
    assert epoch is not None and newest <= (old_epoch, old_batch) and old_epoch < epoch
    row = await house.pool.fetchrow(
        "SELECT count(*) AS packets FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id
    )
    assert row["packets"] == 1
    assert await house.state_of(sent) == "ARCHIVED"


async def test_who_stops_judges_what_the_broker_has_handed_over(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    sent = [packet("red-1", idea, ("sentinel",), parent=opening) for _ in range(20)]
    async with house.persister():
        async with house.gate(batch_packets=1):
            await house.open(opening)
            for one in sent:
                await house.publish(one)
        assert (await house.client("operator").depth(gate_queue(0))).messages == 0
        await house.quiet()
    ids = [one.packet_id for one in sent]
    statement = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = ANY($1)"
    assert await house.pool.fetchval(statement, ids) == 20


async def test_who_stops_judges_what_its_last_batch_had_no_room_for(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = start()
    sent = [packet("red-1", idea, ("sentinel",), parent=opening) for _ in range(20)]
    async with house.persister():
        async with house.gate():
            await house.open(opening)
            monkeypatch.setattr("apc_orchestrator.batch.FULL_BYTES", 1)  # each fills its batch
            for one in sent:
                await house.publish(one)
        assert (await house.client("operator").depth(gate_queue(0))).messages == 0
        await house.quiet()


async def test_who_stops_leaves_though_others_go_on_publishing(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apc_orchestrator.shard.shard_server.LONGEST_DRAIN_SECONDS", 0.2)
    opening = start()

    async def publish() -> None:
        while True:
            await house.publish(packet("red-1", idea, ("sentinel",), parent=opening))

    async def is_served() -> bool:
        statement = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_type = 'IDEA'"
        return bool(await house.pool.fetchval(statement))

    async with house.persister():
        async with house.gate(batch_packets=2):
            await house.open(opening)
            publishing = asyncio.create_task(publish())
            await house.until(is_served)
        assert not publishing.done()
        publishing.cancel()
        await asyncio.wait([publishing])
        async with house.gate():
            await house.quiet()


async def test_who_stops_says_what_became_of_its_last_deliveries(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    sent = packet("red-1", idea, ("_substrate",), parent=opening, mode=DeliveryMode.SUBSTRATE)
    async with house.persister():
        async with house.gate():
            await house.open(opening)
            await house.publish(sent)
        await house.quiet()
    assert await house.state_of(sent) == "ARCHIVED"


async def test_a_takeover_reads_from_the_broker_between_two_sessions(
    house: House, packet: Build, start: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the soak: a gate that was busy with the deliveries of all sessions gave its shard up for the silence."""
    redeliver, turns, seen = Judge.redeliver, 0, []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def note(judge: Judge, *arguments: Any) -> None:
        seen.append(turns)
        redeliver(judge, *arguments)

    async def all_are_back() -> bool:
        return len(seen) == 3

    async with house.persister():
        async with house.gate():
            await house.register()
            for number in range(3):
                await house.publish(packet("librarian", start().payload, session_id=f"s-{number}"))
            await house.quiet()
        monkeypatch.setattr(Judge, "redeliver", note)
        other = asyncio.create_task(take_turns())
        async with house.gate():
            await house.until(all_are_back)
        other.cancel()
    assert len(set(seen)) == 3, "others had their turn between two sessions"


async def test_a_recorded_verdict_is_given_again_after_a_takeover(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    refused = packet("red-1", idea, ("nobody",), parent=opening)
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            await house.publish(refused)
            await house.quiet()
        await house.read("red-1")
        async with house.gate():
            await house.publish(refused)
            await house.quiet()
    nacks = await house.nacks("red-1")
    assert [nack.metadata["refusal"]["code"] for nack in nacks] == ["UNROUTABLE"]
    count = await house.pool.fetchval(
        "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = $1", refused.packet_id
    )
    assert count == 1


async def test_a_session_goes_on_where_it_stood(house: House, packet: Build, start: Build) -> None:
    opening = start()

    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            await house.publish(brief_of(packet, opening, "red-1", "a", "b"))
            await house.quiet()
        async with house.gate():
            await house.publish(brief_of(packet, opening, "blue-1", "c", "d"))
            await house.quiet()
            assert await house.state() == "DIFFERENTIATED_RESEARCH"


async def test_a_timer_that_came_due_while_nobody_was_there_fires_at_takeover(house: House, start: Build) -> None:
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(start(state_deadline_ms=1500))
            await house.quiet()
        async with house.gate():

            async def is_halted() -> bool:
                return bool(await house.state() == "HALTED")

            await house.until(is_halted)
    document = orjson.loads(await house.pool.fetchval("SELECT document FROM apc_log.sessions"))
    assert document["halt_reason"] == "STATE_DEADLINE in SESSION_OPEN"


async def test_timers_that_came_due_together_fire_only_while_they_are_due(
    house: House, packet: Build, start: Build
) -> None:
    opening = start(generation_deadline_ms=1000, state_deadline_ms=1500)
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            for agent, keys in (("red-1", "ab"), ("blue-1", "cd")):
                await house.publish(brief_of(packet, opening, agent, *keys))
            await house.publish(packet("red-1", SignalPayload(signal=Signal.SYNC), parent=opening))
            await house.quiet()

        async def are_both_due() -> bool:
            return bool(
                await house.pool.fetchval(
                    "SELECT now() > (document -> 'deadlines' ->> 'state')::timestamptz FROM apc_log.sessions"
                )
            )

        await house.until(are_both_due)
        async with house.gate():

            async def has_moved() -> bool:
                return bool(await house.state() != "DIFFERENTIATED_RESEARCH")

            await house.until(has_moved)
            assert await house.state() == "INDEPENDENT_DISCOVERY"


async def test_the_projection_is_the_logs_last_word(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(opening)
            for _ in range(20):
                await house.publish(packet("red-1", idea, ("sentinel", "blue-1"), parent=opening))
            await house.quiet()
            await house.handle_all()
            before = await house.pool.fetchval("SELECT document FROM apc_log.sessions")
    assert orjson.loads(before)["spent"] == {"packets": 20}
    states = await house.pool.fetch("SELECT DISTINCT state FROM apc_log.packet_state")
    assert {row["state"] for row in states} == {"ARCHIVED"}
    assert await house.pool.fetchval("SELECT open_deliveries FROM apc_log.sessions") == 0


async def test_a_substrate_packet_is_applied_when_the_stream_has_it(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    async with house.persister(), house.gate():
        await house.register()
        await house.publish(opening)
        sent = packet("red-1", idea, ("_substrate",), parent=opening, mode=DeliveryMode.SUBSTRATE)
        await house.publish(sent)
        await house.quiet()
        async with house.client("agent.blue-1").read_substrate("first") as stream:
            (delivery,) = await stream.receive()
        assert delivery.message.message_id == str(sent.packet_id)
        assert await house.state_of(sent) == "ARCHIVED"


async def test_an_artifact_is_verified_by_its_bytes(house: House, packet: Build, start: Build) -> None:
    opening = start()
    stored = await house.artifacts.put(b"model")
    missing = "sha256:" + "0" * 64

    def artifact(content_hash: str) -> Packet:
        payload = ArtifactPayload(
            artifact_id="m", artifact_kind="MODEL_SNAPSHOT", artifact_uri="file:///m", artifact_hash=content_hash
        )
        return packet("red-1", payload, ("sentinel",), parent=opening, phase="DISCOVERY")

    async with house.persister(), house.gate():
        await house.register()
        await house.publish(opening)
        await house.publish(brief_of(packet, opening, "red-1", "a"))
        await house.publish(brief_of(packet, opening, "blue-1", "b"))
        for agent in ("red-1", "blue-1"):
            await house.publish(packet(agent, SignalPayload(signal=Signal.SYNC), parent=opening))
        await house.quiet()
        good, bad = artifact(stored), artifact(missing)
        for one in (good, bad):
            await house.publish(one)
        await house.quiet()
        await house.handle("sentinel")
        await house.quiet()

        async def are_settled() -> bool:
            return (await house.state_of(good), await house.state_of(bad)) == ("ARCHIVED", "REJECTED_POLICY")

        await house.until(are_settled)
