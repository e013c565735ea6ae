"""`make bench-page`: the budgets of the web console, for one run of many packets."""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2 as httpx

from apc_bus.database import open_pool
from apc_contracts import load_contract
from apc_web.app import make_app
from apc_web.live import Feed
from apc_web.pool import open_reader, open_state_reader
from apc_web.route_services import Services
from benchmarks.database.log_load import PACKETS_A_TRANSACTION, Loader
from benchmarks.page.browser import first_view, large_view, live_view
from benchmarks.page.from_demo import demo_view
from benchmarks.page.large_run import SESSION, load_run
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers, start_servers

PACKETS = 100_000
TIMELINE_MS = 1_000
AT_MS = 150
POSITIONS = 100
_WAIT = timedelta(seconds=30)


SMALL = 350
"""Packets of the run whose first view is measured."""


async def measure(packets: int, figures: Figures) -> None:
    """Load runs into fresh databases, and measure what their pages ask the API and a browser for."""
    figures.add(*await demo_view())
    async with start_servers() as servers:
        async with run_of(servers, SMALL, SMALL) as (services, _):
            figures.add(*await first_view(services))
        async with run_of(servers, packets) as (services, loader):
            transport = httpx.ASGITransport(make_app(services))
            async with httpx.AsyncClient(transport=transport, base_url="http://page/api/v1", timeout=600) as client:
                await _measure_api(client, figures)
            figures.add(*await large_view(services))
        async with run_of(servers, SMALL, SMALL) as (services, loader):
            figures.add(*await live_view(services, loader))


@asynccontextmanager
async def run_of(
    servers: Servers, packets: int, a_transaction: int = PACKETS_A_TRANSACTION
) -> AsyncIterator[tuple[Services, Loader]]:
    """Load a run; yield the services of a web server over it, and what writes more packets."""
    url = await servers.fresh_database()
    pool = await open_pool(url, max_size=2)
    loader = await load_run(pool, packets, a_transaction)
    await pool.execute("VACUUM ANALYZE")
    reader, state = await open_reader(url, _WAIT), await open_state_reader(url, _WAIT)
    contract = load_contract()
    yield (
        Services(
            pool=reader,
            state=state,
            contract=contract,
            key_of=lambda shard: None,
            feed=Feed(reader, contract),
            is_embedded=False,
        ),
        loader,
    )
    state.terminate()
    reader.terminate()
    await loader.close()
    await pool.close()


async def _measure_api(client: httpx.AsyncClient, figures: Figures) -> None:
    session = f"/sessions/{SESSION}"
    last = (await client.get(session)).json()["last_seq"]

    async def ask(path: str) -> int:
        response = await client.get(path)
        response.raise_for_status()
        return len(response.content)

    detail = await _best(lambda: ask(session))
    timeline = await _best(lambda: ask(f"{session}/timeline"))
    first = await _took(lambda: ask(f"{session}/at/{last}"))
    chance = random.Random(1)
    others = sorted([await _took(lambda: ask(f"{session}/at/{chance.randint(1, last)}")) for _ in range(POSITIONS)])
    figures.add(
        Figure("session", detail, "ms", note="figures of the session"),
        Figure("timeline", timeline, "ms", TIMELINE_MS, 1.0, is_time=True),
        Figure("at_first", first, "ms", note="the first position that is asked for: snapshots are made"),
        Figure("at_p95", others[int(POSITIONS * 0.95)], "ms", AT_MS, 1.0, is_time=True, note="random positions"),
    )


async def _took(act: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await act()
    return (time.perf_counter() - began) * 1000


async def _best(act: Callable[[], Awaitable[object]]) -> float:
    """Return the shortest of five: a busy machine makes it longer, nothing makes it shorter."""
    return min([await _took(act) for _ in range(5)])


def main() -> int:
    """Measure, print, and write build/bench-page.json; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="make bench-page")
    parser.add_argument("--packets", type=at_least(1_000), default=PACKETS)
    figures = Figures()
    asyncio.run(measure(parser.parse_args().packets, figures))
    figures.print()
    figures.write(Path("build/bench-page.json"))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())
