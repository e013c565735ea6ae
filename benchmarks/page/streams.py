"""What open streams of the web console cost the pipeline: `python -m benchmarks.page.streams`.

The same steady load with and without 100 clients, in turn; compared is the CPU that gate, log writer, worker, RabbitMQ,
Postgres and sender need for a packet. The web server is a separate process, and its CPU is listed apart.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.page.from_demo import console_with
from benchmarks.support import agents, packets
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.metering import Meter
from benchmarks.support.processes import Service, running
from benchmarks.support.servers import Servers, start_servers
from benchmarks.support.system import System, start_system, until_applied

CLIENTS = 100
RATE = 300
SECONDS = 10
RUNS = 5
MOST = 1.10
_BATCHES = 10
"""Batches a second."""
_CPU = "CPU s per 1,000 packets"


async def measure(clients: int, rate: int, runs: int, figures: Figures) -> None:
    """Send the same load without and with clients, in turn."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(start_servers())
        system = await stack.enter_async_context(start_system(servers))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="apc-streams-"))
        settings = {**system.environment, "APC_DATA_DIR": folder}
        link, web = await stack.enter_async_context(console_with(settings, ["ui", "--read-only"]))
        await stack.enter_async_context(system.local_worker(agents.source))
        sink = await stack.enter_async_context(system.worker("sink"))
        pipeline = Pipeline(servers, system, {**system.services, "worker": sink, "web": web})
        await pipeline.run("warm-up", rate)
        pairs = []
        for run in range(runs):
            alone = await pipeline.run(f"alone-{run}", rate)
            async with _clients(link, clients) as following:
                watched = await pipeline.run(f"watched-{run}", rate)
            print(f"  {following.lines[-1]}", flush=True)
            pairs.append((alone, watched))
    _tell(pairs, clients, figures)


class Pipeline:
    """Runs the same load in one session after the other."""

    def __init__(self, servers: Servers, system: System, services: dict[str, Service]) -> None:
        self._servers, self._system, self._services = servers, system, services

    async def run(self, session_id: str, rate: int) -> dict[str, float]:
        """Send packets at a steady rate; return CPU seconds for 1,000 of them, by process."""
        bus, count = self._system.bus, rate * SECONDS
        await self._system.open_session(session_id, [agents.source, agents.sink])
        load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], bus.user, count)
        meter = await Meter.start(self._servers, {name: one.process.pid for name, one in self._services.items()})
        step, began = rate // _BATCHES, time.monotonic()
        for sent in range(0, count, step):
            await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))
            for error in await bus.publish_all(load[sent : sent + step]):
                if error is not None:
                    raise error
        await until_applied(self._system.pool, [session_id], count)
        return await meter.read(count)


@asynccontextmanager
async def _clients(link: str, count: int) -> AsyncIterator[Service]:
    """Hold so many streams open."""
    address = urlsplit(link)
    token = address.fragment.removeprefix("token=")
    arguments = ("-m", "benchmarks.page.stream_clients", address.netloc, token, str(count))
    async with running("clients", *arguments, environment={}) as service:
        await service.said("listening")
        yield service


def _tell(pairs: list[tuple[dict[str, float], dict[str, float]]], clients: int, figures: Figures) -> None:
    names = [name for name in pairs[0][0] if name != "web"]
    alone = median(sum(one[name] for name in names) for one, _ in pairs)
    watched = median(sum(other[name] for name in names) for _, other in pairs)
    figures.add(
        Figure("pipeline_alone", alone, _CPU, note="gate, log writer, worker, both servers and the sender"),
        Figure("pipeline_watched", watched, _CPU, alone, MOST, is_time=True, note=f"with {clients} streams"),
    )
    for name in pairs[0][0]:
        before, after = median(one[name] for one, _ in pairs), median(other[name] for _, other in pairs)
        figures.add(Figure(f"watched_{name}", after, _CPU, before))


def main() -> int:
    """Measure, print, and write build/bench-streams.json; return 1 when the pipeline needs too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page.streams", description=__doc__)
    parser.add_argument("--clients", type=at_least(1), default=CLIENTS, help="open streams (default 100)")
    parser.add_argument("--rate", type=at_least(1), default=RATE, help="packets a second (default 300)")
    parser.add_argument("--runs", type=at_least(1), default=RUNS, help="without and with them, in turn (default 5)")
    given = parser.parse_args()
    figures = Figures()
    asyncio.run(measure(given.clients, given.rate, given.runs, figures))
    figures.print()
    figures.write(Path("build/bench-streams.json"))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())
