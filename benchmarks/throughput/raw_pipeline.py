"""The raw limit of the pipeline: aio-pika and asyncpg alone, no gate, no events, no judgement.

The publisher sends with pipelined confirms to an exchange with two quorum queues: the worker's, and the audit copy
that the broker makes. The worker acknowledges each message; the auditor writes batches by COPY into the same table
with the same indexes, and acknowledges a batch when it is committed. Each is its own process.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import aio_pika
import asyncpg
import orjson
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

from apc_bus.port import Publication
from apc_cli.system.running import run
from benchmarks.support.metering import Meter, Run
from benchmarks.support.processes import running
from benchmarks.support.servers import Servers

EXCHANGE = "raw"
WORK, AUDIT = "raw.work", "raw.audit"
IN_FLIGHT = 256
PREFETCH = 1000
BATCH = 500
COLUMNS = (
    "shard seq epoch batch_no packet_id packet_type channel run_phase session_id run_id task_id root_packet_id "
    "parent_packet_id cause_packet_id sender_agent_id sender_role sender_swarm_id recipients generation round step "
    "confidence created_at expires_at judged_at verdict contract_hash facts body_stored stored_hash packet_hash user_id"
).split()


async def measure_raw_pipeline(servers: Servers, load: Sequence[Publication]) -> Run:
    """From the first publish to the last committed row."""
    amqp_url, database_url = servers.fresh_vhost(), await servers.fresh_database()
    connection = await aio_pika.connect(amqp_url)
    async with connection, AsyncExitStack() as stack:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await _declare(channel)
        arguments = (amqp_url, database_url, str(len(load)))
        services = [
            await stack.enter_async_context(
                running(role, "-m", "benchmarks.throughput.raw_pipeline", role, *arguments, environment={})
            )
            for role in ("work", "audit")
        ]
        for service in services:
            await service.said("^serving")
        meter = await Meter.start(servers, {service.name: service.process.pid for service in services})
        began = time.monotonic()
        await publish_pipelined(exchange, load)
        ended = [float((await service.said("^done")).split()[1]) for service in services]
        return Run(len(load) / (max(ended) - began), await meter.read(len(load)))


async def publish_pipelined(exchange: AbstractExchange, load: Sequence[Publication]) -> None:
    """Publish everything, confirmed, with so many in flight that the broker never waits."""
    rest = iter(load)

    async def publish_some() -> None:
        for one in rest:
            message = aio_pika.Message(
                one.message.body,
                message_id=one.message.message_id,
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await exchange.publish(message, "", mandatory=True, timeout=30)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(publish_some())


async def _declare(channel: aio_pika.abc.AbstractChannel) -> AbstractExchange:
    exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.FANOUT, durable=True)
    for name in (WORK, AUDIT):
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        await queue.bind(exchange)
    return exchange


async def work(amqp_url: str, count: int) -> None:
    """Acknowledge `count` messages, one by one."""
    inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        await (await channel.get_queue(WORK)).consume(inbox.put)
        print("serving", flush=True)
        for _ in range(count):
            await (await inbox.get()).ack()
        await _say_done()


async def audit(amqp_url: str, database_url: str, count: int) -> None:
    """Write `count` messages as rows, in batches of what is there."""
    inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    database = await asyncpg.connect(database_url)
    await prepare_connection(database)
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        await (await channel.get_queue(AUDIT)).consume(inbox.put)
        print("serving", flush=True)
        done = 0
        while done < count:
            batch = [await inbox.get()]
            while len(batch) < BATCH and not inbox.empty():
                batch.append(inbox.get_nowait())
            records = [_record(done + number, one.body) for number, one in enumerate(batch, 1)]
            async with database.transaction():
                await database.copy_records_to_table(
                    "agent_packets", schema_name="apc_log", columns=COLUMNS, records=records
                )
            await batch[-1].ack(multiple=True)
            done += len(batch)
        await _say_done()


async def _say_done() -> None:
    """Say when; the process goes on until it is ended, so that its CPU time can be read."""
    print("done", time.monotonic(), flush=True)
    await asyncio.Event().wait()


async def prepare_connection(connection: asyncpg.Connection) -> None:
    """Let jsonb columns take bytes, also in COPY."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda text: b"\x01" + text,
        decoder=lambda data: data[1:],
    )


def _record(seq: int, body: bytes) -> tuple[Any, ...]:
    packet = orjson.loads(body)
    trace, sender = packet["trace"], packet["sender"]
    created = datetime.fromisoformat(packet["created_at"])
    digest = sha256(body).digest()
    return (
        0, seq, 1, 1, UUID(packet["packet_id"]), packet["packet_type"], packet["channel"], packet["run_phase"],
        trace["session_id"], trace["run_id"], trace["task_id"], UUID(trace["root_packet_id"]), None, None,
        sender["agent_id"], sender["role"], sender["swarm_id"],
        [one["agent_id"] for one in packet["recipients"]],
        trace["generation"], 0, trace["step"], packet["confidence"], created, created, created,
        "accepted", digest, b"{}", body, digest, digest, "guest",
    )  # fmt: skip


if __name__ == "__main__":
    role, amqp, database_of_run, wanted = sys.argv[1:]
    run(work(amqp, int(wanted)) if role == "work" else audit(amqp, database_of_run, int(wanted)))
