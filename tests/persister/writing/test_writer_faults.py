"""The writer when its process, its database or its queue goes away."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.log import LogBench, ScriptedGate, kill_embedded, lifecycle, packet_entry, session_row, until

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import build_topology, log_queue
from apc_persister.database.embedded import EmbeddedPostgres, start_embedded
from apc_persister.database.migrate import migrate
from apc_persister.errors import BatchEndsWriter
from apc_persister.intake import Received
from apc_persister.transaction import Committed, commit

SERVE = """
import asyncio
from apc_bus.database import open_pool
from apc_bus.rabbit import connect_rabbit
from apc_persister import PersisterSettings, serve_persister

async def main():
    settings = PersisterSettings()
    pool = await open_pool(settings.database_url.get_secret_value())
    await serve_persister(settings, await connect_rabbit(settings), pool, asyncio.Event())

asyncio.run(main())
"""
BATCHES, PACKETS = 8, 5


async def log_batches(gate: ScriptedGate) -> int:
    """Publish some batches; returns how many packets."""
    for step in range(BATCHES):
        packets = [packet_entry() for _ in range(PACKETS)]
        hops = [one for packet in packets for one in lifecycle(packet)]
        await gate.log([*packets, *hops], [session_row(step=step)])
    return BATCHES * PACKETS


@pytest.mark.parametrize("point", ["persister.before_commit:3", "persister.after_commit:3"])
async def test_killed_around_its_commit(
    point: str, amqp_vhost_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix rows 6 to 8: killed with -9, started again: each packet once, no number missing."""
    topology = build_topology()
    await apply_rabbit(amqp_vhost_url, topology)
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    bus = await connect_rabbit(BusSettings())
    pool = await open_pool(postgres_url)
    try:
        bench = LogBench(ScriptedGate(bus), bus, pool)
        await bench.gate.open()
        packets = await log_batches(bench.gate)
        environment = {**os.environ, "APC_CRASH_AT": point, "APC_DATABASE_URL": postgres_url}
        # One batch a transaction, so that there is a third one.
        environment["APC_TRANSACTION_ENTRIES"] = "1"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVE, env=environment, stdout=PIPE, stderr=PIPE
        )
        output, errors = await process.communicate()
        assert process.returncode == -signal.SIGKILL, (output + errors).decode()
        committed = await bench.count("agent_packets")
        was_committed = point.startswith("persister.after")
        assert committed == (2 if was_committed else 1) * PACKETS, "one opening, then the batches"
        async with bench.writing() as persister:
            counts = persister.writers[0].counts
            await until(lambda: counts.messages >= BATCHES - (1 if not was_committed else 2))
        # One more when the acknowledgement of the batch before was still waiting for company.
        assert counts.duplicates >= (1 if was_committed else 0), "the fault bit: it came again"
        assert await bench.count("agent_packets") == await bench.count("packet_ids") == packets
        assert await bench.numbers() == list(range(1, 4 * packets + 1))
        assert await bench.count("packet_conflicts") == 0
        assert (await bus.depth(log_queue(0))).messages == 0
    finally:
        await pool.close()
        await bus.close()


@pytest.mark.parametrize("point", ["before_commit:8", "after_commit:8", "after_signing:9"])
async def test_killed_while_several_shards_share_transactions(
    point: str, amqp_vhost_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = 4
    await apply_rabbit(amqp_vhost_url, build_topology(shards))
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    bus = await connect_rabbit(BusSettings(), shards=shards)
    pool = await open_pool(postgres_url)
    try:
        gates = [ScriptedGate(bus, shard) for shard in range(shards)]
        bench = LogBench(gates[0], bus, pool, PersisterSettings(shards=shards))
        for gate in gates:
            await gate.open()
        environment = {**os.environ, "APC_CRASH_AT": f"persister.{point}", "APC_DATABASE_URL": postgres_url}
        environment["APC_SHARDS"] = str(shards)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVE, env=environment, stdout=PIPE, stderr=PIPE
        )
        ended = asyncio.create_task(process.communicate())
        while not ended.done():
            await asyncio.gather(*(gate.log([packet_entry() for _ in range(PACKETS)]) for gate in gates))
        output, errors = ended.result()
        assert process.returncode == -signal.SIGKILL, (output + errors).decode()
        await bench.write()
        rows = await pool.fetch("SELECT shard, array_agg(seq ORDER BY seq) AS n FROM apc_log.agent_packets GROUP BY 1")
        packets = {gate.shard: gate.batch_no * PACKETS for gate in gates}
        assert {row["shard"]: row["n"] for row in rows} == {
            shard: list(range(1, count + 1)) for shard, count in packets.items()
        }
        assert await bench.count("packet_ids") == sum(packets.values())
        assert await bench.count("packet_conflicts") == 0
    finally:
        await pool.close()
        await bus.close()


