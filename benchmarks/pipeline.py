"""End to end over RabbitMQ: published, judged, applied and logged with every event, until the last row is committed."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from apc_bus.port import Publication
from benchmarks import agents, packets
from benchmarks.figures import Figure, Figures
from benchmarks.processes import Consumption, Service, consumption_of
from benchmarks.raw_pipeline import measure_raw_pipeline
from benchmarks.servers import Servers
from benchmarks.system import ROWS, Load, System, until_applied

WARM_UP = 1_000


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A measured run: packets per second, and per process the CPU seconds that 1,000 packets cost."""

    rate: float
    cpu_per_thousand: dict[str, float]
    memory_mb: dict[str, float]


async def run_pipeline(system: System, sink: Service, session_id: str, count: int) -> PipelineRun:
    """Send `count` packets through a session that is open, after a warm-up; every packet must have all its rows.

    Raises:
        RuntimeError: the log lacks an event.
    """
    bus, pool = system.bus, system.pool
    load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], bus.user, WARM_UP + count)
    warm_up, measured = load[:WARM_UP], load[WARM_UP:]
    sender = Load(bus, pool, session_id)
    await sender.send(warm_up)
    await until_applied(pool, session_id, WARM_UP)
    services = {**system.services, "worker": sink}
    before = _consumption(services)
    began = time.monotonic()
    await sender.send(measured)
    await until_applied(pool, session_id, WARM_UP + count)
    rate = count / (time.monotonic() - began)
    after = _consumption(services)
    await check_rows(pool, session_id, measured)
    return PipelineRun(
        rate,
        {name: (after[name].cpu_seconds - before[name].cpu_seconds) / count * 1000 for name in after},
        {name: after[name].memory_mb for name in after},
    )


async def check_rows(pool: asyncpg.Pool, session_id: str, load: Sequence[Publication]) -> None:
    """Each packet has its three hops: admitted, applied, archived. Raises RuntimeError."""
    ids = [UUID(one.message.message_id) for one in load]
    row = await pool.fetchrow(ROWS, session_id, ids)
    if row is None or row["routed"] != len(ids) or row["archived"] != len(ids) or row["hops"] < 3 * len(ids):
        raise RuntimeError(f"the log lacks events of {len(ids)} packets: {row}")


def _consumption(services: dict[str, Service]) -> dict[str, Consumption]:
    return {name: service.consumption() for name, service in services.items()} | {"sender": consumption_of(os.getpid())}


async def measure_pipeline(servers: Servers, system: System, figures: Figures, count: int) -> None:
    """Raw, bus, raw, bus: what disturbs the machine disturbs both."""
    raws, runs = [], []
    async with system.worker("sink") as sink, system.local_worker(agents.source):
        for number in range(2):
            raws.append(await _raw(servers, count))
            session_id = f"pipeline-{number}"
            await system.open_session(session_id, [agents.source, agents.sink])
            runs.append(await run_pipeline(system, sink, session_id, count))
    raw = sum(raws) / len(raws)
    rate = sum(run.rate for run in runs) / len(runs)
    figures.add(
        Figure("raw_pipeline", raw, "packets/s", note="aio-pika, confirms, audit copy, COPY; no gate, no events"),
        Figure("pipeline", rate, "packets/s", raw, 0.7, note="goal 0.9; last row committed, three hops a packet"),
    )
    for name, cpu in runs[-1].cpu_per_thousand.items():
        figures.add(Figure(f"pipeline_cpu_{name}", cpu, "CPU s per 1,000 packets"))
    for name, memory in runs[-1].memory_mb.items():
        figures.add(Figure(f"pipeline_memory_{name}", memory, "MB resident"))


async def _raw(servers: Servers, count: int) -> float:
    load = packets.publications("raw", agents.source.actor, [agents.sink.agent_id], "guest", count)
    return await measure_raw_pipeline(servers.fresh_vhost(), await servers.fresh_database(), load)
