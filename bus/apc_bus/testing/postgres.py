"""Which Postgres the tests run on, and a database of its own for each test, cloned from a template."""

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from apc_bus.testing.rabbit import docker_answers

_IMAGE = "postgres:18"
Migrate = Callable[[str], Awaitable[None]]
"""Brings the database of a URL to the current schema."""


class PostgresServer:
    """A server with a migrated template database.

    Args:
        description: for the report of the test run.
        url: of a database from which others can be created.
        resources: closed by `close`.
    """

    def __init__(self, description: str, url: str, resources: AsyncExitStack) -> None:
        self.description = description
        self._url = url
        self._resources = resources
        self._template = f"apc_test_{secrets.token_hex(6)}"

    async def prepare(self, migrate: Migrate) -> None:
        """Make the template. Raises what asyncpg raises when the user may not create databases."""
        await self._execute(f'CREATE DATABASE "{self._template}"')
        self._resources.push_async_callback(self.drop, self._template)
        await migrate(self.url_of(self._template))

    async def clone(self) -> str:
        """A fresh database like the template; returns its name. About 30 ms."""
        name = f"apc_test_{secrets.token_hex(6)}"
        await self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        return name

    async def drop(self, name: str) -> None:
        """Drop a database, whoever is still connected."""
        await self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def url_of(self, database: str) -> str:
        """The URL of a database of this server."""
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    async def close(self) -> None:
        """Drop the template and stop what was started."""
        await self._resources.aclose()

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def postgres_choice() -> str:
    """What `start_given_postgres` will use; `embedded` when it gives None."""
    if docker_answers():
        return "docker"
    return "APC_DATABASE_URL" if os.environ.get("APC_DATABASE_URL") else "embedded"


def start_given_postgres() -> PostgresServer | None:
    """Docker's Postgres if an engine answers, else the one of APC_DATABASE_URL, else None."""
    if docker_answers():
        return _from_docker()
    url = os.environ.get("APC_DATABASE_URL")
    return PostgresServer("APC_DATABASE_URL", url, AsyncExitStack()) if url else None


def _from_docker() -> PostgresServer:
    from testcontainers.postgres import PostgresContainer

    resources = AsyncExitStack()
    container = resources.enter_context(PostgresContainer(_IMAGE, driver=None))
    return PostgresServer(f"Docker, {_IMAGE}", container.get_connection_url(), resources)
