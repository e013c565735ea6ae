"""One MULTICAST to ten agents, beside what a fanout exchange does with the same message."""

import asyncio
import sys
import time

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from apc_bus.port import Bus
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.telemetry import configure_logs
from apc_cli.system.running import run
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import running
from benchmarks.support.servers import Servers
from benchmarks.support.system import Load, System, local_worker, until_applied
from benchmarks.throughput.raw_pipeline import PREFETCH, publish_pipelined

EXCHANGE = "raw.fan"
BAR = 0.5


async def measure_fan_out(servers: Servers, system: System, figures: Figures, count: int) -> None:
    """Raw, bus, raw."""
    before = await _raw(servers.fresh_vhost(), count)
    handled, committed = await _through_the_gate(system, count)
    raw = (before + await _raw(servers.fresh_vhost(), count)) / 2
    figures.add(
        Figure("raw_fan_out", raw, "deliveries/s", note="a fanout exchange, ten quorum queues, one consuming process"),
        Figure("fan_out", handled, "deliveries/s", raw, BAR, note="to the handlers of ten agents in one process"),
        Figure("fan_out_committed", committed, "deliveries/s", raw, note="until the last row is committed"),
    )


async def _through_the_gate(system: System, count: int) -> tuple[float, float]:
    session_id, crowd = "fan-out", agents.crowd()
    names = [agent.agent_id for agent in crowd]
    load = packets.publications(session_id, agents.source.actor, names, system.bus.user, count)
    arguments = ("-m", "benchmarks.throughput.fan_out", "crowd", system.environment["APC_AMQP_URL"], str(count))
    async with system.local_worker(agents.source), running("crowd", *arguments, environment={}) as service:
        await service.said("^serving")
        await system.open_session(session_id, [agents.source, *crowd])
        began = time.monotonic()
        await Load(system.bus, system.pool, [session_id], recipients=len(crowd)).send(load)
        handled = float((await service.said("^done")).split()[1]) - began
        await until_applied(system.pool, [session_id], count)
        committed = time.monotonic() - began
    return count * len(crowd) / handled, count * len(crowd) / committed


async def _raw(amqp_url: str, count: int) -> float:
    load = packets.publications("raw", agents.source.actor, ["nobody"], "guest", count)
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.FANOUT, durable=True)
        for number in range(agents.FAN_OUT):
            queue = await channel.declare_queue(_queue(number), durable=True, arguments={"x-queue-type": "quorum"})
            await queue.bind(exchange)
        async with running(
            "raw", "-m", "benchmarks.throughput.fan_out", "raw", amqp_url, str(count), environment={}
        ) as service:
            await service.said("^serving")
            began = time.monotonic()
            await publish_pipelined(exchange, load)
            ended = float((await service.said("^done")).split()[1])
    return count * agents.FAN_OUT / (ended - began)


async def receive_raw(amqp_url: str, count: int) -> None:
    """Acknowledge everything in the ten queues."""
    async with await aio_pika.connect(amqp_url) as connection:
        inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        for number in range(agents.FAN_OUT):
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH // agents.FAN_OUT)
            await (await channel.get_queue(_queue(number))).consume(inbox.put)
        print("serving", flush=True)
        for _ in range(count * agents.FAN_OUT):
            await (await inbox.get()).ack()
        print("done", time.monotonic(), flush=True)


async def receive(amqp_url: str, count: int) -> None:
    """Run ten agents, each with its own worker; say when each has got everything, then serve until ended."""
    bus = await connect_rabbit(BusSettings(amqp_url=amqp_url), purpose="crowd")
    crowd = agents.crowd()
    ready = [asyncio.Event() for _ in crowd]
    async with asyncio.TaskGroup() as group:
        for agent, event in zip(crowd, ready, strict=True):
            group.create_task(_serve(agent, bus, event))
        for event in ready:
            await event.wait()
        print("serving", flush=True)
        for agent in crowd:
            await agent.has_received(count)
        print("done", time.monotonic(), flush=True)


async def _serve(agent: agents.CountingAgent, bus: Bus, ready: asyncio.Event) -> None:
    async with local_worker(agent, bus):
        ready.set()
        await asyncio.Event().wait()


def _queue(number: int) -> str:
    return f"{EXCHANGE}.{number}"


if __name__ == "__main__":
    configure_logs("WARNING")
    role, url, wanted = sys.argv[1:]
    run(receive_raw(url, int(wanted)) if role == "raw" else receive(url, int(wanted)))
