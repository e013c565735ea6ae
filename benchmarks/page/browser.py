"""What a real browser needs for a run: script, time, long tasks, heap, rows, and the delay of live packets."""

import asyncio
import json
import os
import time
from datetime import timedelta
from typing import Any

import httpx2 as httpx
from tests.support.web.browser import FRONTEND, NODE, served

from apc_client.sending import until
from apc_web.app import make_app
from apc_web.route_services import Services
from benchmarks.database.log_load import Loader
from benchmarks.page.large_run import RUN
from benchmarks.support.figures import Figure

SCRIPT_KB = 250
INTERACTIVE_MS = 1_500
TASK_MS = 100
HEAP_MB = 400
ROWS = 100
LIVE_MS = 500
LIVE_SECONDS = 10
RATE = 300
"""Packets a second, in batches of a tenth of a second."""
_BATCH = RATE // 10


async def first_view(services: Services) -> list[Figure]:
    """Return what the first view of a small run needs."""
    async with served(make_app(services)) as url:
        seen = await run_part(url, "first")
    return [
        Figure("first_script", seen["script_kb"], "kB gzip", SCRIPT_KB, 1.0, is_time=True),
        Figure("first_interactive", seen["interactive_ms"], "ms", INTERACTIVE_MS, 1.0, is_time=True),
    ]


async def large_view(services: Services) -> list[Figure]:
    """Return what a large run needs while somebody looks around in it."""
    async with served(make_app(services)) as url:
        seen = await run_part(url, "large")
    return [
        Figure("large_interactive", seen["interactive_ms"], "ms", note="until the timeline is drawn"),
        Figure("large_load_task", seen["load_task_ms"], "ms", note="longest main-thread task while it loads"),
        Figure("large_pan_task", seen["pan_task_ms"], "ms", TASK_MS, 1.0, is_time=True, note="longest while panning"),
        Figure("large_graph_task", seen["graph_task_ms"], "ms", TASK_MS, 1.0, is_time=True, note="panning the graph"),
        Figure("large_heap", seen["heap_mb"], "MB", HEAP_MB, 1.0, is_time=True, note="after GC"),
        Figure("large_rows", seen["rows"], "DOM rows", ROWS, 1.0, is_time=True),
    ]


async def live_view(services: Services, loader: Loader) -> list[Figure]:
    """Return how long after its commit a packet is on an open page, at 300 packets a second."""
    async with served(make_app(services)) as url:
        watching = asyncio.create_task(run_part(url, "live"))
        async with httpx.AsyncClient(base_url=url) as client:
            begun = (await client.get(f"/api/v1/runs/{RUN}")).json()
        assert begun["run_id"] == RUN

        async def is_watched() -> bool:
            return services.feed.followers > 0

        await until(is_watched, timedelta(minutes=2))
        await asyncio.sleep(2.0)  # the page draws what it has
        commits: list[tuple[int, float]] = []
        sent, start = 0, time.time()
        while sent < RATE * LIVE_SECONDS:
            await loader.load(_BATCH, _BATCH)
            sent += _BATCH
            commits.append((sent, time.time() * 1000))
            await asyncio.sleep(max(0.0, start + sent / RATE - time.time()))
        seen = await watching
    first = seen["samples"][0][0]
    delays = sorted(
        next((at for rows, at in seen["samples"] if rows >= first + number), float("inf")) - committed
        for number, committed in commits
    )
    return [
        Figure("live_p95", delays[int(len(delays) * 0.95)], "ms", LIVE_MS, 1.0, is_time=True, note="commit to page")
    ]


async def run_part(url: str, part: str) -> dict[str, Any]:
    """Run a part of tests/browser/budgets.mjs; return what it measured."""
    given = json.dumps({"url": url, "run": RUN, "part": part, "seconds": LIVE_SECONDS})
    process = await asyncio.create_subprocess_exec(
        NODE,
        "tests/browser/budgets.mjs",
        given,
        cwd=FRONTEND,
        env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    found: dict[str, Any] = json.loads(output)
    return found
