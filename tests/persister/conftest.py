"""A persister at work on a fresh database and the in-process broker, fed by a scripted gate."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log import LogBench, ScriptedGate

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool on a fresh database."""
    opened = await open_pool(postgres_url, max_size=6)
    yield opened
    await opened.close()


@pytest.fixture
def bench(pool: asyncpg.Pool, memory_broker: InMemoryBroker) -> LogBench:
    """A scripted gate that has the in-process broker, and a fresh database."""
    gate = ScriptedGate(memory_broker.connect("orchestrator"))
    return LogBench(gate, memory_broker.connect("persister"), pool)
