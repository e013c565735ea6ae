"""Packets that require an ACK, over a real broker: chased by the one who holds the shard, answered by real workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.agents.asking_agent import RETRIES
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.account import ACCOUNT
from tests.support.traffic import AGENTS, make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, EmitTimeout, HandlerContext, Worker, WorkerSettings
from apc_bus import headers
from apc_contracts import AckPayload, IdeaPayload, NackPayload, Packet, parse_packet
from apc_contracts.vocabulary import AckStatus, PacketType

ACKNOWLEDGED = """
SELECT hop.metadata #>> '{acknowledges,as}' FROM apc_log.packet_events AS hop
WHERE hop.metadata #>> '{acknowledges,packet_id}' = $1 ORDER BY hop.seq
"""


class Asking:
    """A worker whose handler asks the sentinel and notes how that ended."""

    def __init__(self, agent_id: str, **asking: Any) -> None:
        self.agent = Agent(agent_id, role=ROLE, swarm=AGENTS[agent_id][0])
        self.ends: asyncio.Queue[Any] = asyncio.Queue()

        @self.agent.on(PacketType.IDEA)
        async def ask(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            try:
                await ctx.emit(make_idea(), to="sentinel", requires_ack=True, **asking)
            except EmitTimeout as error:
                await self.ends.put(error)
            else:
                await self.ends.put("acknowledged")

    @asynccontextmanager
    async def at_work(self, house: House) -> AsyncIterator[None]:
        """The worker, consuming."""
        bus = await house.connect("agents")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Worker(self.agent, bus, settings=WorkerSettings()).run(stop))
            yield
            stop.set()
        await bus.close()


def answer(
    asked: Packet,
    payload_type: type[AckPayload] | type[NackPayload] = AckPayload,
    status: AckStatus = AckStatus.ACCEPTED,
) -> Packet:
    payload = payload_type(acked_packet_id=asked.packet_id, ack_status=status)
    return make_packet("sentinel", payload, (asked.sender.agent_id,), parent=asked)


async def test_a_new_holder_of_the_shard_chases_what_the_old_one_routed(house: House) -> None:
    asking = Asking("red-1", ack_timeout=timedelta(seconds=1), retry_limit=10)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate() as (_, running):
        await house.open_session()
        async with asking.at_work(house), house.gate():
            await house.agents.publish(trigger)
            (first,) = await house.agents.receive("sentinel")
            asked: Any = parse_packet(first.message.body)
            await running.bus.close()
            attempts: list[Any] = [first.message.headers[headers.ATTEMPT]]
            while attempts[-1] < 2:
                (again,) = await house.agents.receive("sentinel")
                assert again.message.body == first.message.body
                attempts.append(again.message.headers[headers.ATTEMPT])
            assert again.message.headers[headers.EPOCH] == 2
            await house.agents.publish(answer(asked))
            assert await asyncio.wait_for(asking.ends.get(), 20) == "acknowledged"
            await until(lambda: _is_settled(house))
    assert set(attempts) <= {1, 2}, "the delivery that was open, and the next attempt"
    rows = await house.pool.fetch(ACKNOWLEDGED, str(asked.packet_id))
    assert [row[0] for row in rows] == ["settled"]


async def test_who_does_not_answer_is_named_and_may_answer_late(house: House) -> None:
    asking = Asking("red-1", ack_timeout=timedelta(milliseconds=300), retry_limit=1)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        async with asking.at_work(house):
            await house.agents.publish(trigger)
            first, second = await house.agents.receive("sentinel", 2)
            error = await asyncio.wait_for(asking.ends.get(), 20)
            assert isinstance(error, EmitTimeout) and error.missing == {"sentinel": "ROUTED"}
            asked: Any = parse_packet(first.message.body)
            late, again = answer(asked), answer(asked, NackPayload, AckStatus.REJECTED)
            await house.agents.publish(late, again)
            await until(house.is_logged(late.packet_id, again.packet_id))
    assert [one.message.headers[headers.ATTEMPT] for one in (first, second)] == [1, 2]
    rows = await house.pool.fetch(ACKNOWLEDGED, str(asked.packet_id))
    assert [row[0] for row in rows] == ["late", "not_awaited"]
    told = await house.pool.fetchval(
        "SELECT convert_from(body_stored, 'UTF8') FROM apc_log.agent_packets WHERE packet_type = 'NACK'"
        " AND sender_agent_id = 'orchestrator'"
    )
    nack = orjson.loads(told)
    assert nack["payload"]["ack_status"] == "DEFERRED" and nack["trace"]["parent_packet_id"] == str(asked.packet_id)


async def _is_settled(house: House) -> bool:
    document = orjson.loads(await house.pool.fetchval("SELECT document FROM apc_log.sessions"))
    return document["pending_acks"] == {} and not any(kind.startswith("ack") for kind in document["deadlines"])


@pytest.mark.long
async def test_the_ack_outlives_kills_of_the_worker_that_waits_for_it(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """kill -9 before the ACK comes, when it leaves the inbox, and when the handler has it; with a prefetch of 1.

    The handler and its ACK are in the same queue, in the order in which the broker takes them back.
    """
    settings = {ACCOUNT: str(tmp_path), "APC_WORKER_PREFETCH": "1", RETRIES: "1"}
    worker = WorkerProcess("asking_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening, priority=9)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(trigger)
        await worker.dies_at("worker.before_required_ack")
        (sent,) = await house.agents.receive("sentinel")
        ack = answer(parse_packet(sent.message.body))
        await house.agents.publish(ack)
        await until(house.is_logged(ack.packet_id))
        await worker.dies_at("worker.after_answer")
        await worker.dies_at("worker.after_required_ack")
        async with worker.running():
            await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
            await until(house.has_come_to("ARCHIVED", ack.packet_id, "red-1"))
    asked = (tmp_path / "acknowledged").read_text().splitlines()
    assert len(asked) >= 2 and set(asked) == {sent.message.message_id}
    refused = "SELECT refusal_code FROM apc_log.agent_packets WHERE verdict <> 'accepted'"
    assert await house.pool.fetch(refused) == []
    assert await house.count("agent_packets", "packet_type = 'ERROR'") == 0
