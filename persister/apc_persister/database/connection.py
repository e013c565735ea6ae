"""The writer's own connection: jsonb as ready bytes, plans that do not change with the size of the log."""

from contextlib import suppress
from datetime import timedelta

import asyncpg
from asyncpg.pool import PoolConnectionProxy

_PLAN_BY_INDEX = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
"""The writer only looks ids up. Without these the planner reads the whole of a middle-sized table instead."""


async def take_connection(pool: asyncpg.Pool, heartbeat: timedelta) -> PoolConnectionProxy:
    """Return a connection of the pool, made the writer's; give it back with `drop_connection`, never to the others."""
    connection = await pool.acquire(timeout=heartbeat.total_seconds())
    try:
        milliseconds = int(heartbeat.total_seconds() * 1000)
        await connection.execute(
            f"SET statement_timeout = {milliseconds};"
            f"SET idle_in_transaction_session_timeout = {milliseconds};"
            + "".join(f"SET {setting} = off;" for setting in _PLAN_BY_INDEX)
        )
        # The binary form of jsonb is a version byte and the text: COPY needs it, and nothing is parsed here.
        await connection.set_type_codec("jsonb", schema="pg_catalog", format="binary", encoder=_encode, decoder=_decode)
    except BaseException:
        await drop_connection(pool, connection)
        raise
    return connection


async def drop_connection(pool: asyncpg.Pool, connection: PoolConnectionProxy) -> None:
    """Close it instead of returning it: it may be broken, and its codec is not the pool's."""
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
        await pool.release(connection)


def stands(connection: PoolConnectionProxy | None) -> bool:
    """Return whether it is there and not closed; the pool takes one that the server has closed away by itself."""
    try:
        return connection is not None and not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


def _encode(value: bytes) -> bytes:
    return b"\x01" + value


def _decode(value: bytes) -> bytes:
    return bytes(value[1:])
