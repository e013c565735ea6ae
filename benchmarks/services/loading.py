"""What an agent costs before its first packet: CPU of the imports, start and memory of its worker.

`python -m benchmarks.services.loading [--beside CHECKOUT] [--rounds N]` measures this checkout, and another one in turn
with it. CPU seconds are of user and system; all figures are medians.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import build_topology
from apc_client.registration import queues_of
from benchmarks.support import agents
from benchmarks.support.processes import ROOT, running
from benchmarks.support.servers import start_servers

PROGRAMS = {
    "the libraries": "import pydantic, asyncpg, structlog",
    "import apc_agents": "import apc_agents",
    "an agent is defined": "from benchmarks.support.agents import sink",
    "a worker": "import apc_agents.running.service",
}
COMPONENTS = ("contracts", "bus", "log", "agents", "orchestrator", "persister", "web", "client", "doors", "cli", "apps")
Samples = dict[tuple[str, str], list[float]]
"""By what is measured, and by the checkout."""


def main() -> None:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="folder of another checkout of this project")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    checkouts = {"here": ROOT} | ({} if options.beside is None else {"beside": options.beside.resolve()})
    samples: Samples = defaultdict(list)
    for _ in range(options.rounds):
        for checkout, folder in checkouts.items():
            for name, program in PROGRAMS.items():
                samples[f"{name}: CPU s", checkout].append(_cpu_of(program, path_of(folder)))
    asyncio.run(_measure_workers(samples, checkouts, options.rounds))
    for (what, checkout), values in samples.items():
        base = median(samples["the libraries: CPU s", checkout])
        ratio = f"  {median(values) / base:.2f} x the libraries" if what.endswith("CPU s") else ""
        print(f"{checkout:8}{what:32}{median(values):8.3f}{ratio}")


def path_of(checkout: Path) -> dict[str, str]:
    """Return the environment in which Python finds the packages of a checkout before the installed ones."""
    return {"PYTHONPATH": ":".join(str(checkout / component) for component in COMPONENTS)}


def _cpu_of(program: str, environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={"PATH": "", **environment})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def _measure_workers(samples: Samples, checkouts: Mapping[str, Path], rounds: int) -> None:
    async with _settings() as settings:
        arguments = ("-m", "apc_cli", "worker", "benchmarks.support.agents:sink")
        for _ in range(rounds):
            for checkout, folder in checkouts.items():
                environment = settings | path_of(folder)
                async with running("sink", *arguments, environment=environment) as service:
                    await service.said("worker_started")
                    samples["worker: s until ready", checkout].append(time.monotonic() - service.began)
                    used = service.consumption()
                    samples["worker: CPU s", checkout].append(used.cpu_seconds)
                    samples["worker: MB resident", checkout].append(used.memory_mb)


@asynccontextmanager
async def _settings() -> AsyncIterator[dict[str, str]]:
    """Start a broker with the agent's queues, and a database; yield the settings of its worker."""
    async with start_servers() as servers:
        amqp_url, database_url = servers.fresh_vhost(), await servers.fresh_database()
        await apply_rabbit(amqp_url, build_topology(1, [queues_of(agents.sink.registration("guest"))]))
        yield {"APC_AMQP_URL": amqp_url, "APC_DATABASE_URL": database_url, "APC_DATA_DIR": "build/bench"}


if __name__ == "__main__":
    main()
