"""There and back: agent, orchestrator, agent, orchestrator, agent; beside a raw confirmed one over quorum queues."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from apc_cli.system.running import run
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import running
from benchmarks.support.servers import Servers
from benchmarks.support.system import System

PING, PONG = "raw.ping", "raw.pong"
WARM_UP = 50
P50_BAR, P99_BAR = 4.0, 3.0


async def measure_round_trip(servers: Servers, system: System, figures: Figures, count: int) -> None:
    """Raw, bus, raw: the raw figure is the mean of what stood before and after."""
    raw = await _raw(servers.fresh_vhost(), count)
    times = await _through_the_gate(system, count)
    raw = [*raw, *await _raw(servers.fresh_vhost(), count)]
    limit = _quantile(raw, 0.5)
    median = _quantile(times, 0.5)
    figures.add(
        Figure("raw_round_trip_p50", limit, "ms", note="confirmed publish, quorum queues, both ways"),
        Figure("raw_round_trip_p99", _quantile(raw, 0.99), "ms"),
        Figure("round_trip_p50", median, "ms", limit, P50_BAR, is_time=True, note="goal 3.3; an empty gate costs 3.1"),
        Figure("round_trip_p95", _quantile(times, 0.95), "ms", limit, is_time=True),
        Figure("round_trip_p99", _quantile(times, 0.99), "ms", median, P99_BAR, is_time=True, note="against its p50"),
    )


async def _through_the_gate(system: System, count: int) -> list[float]:
    ping = agents.PingAgent(WARM_UP + count)
    session_id = "round-trip"
    async with system.worker("echo"), system.local_worker(agents.source), system.local_worker(ping):
        await system.open_session(session_id, [agents.source, ping, agents.echo])
        first = packets.publications(session_id, ping.actor, [agents.echo.agent_id], system.bus.user, 1)
        ping.note_start()
        await system.bus.publish(first[0])
        await asyncio.wait_for(ping.finished.wait(), 120)
    return ping.milliseconds[WARM_UP:]


async def _raw(amqp_url: str, count: int) -> list[float]:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        for name in (PING, PONG):
            await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        async with running("echo", "-m", "benchmarks.throughput.round_trip", amqp_url, environment={}) as service:
            await service.said("^serving")
            inbox = await _consume(connection, PONG)
            times = []
            for _ in range(WARM_UP + count):
                began = time.perf_counter()
                await _send(channel, PING, _BODY)
                answer = await inbox.get()
                times.append((time.perf_counter() - began) * 1000)
                await answer.ack()
    return times[WARM_UP:]


_BODY = packets.publications("raw", agents.source.actor, ["echo-1"], "guest", 1)[0].message.body


async def _send(channel: AbstractChannel, queue: str, body: bytes) -> None:
    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, queue, mandatory=True, timeout=30)


async def _consume(connection: aio_pika.abc.AbstractConnection, queue: str) -> asyncio.Queue[AbstractIncomingMessage]:
    inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=20)
    await (await channel.get_queue(queue)).consume(inbox.put)
    return inbox


async def raw_echo(amqp_url: str) -> None:
    """Answer each message, confirmed, before it is acknowledged; until the process is ended."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        inbox = await _consume(connection, PING)
        print("serving", flush=True)
        while True:
            message = await inbox.get()
            await _send(channel, PONG, message.body)
            await message.ack()


def _quantile(times: Sequence[float], share: float) -> float:
    ordered: list[Any] = sorted(times)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


if __name__ == "__main__":
    run(raw_echo(sys.argv[1]))
