"""A worker as a process runs it: over RabbitMQ, patient at start, gone in order at SIGTERM."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import Agent, AgentError, HandlerContext, Worker, WorkerSettings, run_worker
from apc_bus import headers
from apc_bus.concurrency import first_of
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, AgentQueues, agent_queue, build_topology, gate_queue, routing_key
from apc_contracts import IdeaPayload, Packet, PacketType, parse_packet, parse_receipts, reply_id, seal
from apc_contracts.wire.receipts import steps_of

PATIENCE = 60.0


@pytest.fixture
def agent() -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        return idea.payload

    return agent


@pytest.fixture
def settings(amqp_vhost_url: str, tmp_path: Path) -> BusSettings:
    return BusSettings(amqp_url=amqp_vhost_url, data_dir=tmp_path)


@pytest.fixture
async def bus(settings: BusSettings) -> AsyncIterator[RabbitBus]:
    bus = await connect_rabbit(settings)
    yield bus
    await bus.close()


def delivery_of(packet: Packet) -> Publication:
    message = Message(
        seal(packet).body,
        message_id=str(packet.packet_id),
        type=packet.packet_type.value,
        headers={headers.SHARD: 0, headers.EPOCH: 1, headers.BATCH: 1, headers.MARK: "0.0", headers.ATTEMPT: 1},
    )
    return Publication(INTER_AGENT, routing_key(packet.packet_type, "hybrid", "sentinel-1", False), message)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which not even root can write")
async def test_a_worker_whose_data_folder_cannot_be_written_to_works_without_it(
    agent: Agent, settings: BusSettings
) -> None:
    url, nowhere = settings.amqp_nodes[0], Path("/proc/apc")
    await apply_rabbit(url, build_topology(1, [AgentQueues("sentinel-1", "hybrid", agent.handles)]))
    stop, made, is_made = asyncio.Event(), list[Worker](), asyncio.Event()

    def note(worker: Worker) -> None:
        made.append(worker)
        is_made.set()

    running = asyncio.create_task(
        run_worker(
            agent,
            WorkerSettings(data_dir=nowhere),
            bus_settings=settings.model_copy(update={"data_dir": nowhere}),
            stop=stop,
            on_worker=note,
        )
    )
    async with asyncio.timeout(PATIENCE):
        with capture_logs() as logs:
            await first_of(running, is_made.wait())
            await first_of(running, made[0].ready.wait())
        stop.set()
        await running
    assert [one["log_level"] for one in logs if one["event"] == "artifacts_not_kept"] == ["warning"]


async def test_a_worker_waits_for_its_queues_handles_and_leaves_at_sigterm(
    agent: Agent, settings: BusSettings, bus: RabbitBus, make_packet: MakePacket, idea: MakeIdea
) -> None:
    running = asyncio.create_task(run_worker(agent, WorkerSettings(), bus_settings=settings))
    url = settings.amqp_nodes[0]
    await apply_rabbit(url, build_topology(1, [AgentQueues("sentinel-1", "hybrid", agent.handles)]))
    packet = make_packet(idea())
    collected: list[Delivery] = []
    async with asyncio.timeout(PATIENCE), bus.subscribe(gate_queue(0)) as inputs:
        await bus.publish(delivery_of(packet))
        while not any(b'"outcome"' in delivery.message.body for delivery in collected):
            for delivery in await inputs.receive():
                collected.append(delivery)
                await inputs.ack(delivery)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    heartbeat, reply = [one.message for one in collected if one.message.type != headers.TYPE_RECEIPTS]
    assert parse_packet(heartbeat.body).packet_type is PacketType.HEARTBEAT
    assert reply.message_id == str(reply_id(packet.packet_id, "sentinel-1", 0))
    assert reply.user_id == bus.user
    assert reply.headers[headers.ORDINAL] == 0
    receipts = [
        one
        for delivery in collected
        if delivery.message.type == "receipts"
        for merged in parse_receipts(delivery.message.body)
        for one in steps_of(merged)
    ]
    assert [receipt.kind.value for receipt in receipts] == ["delivery_ack", "consumer_apply", "outcome"]
    for urgent in (True, False):
        assert (await bus.depth(agent_queue("sentinel-1", urgent))).messages == 0


async def test_a_worker_waits_for_its_broker(agent: Agent, tmp_path: Path) -> None:
    settings = BusSettings(amqp_url="amqp://guest:guest@127.0.0.1:1/", data_dir=tmp_path, connect_patience=1)
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(agent, WorkerSettings(), bus_settings=settings, stop=stop))
    await asyncio.sleep(0)
    assert not running.done()
    stop.set()
    await running


async def test_a_worker_without_a_broker_says_how_to_mend_it(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="set APC_AMQP_URL"):
        await run_worker(agent, WorkerSettings(), bus_settings=BusSettings(amqp_url=None, data_dir=tmp_path))
