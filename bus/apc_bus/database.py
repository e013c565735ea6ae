"""Pools of connections to Postgres: waiting for the server, JSON as text, and the check of its durability."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy

from apc_bus.backoff import Backoff
from apc_bus.errors import DatabaseNotDurable, DatabaseUnavailable
from apc_bus.tls import tls_problem

_DURABILITY = ("fsync", "full_page_writes", "synchronous_commit")
_CONNECT_TIMEOUT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_NOT_YET = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)
"""A new connection fails because the server is away, starts, recovers or is full: waiting may help."""

CONNECTION_LOST = (
    *_NOT_YET,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that dies between two steps of a transaction (seen in a soak)
)
"""A statement fails because the server is away, stops or is full: waiting helps. No statement that is wrong is here."""

DATABASE_AWAY = (*CONNECTION_LOST, asyncpg.PostgresError)
"""The database is away, restarts, is full or not migrated: a service waits and tries again."""

_log = structlog.get_logger("apc_bus")


async def open_pool(
    url: str,
    *,
    min_size: int = 1,
    max_size: int = 10,
    wait: timedelta = timedelta(seconds=10),
    command_timeout: timedelta = timedelta(seconds=60),
    server_settings: Mapping[str, str] | None = None,
) -> asyncpg.Pool:
    """Return a pool whose connections read and write json and jsonb as text; retries with back-off for `wait`.

    Args:
        server_settings: Postgres parameters of every connection, such as `role` and `statement_timeout`.

    Raises:
        DatabaseUnavailable: no answer in time, or the server refuses user, password or database, or TLS fails.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait.total_seconds()
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return await asyncpg.create_pool(
                url,
                min_size=min_size,
                max_size=max_size,
                init=_set_codecs,
                timeout=_CONNECT_TIMEOUT_SECONDS,
                command_timeout=command_timeout.total_seconds(),
                server_settings=None if server_settings is None else dict(server_settings),
            )
        except _NOT_YET as error:
            if problem := _tls_problem(error):  # waiting does not mend it
                raise DatabaseUnavailable(f"Postgres cannot be reached with TLS: {problem}") from error
            if loop.time() + backoff.pause > deadline:
                raise DatabaseUnavailable(
                    f"Postgres does not answer ({first_line(error)}); start it, or set APC_DATABASE_URL"
                ) from error
            _log.warning("database_awaited", reason=first_line(error))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            raise DatabaseUnavailable(
                f"Postgres refuses the connection: {first_line(error)}; check APC_DATABASE_URL"
            ) from error
        await backoff.wait()


async def check_durability(connection: asyncpg.Connection | PoolConnectionProxy) -> None:
    """Make sure that a returned COMMIT survives a crash of the server.

    Raises:
        DatabaseNotDurable: fsync, full_page_writes or synchronous_commit is off.
    """
    off = await undurable_settings(connection)
    if off:
        raise DatabaseNotDurable(
            f"Postgres runs with {', '.join(off)} off and may lose committed rows: switch it on, "
            "or set APC_ALLOW_UNDURABLE_DATABASE=true for a test"
        )


async def undurable_settings(connection: asyncpg.Connection | PoolConnectionProxy) -> list[str]:
    """Return the settings that are off and without which a returned COMMIT may be lost; empty = durable."""
    rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", _DURABILITY)
    return sorted(row["name"] for row in rows if row["setting"] == "off")


async def _set_codecs(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


def _tls_problem(error: BaseException) -> str | None:
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return "the server does not speak TLS: switch `ssl` on there, or drop APC_DATABASE_CA_FILE and sslmode"
    return tls_problem(error, "APC_DATABASE")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name when it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]
