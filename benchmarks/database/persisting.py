"""The persister beside COPY: the same rows, the same tables, indexes and triggers, the same size of transaction."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
from tests.support.log import ScriptedGate, lifecycle, packet_entry, session_row, until

from apc_bus.database import open_pool
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import build_topology
from apc_contracts import seal
from apc_log.batch import Entry
from apc_log.entries import rows_of
from apc_persister.intake import BatchIntake, Head
from apc_persister.service import Persister
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers
from benchmarks.throughput.raw_pipeline import prepare_connection

BAR = 0.6
PACKETS_A_BATCH = 100
BATCHES_A_TRANSACTION = 5
"""2,000 entries, as many as a transaction of the persister takes."""
Rows = dict[Any, list[tuple[Any, ...]]]


async def measure_persister(servers: Servers, figures: Figures, count: int) -> None:
    """COPY, persister, COPY: each into a fresh database."""
    batches = [_entries() for _ in range(count // PACKETS_A_BATCH)]
    before = await _copy(await servers.fresh_database(), batches)
    rate = await _persist(servers, batches)
    raw = (before + await _copy(await servers.fresh_database(), batches)) / 2
    figures.add(
        Figure("raw_copy", raw, "packets/s", note="asyncpg COPY of ready rows: packet, id, three hops; same indexes"),
        Figure("persister", rate, "packets/s", raw, BAR, note="from a queue of log batches, decoded and fenced"),
    )


def _entries() -> list[Entry]:
    """Return a log batch's worth of packets, each with its three hops and a body of the typical size."""
    body = seal(packets.typical_packet("s", agents.source.actor, ["receiver-1"])).body
    found: list[Entry] = []
    for _ in range(PACKETS_A_BATCH):
        entry = packet_entry(size_bytes=len(body) - 150)
        found += [entry, *lifecycle(entry)]
    return found


async def _copy(database_url: str, batches: Sequence[list[Entry]]) -> float:
    transactions = _transactions(batches)
    connection = await asyncpg.connect(database_url)
    await prepare_connection(connection)
    began = time.monotonic()
    for rows in transactions:
        async with connection.transaction():
            for table, records in rows.items():
                await connection.copy_records_to_table(
                    table.name, schema_name="apc_log", columns=table.columns, records=records
                )
    rate = len(batches) * PACKETS_A_BATCH / (time.monotonic() - began)
    await connection.close()
    return rate


def _transactions(batches: Sequence[list[Entry]]) -> list[Rows]:
    """Return the rows that the persister makes of these batches, made beforehand."""
    found, head = [], Head(0)
    for start in range(0, len(batches), BATCHES_A_TRANSACTION):
        intake = BatchIntake(head, {}, {})
        for entries in batches[start : start + BATCHES_A_TRANSACTION]:
            intake.place(entries, 1, 1, datetime.now(UTC))
        found.append(rows_of(intake.placed))
    return found


async def _persist(servers: Servers, batches: Sequence[list[Entry]]) -> float:
    """Packets a second from the persister's first look at the full queue to its last commit."""
    amqp_url, database_url = servers.fresh_vhost(), await servers.fresh_database()
    await apply_rabbit(amqp_url, build_topology(1))
    bus = await connect_rabbit(BusSettings(amqp_url=amqp_url), purpose="benchmark")
    gate = ScriptedGate(bus)
    await gate.open()
    for entries in batches:
        await gate.log(entries, [session_row()])
    pool = await open_pool(database_url, max_size=2)
    persister, stop = Persister(PersisterSettings(), bus, pool), asyncio.Event()
    began = time.monotonic()
    serving = asyncio.create_task(persister.run(stop))
    await until(lambda: persister.writers[0].counts.messages > len(batches), 120)
    rate = len(batches) * PACKETS_A_BATCH / (time.monotonic() - began)
    stop.set()
    await serving
    await pool.close()
    await bus.close()
    return rate
