"""Connections to the primary: one server after the other, none that only reads, no pooler that loses statements."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import asyncpg
import structlog

from apc_bus.database.away import DATABASE_AWAY, first_line, in_clear_words, is_away
from apc_bus.errors import PoolerUnsuitable

_CONNECT_TIMEOUT_SECONDS = 5.0
_BACKEND = "SELECT pg_backend_pid()"
_REFUSED_AS = """
SELECT CASE WHEN pg_is_in_recovery() THEN 'a standby'
    WHEN NOT $1 AND current_setting('default_transaction_read_only') = 'on' THEN 'read-only' END
"""
_READ_ONLY = (
    "the server is {what}: APC_DATABASE_URL must lead to the primary, or name all servers (HOST1,HOST2); "
    "target_session_attrs=any in it lets a command read here"
)

_log = structlog.get_logger("apc_bus")


async def connect(
    url: str,
    *,
    patience: float = _CONNECT_TIMEOUT_SECONDS,
    is_reader: bool = False,
    server_settings: Mapping[str, str] | None = None,
    **options: Any,
) -> asyncpg.Connection:
    """Connect to the primary among the servers of the URL; one after the other is tried, each for `patience` seconds.

    With `target_session_attrs` in the URL that decides which of them may be used.

    Args:
        is_reader: it only reads, so that a primary which was told to refuse changes is taken.
        server_settings: as `open_pool`; set by SQL, because poolers refuse most of them at the start.

    Raises:
        asyncpg.ReadOnlySQLTransactionError: the server is read-only.
        OSError, asyncpg.PostgresError, asyncpg.InterfaceError: as asyncpg; the error of the last server.
    """
    servers = [url] if _names_target(url) else _servers(url)
    for server in servers[:-1]:
        try:
            return await _connect(server, url, is_reader, server_settings, patience, **options)
        except DATABASE_AWAY as error:
            if not is_away(error):
                raise
            _log.debug("database_server_passed_over", reason=first_line(error))
    return await _connect(servers[-1], url, is_reader, server_settings, patience, **options)


async def _connect(
    server: str, url: str, is_reader: bool, settings: Mapping[str, str] | None, patience: float, **options: Any
) -> asyncpg.Connection:
    try:
        connection: asyncpg.Connection = await asyncpg.connect(server, timeout=patience, **options)
    except asyncpg.ObjectNotInPrerequisiteStateError as error:  # "not currently accepting connections"
        raise asyncpg.CannotConnectNowError(str(error)) from error
    try:
        async with asyncio.timeout(patience):  # a pooler takes clients whose server is away
            if not _names_target(url) and (what := await connection.fetchval(_REFUSED_AS, is_reader)) is not None:
                raise asyncpg.ReadOnlySQLTransactionError(_READ_ONLY.format(what=what))
            if settings:
                await connection.execute(settings_sql(settings))
    except BaseException as error:
        connection.terminate()
        if (clear := in_clear_words(error)) is error:
            raise
        raise clear from error
    return connection


async def check_pooler(connection: asyncpg.Connection, url: str) -> None:
    """Raise PoolerUnsuitable when two clients share one process of the server: a pooler lends it by transactions.

    A second client that gets no connection in time shows nothing, and the pooler is taken: one that lends by
    transactions would have lent the connection of the first client, which is idle.
    """
    backend = await connection.fetchval(_BACKEND, timeout=_CONNECT_TIMEOUT_SECONDS)
    if backend == connection.get_server_pid():
        return  # no pooler is between
    with suppress(OSError, asyncpg.PostgresError):
        other = await asyncpg.connect(url, timeout=_CONNECT_TIMEOUT_SECONDS, statement_cache_size=0)
        try:
            if await other.fetchval(_BACKEND, timeout=_CONNECT_TIMEOUT_SECONDS) == backend:
                raise PoolerUnsuitable
        finally:
            other.terminate()


def settings_sql(settings: Mapping[str, str]) -> str:
    """Return the statements that set Postgres parameters."""
    quoted = ((name, value.replace("'", "''")) for name, value in settings.items())
    return "".join(f"SET {name} = '{value}';" for name, value in quoted)


def _names_target(url: str) -> bool:
    return "target_session_attrs" in parse_qs(urlsplit(url).query)


def _servers(url: str) -> list[str]:
    """Return a URL for each server that the URL names, in its order."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(query)
    places, ports = given.get("host", "").split(","), given.get("port", "").split(",")
    if len(places) == 1 or len(ports) not in (1, len(places)):
        return [url]
    ports = ports if len(ports) > 1 else ports * len(places)
    others = [(name, value) for name, value in query if name not in ("host", "port")]
    return [
        parts._replace(query=urlencode([*others, ("host", host), *([("port", port)] if port else [])])).geturl()
        for host, port in zip(places, ports, strict=True)
    ]
