"""The pools of the web server: roles that may only read, one that settles, and a limit for each statement."""

from collections.abc import Mapping
from datetime import timedelta

import asyncpg

from apc_bus.database import Parts, open_pool
from apc_bus.settings import ArchiveSettings, DatabaseSettings
from apc_log.heads import READING
from apc_log.placement import read_databases

READER = "apc_reader"
STATE_READER = "apc_state_reader"
SETTLER = "apc_settler"
"""Settles effects whose outcome is unknown and acknowledges issues, and can write nothing else."""
_IS_MEMBER = "SELECT pg_has_role(to_regrole($1)::oid, 'MEMBER')"
STATEMENT_SECONDS = 5
"""A page that takes longer is refused: it would hold a connection that other pages wait for."""
_CONNECTIONS = 8
_STATE_CONNECTIONS = 2
_SETTLER_CONNECTIONS = 2
_SETTINGS = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "default_transaction_read_only": "on",
    "application_name": "apc-web",
}


async def open_reader(url: str, wait: timedelta) -> asyncpg.Pool:
    """Return a pool that reads as `apc_reader`, 5 s a statement, in all of APC_DATABASES and in APC_ARCHIVE_URL.

    Raises DatabaseUnavailable.
    """
    pool = await _open(
        url,
        wait,
        _CONNECTIONS,
        {"role": READER, **_SETTINGS, **READING},
        (await read_databases(url, DatabaseSettings().other_urls)).parts,
    )
    archive = ArchiveSettings()
    if archive.archive_url is not None:
        from apc_log.thawing import read_archive  # loads an object store

        read_archive(pool, archive)
    return pool


async def open_state_reader(url: str, wait: timedelta) -> asyncpg.Pool:
    """Return a pool that reads the agents' tasks and effects, 5 s a statement. Raises DatabaseUnavailable.

    It reads as `apc_state_reader`, which may read nothing else. Where the user of the URL is no member of it, as before
    an administrator has made it, it has the rights of that user, in transactions that only read.
    """
    role = {"role": STATE_READER} if await _may_be(url, wait, STATE_READER) else {}
    return await _open(url, wait, _STATE_CONNECTIONS, {**role, **_SETTINGS})


async def open_settler(url: str, wait: timedelta) -> asyncpg.Pool | None:
    """Return a pool that writes as `apc_settler`; None where the user of the URL is no member of it.

    It connects with the first act. Raises DatabaseUnavailable.
    """
    if not await _may_be(url, wait, SETTLER):
        return None
    writing = {name: value for name, value in _SETTINGS.items() if name != "default_transaction_read_only"}
    return await _open(url, wait, _SETTLER_CONNECTIONS, {"role": SETTLER, "lock_timeout": "2s", **writing})


async def _may_be(url: str, wait: timedelta, role: str) -> bool:
    pool = await open_pool(url, min_size=1, max_size=1, wait=wait)
    try:
        return bool(await pool.fetchval(_IS_MEMBER, role))
    finally:
        pool.terminate()


async def _open(
    url: str, wait: timedelta, size: int, settings: Mapping[str, str], parts: Parts | None = None
) -> asyncpg.Pool:
    return await open_pool(
        url,
        min_size=0,
        max_size=size,
        wait=wait,
        command_timeout=timedelta(seconds=2 * STATEMENT_SECONDS),
        server_settings=settings,
        parts=parts,
    )
