"""Two databases of one log."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log.two_databases import SHARDS, TwoDatabases

from apc_bus.in_memory import InMemoryBroker
from apc_bus.topology import build_topology
from apc_log.placement import open_databases


@pytest.fixture
async def two(pool: asyncpg.Pool, east_url: str) -> AsyncIterator[TwoDatabases]:
    """Home and east, over the in-process broker with two shards."""
    async with open_databases(pool, {"east": east_url}, max_size=6) as databases:
        yield TwoDatabases(InMemoryBroker(build_topology(SHARDS)), pool, databases)
