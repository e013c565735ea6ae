"""The table of a run of a million packets in a real browser: `python -m benchmarks.page.long_table`.

20,000 packets are written by the log writer's own transaction, and their rows copied: what is measured is reading.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import asyncpg
import httpx2 as httpx
from tests.support.web.browser import served

from apc_web.app import make_app
from benchmarks.page.__main__ import run_of
from benchmarks.page.browser import ROWS, run_part
from benchmarks.page.large_run import SESSION
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import start_servers

PACKETS = 1_000_000
WRITTEN = 20_000
PAGE = 100
"""Packets of a page of the list."""


async def measure(packets: int, figures: Figures) -> None:
    """Make a log of so many packets, and read it as the page does."""
    async with start_servers() as servers, run_of(servers, WRITTEN) as (services, loader):
        await _copy_rows(loader.pool, packets // WRITTEN)
        async with served(make_app(services)) as url:
            async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=60) as client:
                await _read_list(client, figures)
            seen = await run_part(url, "table")
    figures.add(
        Figure("table_first", seen["first_ms"], "ms", note="from the address to the first rows"),
        Figure("table_whole", seen["whole_ms"], "ms", note="until all packets are there"),
        Figure("table_packets", seen["packets"], "packets in the table"),
        Figure("table_end", seen["end_ms"], "ms", note="End, to the last row"),
        Figure("table_scroll_task", seen["scroll_task_ms"], "ms", note="longest task while scrolling through it"),
        Figure("table_rows", seen["rows"], "DOM rows", ROWS, 1.0, is_time=True, note="the most that were seen"),
        Figure("table_heap", seen["heap_mb"], "MB", note="after GC"),
    )


async def _copy_rows(pool: asyncpg.Pool, times: int) -> None:
    """Copy the packets of the run behind each other, each copy with new ids and places."""
    columns = [
        row["attname"]
        for row in await pool.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'apc_log.agent_packets'::regclass "
            "AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
        )
    ]
    ruled = "CASE verdict WHEN 'held' THEN 'accepted' ELSE verdict END"  # the hops that ruled are not copied
    other = {"seq": "seq + $1::bigint * $2::bigint", "packet_id": "gen_random_uuid()", "verdict": ruled}
    picked = ", ".join(other.get(name, name) for name in columns)
    size = await pool.fetchval("SELECT max(seq) FROM apc_log.agent_packets")
    async with pool.acquire() as connection:
        await connection.execute("SET session_replication_role = replica")  # no triggers: they guard real logs
        for copy in range(1, times):
            await connection.execute(
                f"INSERT INTO apc_log.agent_packets ({', '.join(columns)}) "
                f"SELECT {picked} FROM apc_log.agent_packets WHERE seq <= $2::bigint",
                copy,
                size,
            )
        await connection.execute("UPDATE apc_log.shards SET next_seq = $1", size * times + 1)
        await connection.execute("RESET session_replication_role")
    await pool.execute("VACUUM ANALYZE apc_log.agent_packets")


async def _read_list(client: httpx.AsyncClient, figures: Figures) -> None:
    """Read the first page of the list, and one behind a cursor in its middle."""

    async def page(after: str | None) -> tuple[float, dict[str, object]]:
        given = {"session_id": SESSION, "limit": str(PAGE)} | ({"after": after} if after else {})
        began = time.perf_counter()
        response = await client.get("/packets", params=given)
        response.raise_for_status()
        return (time.perf_counter() - began) * 1000, response.json()

    await page(None)
    first, found = await page(None)
    cursor, deepest = found["next"], 0.0
    for _ in range(50):
        took, found = await page(str(cursor))
        cursor, deepest = found["next"], max(deepest, took)
    figures.add(
        Figure("list_first", first, "ms", note=f"first {PAGE} packets of {SESSION}"),
        Figure("list_next", deepest, "ms", note="slowest of 50 pages behind a cursor"),
    )


def main() -> int:
    """Measure, print, and write build/bench-table.json; return 1 when there are too many rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page.long_table", description=__doc__)
    parser.add_argument("--packets", type=at_least(20_000), default=PACKETS, help="of the run (default 1,000,000)")
    figures = Figures()
    asyncio.run(measure(parser.parse_args().packets, figures))
    figures.print()
    figures.write(Path("build/bench-table.json"))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())