@pytest.fixture
def data() -> Iterator[Path]:
    """Not pytest's folder: each run of pytest closes that one for other users, the server's among them."""
    path = Path(tempfile.mkdtemp(prefix="apc-embedded-"))
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def own_postgres(folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = await start_embedded(folder)
    try:
        await migrate(server.url)
        yield server
    finally:
        await (await start_embedded(folder)).stop()


@pytest.mark.long
async def test_the_database_dies_and_comes_back(data: Path, memory_broker: InMemoryBroker) -> None:
    """Matrix row 14: no batch is acknowledged while it is away, nothing is lost, nobody has to help."""
    async with own_postgres(data) as server:
        pool = await open_pool(server.url, max_size=4)
        gate = ScriptedGate(memory_broker.connect("orchestrator"))
        bench = LogBench(gate, memory_broker.connect("persister"), pool)
        await gate.open()
        async with bench.writing() as persister:
            writer = persister.writers[0]
            packets = await log_batches(gate)
            await until(lambda: writer.counts.messages == BATCHES + 1)
            assert persister.is_ready
            kill_embedded(data)
            await until(lambda: not persister.is_ready)
            packets += await log_batches(gate)
            await until(lambda: writer.counts.failures > 0)
            assert writer.counts.messages == BATCHES + 1, "nothing is done while the database is away"
            await start_embedded(data)
            await until(lambda: writer.counts.messages == 2 * BATCHES + 1)
            await until(lambda: persister.is_ready)
        assert await bench.count("agent_packets") == packets
        assert await bench.numbers() == list(range(1, 4 * packets + 1))
        pool.terminate()


@pytest.mark.long
async def test_stopping_while_the_database_is_away(data: Path, memory_broker: InMemoryBroker) -> None:
    async with own_postgres(data) as server:
        pool = await open_pool(server.url, max_size=4)
        gate = ScriptedGate(memory_broker.connect("orchestrator"))
        bench = LogBench(gate, memory_broker.connect("persister"), pool)
        async with bench.writing() as persister:
            await until(lambda: persister.is_ready)
            kill_embedded(data)
            await gate.open()
            await until(lambda: persister.writers[0].counts.failures > 0)
        assert (await bench.bus.depth(log_queue(0))).messages == 1
        pool.terminate()


async def test_the_server_ends_the_writers_connection(bench: LogBench) -> None:
    await bench.gate.open()
    async with bench.writing() as persister:
        writer = persister.writers[0]
        await until(lambda: writer.counts.messages == 1)
        await bench.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await until(lambda: not persister.is_ready)
        await bench.gate.log([packet_entry()])
        await until(lambda: writer.counts.messages == 2)
        assert persister.is_ready
    assert await bench.numbers() == [1]


async def test_another_holds_the_shard_too_long(bench: LogBench) -> None:
    """A frozen writer's transaction: ours is ended by the server, waits and goes on."""
    bench.settings = bench.settings.model_copy(update={"database_heartbeat": bench.settings.database_heartbeat / 50})
    await bench.gate.open()
    async with bench.writing() as persister:
        writer = persister.writers[0]
        await until(lambda: writer.counts.messages == 1)
        async with bench.pool.acquire() as frozen, frozen.transaction():
            await frozen.execute("SELECT * FROM apc_log.shards FOR UPDATE")
            await bench.gate.log([packet_entry()])
            await until(lambda: writer.counts.failures > 0)
        await until(lambda: writer.counts.messages == 2)
    assert await bench.numbers() == [1]


async def test_stopping_writes_what_the_broker_has_handed_over(bench: LogBench) -> None:
    bench.settings = bench.settings.model_copy(update={"transaction_entries": 1})
    await bench.gate.open()
    packets = await log_batches(bench.gate)
    async with bench.writing() as persister:
        await until(lambda: persister.writers[0].counts.messages > 0)
        assert persister.writers[0].counts.messages <= BATCHES, "not exercised: nothing is left"
    assert persister.writers[0].counts.messages == BATCHES + 1
    assert (await bench.bus.depth(log_queue(0))).messages == 0
    assert await bench.count("agent_packets") == packets


async def test_stopping_leaves_to_others_what_was_not_handed_over(bench: LogBench) -> None:
    bench.settings = bench.settings.model_copy(update={"transaction_entries": 1, "log_prefetch": 1})
    await bench.gate.open()
    packets = await log_batches(bench.gate)
    async with bench.writing() as persister:
        counts = persister.writers[0].counts
        await until(lambda: counts.messages > 0)
        before = counts.messages
    assert counts.messages <= before + 2, "the current one, and one"
    assert (await bench.bus.depth(log_queue(0))).messages == BATCHES + 1 - counts.messages
    again = await bench.write()
    assert again.writers[0].counts.duplicates == 0
    assert await bench.count("agent_packets") == packets


async def test_a_queue_that_is_made_again(bench: LogBench, memory_broker: InMemoryBroker) -> None:
    async with bench.writing() as persister:
        writer = persister.writers[0]
        await until(lambda: persister.is_ready)
        memory_broker.delete_queue(log_queue(0))
        await until(lambda: not persister.is_ready)
        memory_broker.apply(build_topology())
        await bench.gate.open()
        await until(lambda: writer.counts.messages == 1)


async def test_the_acked_is_in_the_log_at_every_moment(bench: LogBench) -> None:
    """Acknowledged batches are a subset of the committed ones (matrix rows 14 and 40)."""
    await bench.gate.open()
    await log_batches(bench.gate)

    async def left() -> int:
        return (await bench.bus.depth(log_queue(0))).messages

    async with bench.writing() as persister:
        while persister.writers[0].counts.messages <= BATCHES:
            gone = BATCHES + 1 - await left()
            row = await bench.pool.fetchrow("SELECT batch_no FROM apc_log.shards")
            committed = 0 if row is None else row["batch_no"] + 1
            unacked = BATCHES + 1 - committed
            assert gone <= committed + max(unacked, 0)
            await asyncio.sleep(0)


async def test_two_shards_have_each_their_own_numbers(postgres_url: str) -> None:
    broker = InMemoryBroker(build_topology(shards=2))
    pool = await open_pool(postgres_url, max_size=4)
    try:
        bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
        bench.settings = bench.settings.model_copy(update={"shards": 2})
        second = ScriptedGate(bench.gate.bus, shard=1)
        for gate, count in ((bench.gate, 3), (second, 2)):
            await gate.open()
            await gate.log([packet_entry() for _ in range(count)])
        second.batch_no += 1
        await second.log([packet_entry()])
        with pytest.raises(Exception, match="log of shard 1 stopped"):
            async with bench.writing() as persister:
                await until(lambda: [writer.counts.messages for writer in persister.writers] == [2, 2])
                await until(lambda: not persister.is_ready)
                await bench.gate.log([packet_entry()])
                await until(lambda: persister.writers[0].counts.messages == 3)
        rows = await pool.fetch("SELECT shard, array_agg(seq ORDER BY seq) AS n FROM apc_log.agent_packets GROUP BY 1")
        assert {row["shard"]: row["n"] for row in rows} == {0: [1, 2, 3, 4], 1: [1, 2]}
    finally:
        await pool.close()


async def test_a_batch_that_ends_the_writer_each_time_stops_it_and_is_kept(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never skipped: the batches behind it would leave a gap."""
    await bench.gate.open()
    for _ in range(3):
        await bench.gate.log([packet_entry()])
    attempts: list[int] = []

    async def fail(connection: Any, shard: int, messages: list[Received], *given: Any) -> Committed:
        poisonous = [getattr(one.content, "batch_no", None) == 2 for one in messages]
        if any(poisonous):
            attempts.append(len(messages))
            raise LookupError("nobody has foreseen this")
        return await commit(connection, shard, messages, *given)

    monkeypatch.setattr("apc_persister.writer.commit", fail)
    with pytest.raises(BatchEndsWriter, match="nothing is skipped"):
        async with bench.writing():
            await until(lambda: bench._is_over)
    assert attempts == [4, 1, 1, 1], "once with others, three times alone"
    assert await bench.numbers() == [1]
    assert (await bench.bus.depth(log_queue(0))).messages == 2
