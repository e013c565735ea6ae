"""Where conversations are stored: the database of APC_DATABASE_URL, the embedded one, or this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from apc_agents.memory import BaseMemoryStore, DatabaseMemoryStore, InMemoryMemoryStore
from apc_bus.database import open_pool
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_console.connections.database import PATIENCE, database_url, holds_database
from apc_console.errors import InputUnusable

NEEDED_TABLE = "apc_app.conversation_history"


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """The memory of one user."""

    store: BaseMemoryStore
    pool: asyncpg.Pool | None = None
    """None = conversations end with this process."""

    def of(self, user: str) -> BaseMemoryStore:
        """Return the memory of another user; users do not see each other's."""
        return self.store.for_owner(user)


@asynccontextmanager
async def open_memory(user: str) -> AsyncIterator[ChatMemory]:
    """Open the memory of a user.

    Raises:
        InputUnusable: the database is older than this version, or the data folder may not be read.
        DatabaseUnavailable: it does not answer.
    """
    bus, database = BusSettings(), DatabaseSettings()
    if database.database_url is None and not holds_database(bus.data_dir):
        yield ChatMemory(InMemoryMemoryStore(user))
        return
    async with database_url(bus, database) as url:
        pool = await open_pool(url, max_size=4, wait=PATIENCE)
        try:
            if await pool.fetchval("SELECT to_regclass($1)", NEEDED_TABLE) is None:
                raise InputUnusable(f"this database has no {NEEDED_TABLE}: run `apc migrate`, or `apc up` once")
            yield ChatMemory(DatabaseMemoryStore(pool, user), pool)
        finally:
            await pool.close()
