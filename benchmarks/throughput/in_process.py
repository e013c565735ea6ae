"""Everything in one process: the in-process bus, orchestrator, persister and worker, into the embedded Postgres."""

import os
import sys
import tempfile
import time
from pathlib import Path

from apc_bus.settings import BusSettings, DatabaseSettings
from apc_bus.telemetry import configure_logs
from apc_cli.system.running import run
from apc_client.in_process import run_embedded
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import consumption_of, running
from benchmarks.support.system import Load, open_session, until_applied
from benchmarks.throughput.pipeline import WARM_UP, check_rows

BAR = 2_000
SESSION = "in-process"


async def measure_in_process(figures: Figures, count: int) -> None:
    """In a separate process, so that nothing of this one counts."""
    async with running("in-process", "-m", "benchmarks.throughput.in_process", str(count), environment={}) as service:
        _, rate, cpu, memory = (await service.said("^done")).split()
        await service.ended()  # by itself: told to end, it would leave its Postgres running
    figures.add(
        Figure("in_process", float(rate), "packets/s", BAR, 1.0, note="fixed bar; to the last committed row"),
        Figure("in_process_cpu", float(cpu), "CPU s per 1,000 packets", note="without Postgres"),
        Figure("in_process_memory", float(memory), "MB resident"),
    )


async def load_everything(count: int) -> None:
    """Measure, and say the figures."""
    with tempfile.TemporaryDirectory(prefix="apc-bench-", ignore_cleanup_errors=True) as folder:
        settings = BusSettings(amqp_url=None, data_dir=Path(folder))
        async with run_embedded(settings, DatabaseSettings(database_url=None)) as system:
            await system.start_agents([agents.source, agents.sink])
            bus, pool = system.connect(agents.source.registration().broker_user), system.pool
            await open_session(bus, pool, SESSION, [agents.source, agents.sink])
            load = packets.publications(SESSION, agents.source.actor, [agents.sink.agent_id], bus.user, WARM_UP + count)
            sender = Load(bus, pool, [SESSION])
            await sender.send(load[:WARM_UP])
            await until_applied(pool, [SESSION], WARM_UP)
            before, began = consumption_of(os.getpid()), time.monotonic()
            await sender.send(load[WARM_UP:])
            await until_applied(pool, [SESSION], WARM_UP + count)
            rate, after = count / (time.monotonic() - began), consumption_of(os.getpid())
            await check_rows(pool, SESSION, load)
            cpu = (after.cpu_seconds - before.cpu_seconds) / count * 1000
            print("done", rate, cpu, after.memory_mb, flush=True)


if __name__ == "__main__":
    configure_logs("WARNING")
    run(load_everything(int(sys.argv[1])))
