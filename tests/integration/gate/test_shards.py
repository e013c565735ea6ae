"""Two shards: each session belongs to one, and each has its own gate, log and numbers."""

import asyncio
import json
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import ScriptedWorker, make_idea, make_packet, make_start, until, violated_equalities
from tests.support.traffic.equalities import Sent

from apc_bus.errors import ShardsDiffer
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.topology import INGRESS, build_topology, gate_queue, log_queue
from apc_contracts import AckPayload, Lineage, Packet, SignalPayload, TransferPayload, TransferPolicy
from apc_contracts.identity.ids import shard_of
from apc_contracts.vocabulary import ORCHESTRATOR, AckStatus, Signal, TransferMode
from apc_contracts.wire.parsing import seal
from apc_orchestrator import Orchestrator, OrchestratorSettings

SESSIONS = [f"session-{number}" for number in range(8)]
EPOCHS = "SELECT shard, epoch FROM apc_log.shards ORDER BY shard"
OPEN = "SELECT count(*) = $1 AND sum(open_deliveries) = 0 FROM apc_log.sessions"
PLACES = "SELECT DISTINCT session_id, shard FROM apc_log.agent_packets"
VERDICT = "SELECT coalesce(refusal_code, verdict) FROM apc_log.agent_packets WHERE packet_id = $1"
SAID = """
SELECT session_id, packet_type FROM apc_log.agent_packets
WHERE sender_agent_id = 'orchestrator' AND packet_type IN ('DECISION', 'NACK')
"""
ANSWERED = "SELECT metadata #>> '{acknowledges,as}' FROM apc_log.packet_events WHERE packet_id = $1 AND recipient = ''"
ONE, OTHER = "session-0", next(name for name in SESSIONS if shard_of(name, 2) != shard_of("session-0", 2))


@pytest.fixture
def shards() -> int:
    """As many as the title says."""
    return 2


async def test_sessions_of_two_shards(house: House) -> None:
    sent, of_shard = Sent(), dict[UUID, int]()
    workers = [ScriptedWorker(house.agents.bus, agent) for agent in house.agents.cast]
    log_writers = (house.persister(serve_shards=[shard]) for shard in (0, 1))
    async with next(log_writers), house.gate() as (first, _), workers[0].working(), workers[1].working():
        async with house.gate(), workers[2].working(), workers[3].working():
            await house.agents.register()
            for session_id in SESSIONS:
                opening = make_start(session_id)
                packets = [
                    make_packet("red-1", make_idea(), (to,), parent=opening, session_id=session_id)
                    for to in ("sentinel", "blue-1", "sentinel")
                ]
                await house.agents.publish(opening, *packets)
                sent.confirmed.update(packet.packet_id for packet in (opening, *packets))
                of_shard |= dict.fromkeys(sent.confirmed - of_shard.keys(), shard_of(session_id, 2))
            await until(house.is_logged(*(one for one in sent.confirmed if of_shard[one] == 0)))
            assert {row["shard"] for row in await house.pool.fetch(PLACES)} == {0}, "the other shard has no log writer"
            async with next(log_writers):
                await until(house.is_logged(*sent.confirmed))

                async def is_done() -> bool:
                    return bool(await house.pool.fetchval(OPEN, len(SESSIONS)))

                await until(is_done)
        assert {state.shard for state in first.shards} == {0, 1}
    assert await violated_equalities(house.pool, sent, workers) == []
    places = {row["session_id"]: row["shard"] for row in await house.pool.fetch(PLACES)}
    assert places == {session_id: shard_of(session_id, 2) for session_id in SESSIONS}
    assert set(places.values()) == {0, 1}, "both are at work"
    assert {row["shard"] for row in await house.pool.fetch(EPOCHS)} == {0, 1}


def write_contract(path: Path) -> str:
    """Transfers at once, judged on arrival."""
    contract = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    contract["phases"]["RESEARCH"]["packet_types"] += ["TRANSFER"]
    contract["transfer_windows"][0] |= {"is_open": True, "score_multiplier": 1.2}
    path.write_text(json.dumps(contract))
    return str(path)


def offer(protocol_id: str, session_id: str, opening: Packet, score: float = 0.9) -> Packet:
    mode = TransferMode.SELECTIVE_IMPORT
    payload = TransferPayload(
        protocol_id=protocol_id,
        from_swarm="red",
        to_swarm="blue",
        sender_score=score,
        receiver_score=0.5,
        transfer_policy=TransferPolicy(mode=mode),
    )
    lineage = Lineage(protocol_id=protocol_id, transfer_mode=mode)
    return make_packet("red-1", payload, ("blue-1",), parent=opening, session_id=session_id, lineage=lineage)


