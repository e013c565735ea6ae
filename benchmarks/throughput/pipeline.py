"""End to end over RabbitMQ: published, judged, applied and logged with every event, until the last row is committed."""

import time
from collections.abc import Sequence
from statistics import fmean
from uuid import UUID

import asyncpg

from apc_bus.port import Publication
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.metering import Meter, Run
from benchmarks.support.processes import Service
from benchmarks.support.servers import Servers
from benchmarks.support.system import ROWS, Load, System, until_applied, until_followed
from benchmarks.throughput.raw_pipeline import measure_raw_pipeline

BAR = 0.8
WARM_UP = 1_000
CPU = "CPU s per 1,000 packets"


async def run_pipeline(servers: Servers, system: System, sink: Service, session_id: str, count: int) -> Run:
    """Send `count` packets through a session that is open, after a warm-up; every packet must have all its rows.

    Raises:
        RuntimeError: the log lacks an event.
    """
    bus, pool = system.bus, system.pool
    load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], bus.user, WARM_UP + count)
    sender = Load(bus, pool, [session_id])
    await sender.send(load[:WARM_UP])
    await until_applied(pool, [session_id], WARM_UP)
    await until_followed(pool)
    services = {**system.services, "worker": sink}
    meter = await Meter.start(servers, {name: service.process.pid for name, service in services.items()})
    began = time.monotonic()
    await sender.send(load[WARM_UP:])
    await until_applied(pool, [session_id], WARM_UP + count)
    rate = count / (time.monotonic() - began)
    await until_followed(pool)
    cpu = await meter.read(count)
    await check_rows(pool, session_id, load)
    return Run(rate, cpu)


async def check_rows(pool: asyncpg.Pool, session_id: str, load: Sequence[Publication]) -> None:
    """Each packet has its three hops: admitted, applied, archived. Raises RuntimeError."""
    ids = [UUID(one.message.message_id) for one in load]
    row = await pool.fetchrow(ROWS, session_id, ids)
    if row is None or row["routed"] != len(ids) or row["archived"] != len(ids) or row["hops"] < 3 * len(ids):
        raise RuntimeError(f"the log lacks events of {len(ids)} packets: {row}")


async def measure_pipeline(servers: Servers, system: System, figures: Figures, count: int) -> None:
    """Raw, bus, raw, bus: what disturbs the machine disturbs both."""
    raws: list[Run] = []
    runs: dict[str, Run] = {}
    async with system.local_worker(agents.source):
        for module in ("agents", "observed"):
            raws.append(await _raw(servers, count))
            async with system.worker("sink", module=module) as sink:
                session_id = f"pipeline-{module}"
                await system.open_session(session_id, [agents.source, agents.sink])
                runs[module] = await run_pipeline(servers, system, sink, session_id, count)
                memory = {**system.services, "worker": sink}
                used = {name: service.consumption().memory_mb for name, service in memory.items()}
        raws.append(await _raw(servers, count))
    raw = _mean(raws).rate
    figures.add(
        Figure("raw_pipeline", raw, "packets/s", note="aio-pika, confirms, audit copy, COPY; no gate, no events"),
        Figure("pipeline", runs["agents"].rate, "packets/s", raw, BAR, note="goal 0.9"),
        Figure("pipeline_faststream", runs["observed"].rate, "packets/s", raw, note="with one FastStream middleware"),
    )
    _add_cpu(figures, "raw_pipeline", _mean(raws))
    _add_cpu(figures, "pipeline", runs["agents"])
    figures.add(Figure("worker_cpu_faststream", runs["observed"].cpu["worker"], CPU))
    figures.add(*(Figure(f"memory_{name}", megabytes, "MB resident") for name, megabytes in used.items()))


def _add_cpu(figures: Figures, name: str, run: Run) -> None:
    figures.add(Figure(f"{name}_cpu", sum(run.cpu.values()), CPU, note="all processes and both servers"))
    figures.add(*(Figure(f"{name}_cpu_{process}", seconds, CPU) for process, seconds in run.cpu.items()))


def _mean(runs: Sequence[Run]) -> Run:
    """Return the mean of runs of one kind: one alone depends on what else the servers do just then."""
    cpu = {name: fmean(run.cpu[name] for run in runs) for name in runs[0].cpu}
    return Run(fmean(run.rate for run in runs), cpu)


async def _raw(servers: Servers, count: int) -> Run:
    load = packets.publications("raw", agents.source.actor, [agents.sink.agent_id], "guest", count)
    return await measure_raw_pipeline(servers, load)
