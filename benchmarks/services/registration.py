"""How long `apc agent add` takes: one agent with its own queues, and 5,000 agents of one host.

`python -m benchmarks.services.registration --beside CHECKOUT` registers one agent in turn with another checkout.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from apc_bus.telemetry import configure_logs
from apc_cli.system.running import run
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import ROOT
from benchmarks.support.servers import start_servers
from benchmarks.support.system import System, start_system

COUNT = 5_000
HOST_BAR = 10.0
ONE_BAR = 1.0
ROUNDS = 3
FORM = ("--role", "r", "--swarm", "crowd", "--handles", "IDEA")
CROWD = f"""
from apc_agents import Agent

for number in range({COUNT}):
    globals()[f"a{{number}}"] = Agent(f"a{{number}}", role="r", swarm="crowd")
"""


async def measure_registration(figures: Figures, beside: Path | None) -> None:
    """Register agents in new systems; of the commands for one agent the fastest counts, in each checkout."""
    checkouts = {"": ROOT} | ({"_beside": beside} if beside is not None else {})
    async with start_servers() as servers:
        async with start_system(servers) as system:
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
            for number in range(ROUNDS):
                for name, checkout in checkouts.items():
                    taken[name].append(await _add(system, checkout, f"one{name}{number}", *FORM))
        for name, times in taken.items():
            seconds, cpu = min(times)
            note = f"apc agent add, one agent with two queues, CPU {cpu:.2f} s"
            figures.add(Figure(f"register_one{name}", seconds, "s", ONE_BAR, 1.0, is_time=True, note=note))
        for shards in (1, 16):
            async with start_system(servers, shards) as system:
                seconds, cpu = await _add_crowd(system)
                rows = await system.pool.fetchval("SELECT count(*) FROM apc_log.registry_events")
            form = f"apc agent add --host --from FILE, {COUNT} agents"
            note = f"{form}, shards: {shards}, CPU {cpu:.2f} s, {rows:,} rows of the registry"
            figures.add(Figure(f"register_host_{shards}", seconds, "s", HOST_BAR, 1.0, is_time=True, note=note))


async def _add_crowd(system: System) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="apc-bench-") as folder:
        (Path(folder) / "crowd.py").write_text(CROWD)
        names = Path(folder) / "names.txt"
        names.write_text("".join(f"crowd:a{number}\n" for number in range(COUNT)))
        return await _add(system, ROOT, "--host", "h0", "--from", str(names), path=folder)


async def _add(system: System, checkout: Path, *arguments: str, path: str = "") -> tuple[float, float]:
    """Return the seconds of `apc agent add` and its CPU seconds, with the start of its process.

    Raises RuntimeError when it fails.
    """
    began, used = time.monotonic(), _used()
    process = await asyncio.create_subprocess_exec(
        *_command(checkout),
        *arguments,
        cwd=checkout,
        env=system.environment | {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace")[-2_000:])
    return time.monotonic() - began, _used() - used


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _command(checkout: Path) -> Sequence[str]:
    python = sys.executable if checkout == ROOT else str(checkout / ".venv" / "bin" / "python")
    return (python, "-m", "apc_cli", "agent", "add")


def main() -> int:
    """Return the command; 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services.registration", description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout with a .venv, such as that of the last release")
    configure_logs("WARNING")
    figures = Figures()
    run(measure_registration(figures, parser.parse_args().beside))
    figures.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
