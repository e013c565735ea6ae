"""Which Postgres the tests run on, and its own database for each test, cloned from a template."""

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from tests.support.servers.containers import containers_asked, docker_answers, run_container
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries

from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusUnavailable

_NEWEST = 18
_ROLES_LOCK = 0x617063_74657374
"""Roles belong to the whole server: nobody drops them while another test run migrates its template."""
_ROLE_COMMENT = "made by a test run of apc-bus"
_MAKE_ROLES = f"""
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'apc_owner', 'apc_writer', 'apc_reader', 'apc_agent', 'apc_registrar', 'apc_logins', 'apc_recorder',
        'apc_state_reader', 'apc_settler', 'apc_door', 'apc_mover', 'apc_archiver'
    ] LOOP
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
_OFFERED = "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = $1)"
_OUR_ROLES = "SELECT rolname FROM pg_roles WHERE shobj_description(oid, 'pg_authid') = $1"
# Its first start listens on no address: it only makes the database.
_READY = r"listening on IPv4 address[\s\S]*ready to accept connections"
_LOCAL_URL = "postgresql://postgres@127.0.0.1:5432/postgres"
Migrate = Callable[[str], Awaitable[None]]
"""Brings the database of a URL to the current schema."""


class PostgresServer:
    """A server with a migrated template database.

    Args:
        description: for the report of the test run.
        url: of a database from which others can be created.
        resources: closed by `close`.
        version: its major version, where it is known.
    """

    def __init__(self, description: str, url: str, resources: AsyncExitStack, version: int | None = None) -> None:
        self.description = description
        self.version = version
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
        """Make a fresh database like the template; returns its name. About 60 ms.

        Its files are copied: block by block through the WAL it takes three times as long, and dropping it as well.
        """
        return await self.copy(self._template)

    async def copy(self, database: str) -> str:
        """Make a copy of a database to which nobody is connected; returns its name."""
        name = f"apc_test_{secrets.token_hex(6)}"
        await self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{database}" STRATEGY FILE_COPY')
        return name

    async def offers(self, extension: str) -> bool:
        """Return whether databases of this server can have an extension."""
        connection = await asyncpg.connect(self._url)
        try:
            return bool(await connection.fetchval(_OFFERED, extension))
        finally:
            await connection.close()

    async def drop(self, name: str) -> None:
        """Drop a database, no matter who is still connected."""
        await self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def url_of(self, database: str) -> str:
        """Return the URL of a database of this server."""
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


def asked_version() -> int | None:
    """Return the major version of Postgres that APC_TEST_POSTGRES asks for, None when any will do."""
    given = os.environ.get("APC_TEST_POSTGRES", "")
    if given and not given.isdecimal():
        raise BusUnavailable(f"APC_TEST_POSTGRES must be a major version of Postgres such as 15 (got {given!r})")
    return int(given) if given else None


def postgres_choice() -> str:
    """Return what `start_given_postgres` will use; `embedded` when it gives None."""
    version = asked_version()
    if containers_asked():
        return f"container of Postgres {version or _NEWEST}"
    if version is not None:
        return f"Postgres {version}"
    return "APC_DATABASE_URL" if os.environ.get("APC_DATABASE_URL") else "embedded"


async def start_given_postgres() -> PostgresServer | None:
    """Start or reach the server that the environment asks for; None when it asks for none.

    A container with APC_TEST_CONTAINERS, else the version of APC_TEST_POSTGRES, else that of APC_DATABASE_URL.

    Raises:
        BusUnavailable: the version asked for is not on this machine, or no Docker engine answers.
    """
    version = asked_version()
    if containers_asked():
        return container_postgres(version or _NEWEST)
    if version is not None:
        return await _of_version(version)
    url = os.environ.get("APC_DATABASE_URL")
    return PostgresServer("APC_DATABASE_URL", url, AsyncExitStack()) if url else None


async def local_postgres() -> PostgresServer | None:
    """Return the server of APC_DATABASE_URL, or this machine's; None when no superuser gets an answer there."""
    url = os.environ.get("APC_DATABASE_URL") or _LOCAL_URL
    try:
        connection = await asyncpg.connect(url, timeout=2)
    except DATABASE_AWAY:
        return None
    try:
        is_superuser = await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        version = connection.get_server_version().major
    finally:
        await connection.close()
    return PostgresServer("machine", url, AsyncExitStack(), version) if is_superuser else None


async def _of_version(version: int) -> PostgresServer:
    """Start a private server of the version; else use the one of this machine, else a container."""
    binaries = find_binaries(version)
    if binaries is not None:
        return _private(version, binaries)
    local = await local_postgres()
    if local is not None and local.version == version:
        return local
    if docker_answers():
        return container_postgres(version)
    raise BusUnavailable(
        f"the tests need Postgres {version}: install postgresql-{version}, set APC_TEST_POSTGRES_BIN to the folder of "
        "its programs, set APC_DATABASE_URL to such a server, or start Docker"
    )


def _private(version: int, binaries: Path) -> PostgresServer:
    server = PrivatePostgres(binaries)
    resources = AsyncExitStack()
    resources.callback(server.close)
    return PostgresServer(f"private server, Postgres {version}", server.url, resources, version)


def container_postgres(version: int = _NEWEST) -> PostgresServer:
    """Start a server in a container. Raises BusUnavailable."""
    image = f"postgres:{version}"
    with ExitStack() as opened:
        _, place = opened.enter_context(run_container(image, 5432, _READY, POSTGRES_PASSWORD="postgres"))
        resources = AsyncExitStack()
        resources.callback(opened.pop_all().close)
    return PostgresServer(f"container, {image}", f"postgresql://postgres:postgres@{place}/postgres", resources, version)
