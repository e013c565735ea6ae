"""Which Postgres the tests run on, and a database of its own for each test, cloned from a template."""

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from apc_bus.testing.rabbit import docker_answers

_IMAGE = "postgres:18"
_ROLES_LOCK = 0x617063_74657374
"""Roles belong to the whole server: nobody drops them while another test run migrates its template."""
_ROLE_COMMENT = "made by a test run of apc-bus"
_MAKE_ROLES = f"""
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['apc_owner', 'apc_writer', 'apc_reader', 'apc_agent'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = name);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXECUTE format('COMMENT ON ROLE %I IS %L', name, '{_ROLE_COMMENT}');
        EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END $$
"""
_OUR_ROLES = "SELECT rolname FROM pg_roles WHERE shobj_description(oid, 'pg_authid') = $1"
_LOCAL_URL = "postgresql://postgres@127.0.0.1:5432/postgres"
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
        lock = await asyncpg.connect(self._url)
        try:
            await lock.execute(f"SELECT pg_advisory_lock_shared({_ROLES_LOCK})")
            await lock.execute(_MAKE_ROLES)
            self._resources.push_async_callback(self._drop_roles)
            await self._execute(f'CREATE DATABASE "{self._template}"')
            self._resources.push_async_callback(self.drop, self._template)
            await migrate(self.url_of(self._template))
        finally:
            await lock.close()

    async def _drop_roles(self) -> None:
        """Leave the server without the roles that a test run made, once no database needs them any more."""
        lock = await asyncpg.connect(self._url)
        try:
            await lock.execute(f"SELECT pg_advisory_lock({_ROLES_LOCK})")
            for role in await lock.fetch(_OUR_ROLES, _ROLE_COMMENT):
                with suppress(asyncpg.DependentObjectsStillExistError):
                    await lock.execute(f'DROP ROLE "{role[0]}"')
        finally:
            await lock.close()

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


async def local_postgres() -> PostgresServer | None:
    """The server of APC_DATABASE_URL, or the one of this machine; None when no superuser gets an answer there."""
    url = os.environ.get("APC_DATABASE_URL") or _LOCAL_URL
    try:
        connection = await asyncpg.connect(url, timeout=2)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return None
    try:
        is_superuser = await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    finally:
        await connection.close()
    return PostgresServer("machine", url, AsyncExitStack()) if is_superuser else None


def _from_docker() -> PostgresServer:
    from testcontainers.postgres import PostgresContainer

    resources = AsyncExitStack()
    container = resources.enter_context(PostgresContainer(_IMAGE, driver=None))
    return PostgresServer(f"Docker, {_IMAGE}", container.get_connection_url(), resources)
