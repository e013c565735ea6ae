"""Agents with their own login, on a fresh database."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest

from apc_bus.database import open_pool
from apc_persister.database.logins import end_login, make_login

PASSWORD = "a-password-of-a-test"


@dataclass(frozen=True, slots=True)
class Logins:
    """Makes logins, and pools that use them."""

    admin: asyncpg.Pool
    url: str
    name: str
    _made: list[str]
    _resources: AsyncExitStack

    def agent(self, letter: str) -> str:
        """Return the id of an agent of this test."""
        return f"{letter}-{self.name}"

    def url_for(self, agent_id: str, password: str = PASSWORD) -> str:
        """Return the URL of the database for an agent's login."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{quote(f'agent.{agent_id}')}:{password}@{host}"))

    async def open_to_all(self, table: str) -> None:
        """Take the row-level security of a table away."""
        await self.admin.execute(f"ALTER TABLE apc_app.{table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY")

    async def make(self, agent_id: str) -> None:
        """A login."""
        self._made.append(agent_id)
        await make_login(self.admin, agent_id, PASSWORD)

    async def pool(self, letter: str) -> asyncpg.Pool:
        """Return a pool as the login of a new agent."""
        agent_id = self.agent(letter)
        await self.make(agent_id)
        pool = await open_pool(self.url_for(agent_id), max_size=2)
        self._resources.push_async_callback(pool.close)
        return pool


@pytest.fixture
async def logins(postgres_url: str) -> AsyncIterator[Logins]:
    """Logins of this test, gone afterwards."""
    async with AsyncExitStack() as stack:
        admin = await open_pool(postgres_url, max_size=2)
        stack.push_async_callback(admin.close)
        name = urlsplit(postgres_url).path.rpartition("_")[2]
        made: list[str] = []
        async with AsyncExitStack() as pools:
            yield Logins(admin, postgres_url, name, made, pools)
        for agent_id in made:
            await end_login(admin, agent_id)