@pytest.mark.long
async def test_what_one_shard_blocks_the_other_refuses_and_each_waits_for_its_own_acks(
    house: House, tmp_path: Path, postgres_url: str
) -> None:
    async def judged(packet: Packet) -> Any:
        await house.agents.publish(packet)
        await until(house.is_logged(packet.packet_id))
        return await house.pool.fetchval(VERDICT, packet.packet_id)

    gate = house.gate(contract=write_contract(tmp_path / "contract.json"), other_shards_seconds=0.05)
    async with house.persister(), gate:
        await house.agents.register()
        here, there = make_start(ONE), make_start(OTHER)
        assert [await judged(one) for one in (here, there)] == ["accepted", "accepted"]
        assert await judged(offer("weak", OTHER, there)) == "accepted"
        for _ in range(5):
            assert await judged(offer("weak", ONE, here, 0.5)) == "THROTTLE_SCORE"
        assert await judged(offer("weak", ONE, here)) == "PROTOCOL_DECAYED"

        async def is_refused_there() -> bool:
            return bool(await judged(offer("weak", OTHER, there)) == "PROTOCOL_DECAYED")

        await until(is_refused_there)
        assert await judged(offer("sound", OTHER, there)) == "accepted"

        fields: dict[str, Any] = {"requires_ack": True, "ack_timeout_ms": 200}
        unheard = make_packet("red-1", make_idea(), ("blue-1",), parent=here, session_id=ONE, **fields)
        fields["ack_timeout_ms"] = 600_000
        asked = make_packet("red-1", make_idea(), ("blue-1",), parent=there, session_id=OTHER, **fields)
        await house.agents.publish(unheard, asked)
        await until(house.is_logged(asked.packet_id))
        payload = AckPayload(acked_packet_id=asked.packet_id, ack_status=AckStatus.ACCEPTED)
        answer = make_packet("blue-1", payload, ("red-1",), parent=asked, session_id=OTHER)
        assert await judged(answer) == "accepted"

        async def is_told() -> bool:
            return (ONE, "NACK") in [tuple(row) for row in await house.pool.fetch(SAID)]

        await until(is_told)
        assert await house.pool.fetchval(ANSWERED, answer.packet_id) == "settled"
        assert {tuple(row) for row in await house.pool.fetch(SAID)} == {(ONE, "DECISION"), (ONE, "NACK")}

        apc = ApcCommand(tmp_path)
        url = house.settings.amqp_url.get_secret_value()
        given = {"APC_AMQP_URL": url, "APC_DATABASE_URL": postgres_url, "APC_SHARDS": "4"}
        done = await asyncio.to_thread(apc, "topology", "apply", given=given)
        assert done.returncode != 0 and "cannot change from 2 to 4 shards" in done.stderr, done
        assert len(done.stderr.splitlines()) == 1


SHARDS_OF = "SELECT DISTINCT shard FROM apc_log.agent_packets WHERE session_id = $1"
CONFLICTS = "SELECT code FROM apc_log.packet_conflicts WHERE packet_id = $1"
ROW = "SELECT shard, document::text FROM apc_log.sessions WHERE session_id = $1"


async def test_a_packet_in_the_wrong_shard_leaves_nothing_of_its_session_there(house: House) -> None:
    """A worker with another number of shards sends it, or an attacker: what is in two shards cannot be replayed."""
    async with house.persister(), house.gate():
        await house.agents.register()
        opening = make_start(ONE)
        await house.agents.publish(opening)
        await until(house.is_logged(opening.packet_id))
        before = await house.pool.fetchrow(ROW, ONE)
        lost = make_packet("red-1", make_idea(), ("sentinel",), parent=opening, session_id=ONE)
        sealed = seal(lost)
        message = Message(sealed.body, str(lost.packet_id), type="IDEA", user_id=house.agents.bus.user)
        await house.agents.bus.publish(Publication(INGRESS, str(1 - shard_of(ONE, 2)), message))

        async def is_refused() -> bool:
            return [row["code"] for row in await house.pool.fetch(CONFLICTS, lost.packet_id)] == ["UNKNOWN_SESSION"]

        await until(is_refused)
        assert await house.pool.fetchrow(ROW, ONE) == before
        await house.agents.publish(lost)  # to its own shard: the id is free
        await until(house.is_logged(lost.packet_id))
        assert [row["shard"] for row in await house.pool.fetch(SHARDS_OF, ONE)] == [shard_of(ONE, 2)]
        old = make_packet("red-1", make_idea(), ("sentinel",), parent=opening, session_id=ONE)
        message = house.agents.publication(old).message
        by_number = Publication(INGRESS, str(shard_of(ONE, 2)), message)  # as workers of release 0.1.0 send
        await house.agents.bus.publish(by_number)
        await until(house.is_logged(old.packet_id))


@pytest.mark.long
async def test_the_number_changes_when_every_session_has_ended(house: House, tmp_path: Path, postgres_url: str) -> None:
    apc = ApcCommand(tmp_path)
    url = house.settings.amqp_url.get_secret_value()
    given = {"APC_AMQP_URL": url, "APC_DATABASE_URL": postgres_url, "APC_SHARDS": "4"}

    async def run(*arguments: str, **settings: str) -> tuple[int, str]:
        environment = {name: value for name, value in (given | settings).items() if value}
        done = await asyncio.to_thread(apc, *arguments, given=environment)
        return done.returncode, done.stdout + done.stderr

    def workers() -> list[ScriptedWorker]:
        return [ScriptedWorker(house.agents.bus, agent) for agent in house.agents.cast]

    async def has_quiet_sessions() -> bool:
        return bool(await house.pool.fetchval(OPEN, len(SESSIONS)))

    async def have_ended() -> bool:
        return await has_quiet_sessions() and await house.count("sessions", "NOT is_terminal") == 0

    async with house.persister(), house.gate():
        await house.agents.register()
        async with AsyncExitStack() as stack:
            for worker in workers():
                await stack.enter_async_context(worker.working())
            await house.agents.publish(*(make_start(session_id) for session_id in SESSIONS))
            await until(has_quiet_sessions)
    code, said = await run("topology", "apply", APC_DATABASE_URL="")
    assert code and "cannot change from 2 to 4 shards: only the log knows" in said and "set APC_DATABASE_URL" in said
    code, said = await run("topology", "apply")
    assert code and "cannot change from 2 to 4 shards: 4 open sessions, such as session-1, are in another" in said, said
    code, said = await run("topology", "export")
    assert code and "APC_SHARDS is 4" in said and "such as APC_SHARDS=2" in said, said
    with pytest.raises(ShardsDiffer, match="are in another shard of the log"):
        bus = await house.connect("orchestrator")
        try:
            settings = OrchestratorSettings(shards=4)
            await Orchestrator(settings, bus, house.pool, house.artifacts).run(asyncio.Event())
        finally:
            await bus.close()
    code, said = await run("doctor")
    assert code and "APC_SHARDS is 4, and the broker" not in said and "such as APC_SHARDS=2" in said, said

    async with house.persister(), house.gate():
        async with AsyncExitStack() as stack:
            for worker in workers():
                await stack.enter_async_context(worker.working())
            stop = SignalPayload(signal=Signal.STOP)
            await house.agents.publish(
                *(make_packet("librarian", stop, (ORCHESTRATOR,), session_id=session_id) for session_id in SESSIONS)
            )
            await until(have_ended)
    code, said = await run("topology", "apply")
    assert code == 0, said
    assert (await run("doctor", APC_SHARDS="2"))[1].count("the broker has the queues of 4 shards") == 1


async def delete_queues(url: str) -> None:
    """Leave no queue of gates and log, like a broker that was rebuilt empty."""
    link = await Nodes([url], Timing()).connect("test")
    channel = await link.channel()
    for shard in (0, 1):
        for queue in (gate_queue(shard), log_queue(shard)):
            await channel.queue_delete(queue)
    await link.close()


@pytest.mark.long
async def test_a_broker_gets_the_number_of_the_open_sessions_back(
    house: House, tmp_path: Path, postgres_url: str
) -> None:
    """Gates start with no other number, and nothing that wants a gate could end the sessions."""
    apc, url = ApcCommand(tmp_path), house.settings.amqp_url.get_secret_value()

    async def apply(shards: int) -> tuple[int, str]:
        given = {"APC_AMQP_URL": url, "APC_DATABASE_URL": postgres_url, "APC_SHARDS": str(shards)}
        done = await asyncio.to_thread(apc, "topology", "apply", given=given)
        return done.returncode, done.stdout + done.stderr

    async def have_begun() -> bool:
        return bool(await house.pool.fetchval(OPEN, len(SESSIONS)))

    async with house.persister(), house.gate():
        await house.agents.register()
        async with AsyncExitStack() as stack:
            for agent in house.agents.cast:
                await stack.enter_async_context(ScriptedWorker(house.agents.bus, agent).working())
            await house.agents.publish(*(make_start(session_id) for session_id in SESSIONS))
            await until(have_begun)
    await apply_rabbit(url, build_topology(1))  # as release 0.1.0 would, whatever is open
    code, said = await apply(2)
    assert code == 0, said
    await delete_queues(url)
    code, said = await apply(1)
    assert code and "cannot make 1 shards: 4 open sessions, such as session-" in said, said
    assert "set APC_SHARDS=2 until every session has ended" in said
    code, said = await apply(2)
    assert code == 0, said
