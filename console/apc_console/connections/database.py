"""The database of a command: the one of APC_DATABASE_URL, or the embedded one of the data folder."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg

from apc_bus.database import DATABASE_AWAY, first_line, open_pool
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_console.errors import InputUnusable, ServiceAway
from apc_log.heads import holds_log

PATIENCE = timedelta(seconds=3)
"""How long a one-shot command waits for a server that does not answer; in total it ends within 10 s."""


async def migrate_database(settings: DatabaseSettings) -> None:
    """Upgrade the database of APC_DATABASE_URL. Raises InputUnusable without one, ServiceAway when it is away."""
    if settings.url is None:
        raise InputUnusable("set APC_DATABASE_URL; the embedded database is migrated when `apc up` starts")
    # Here, because it brings the orchestrator along: commands that only read start in half the time without it.
    from apc_client.in_process import migrate_url

    await migrate_url(settings.url)


def holds_database(folder: Path) -> bool:
    """Return whether a data folder holds an embedded database. Raises InputUnusable when it may not be read."""
    try:
        return (folder / "postgres" / "PG_VERSION").is_file()
    except OSError as error:
        raise InputUnusable(
            f"the data folder {folder}: {error.strerror}: it belongs to another user, or set APC_DATA_DIR to yours"
        ) from error


@asynccontextmanager
async def database_url(bus: BusSettings, database: DatabaseSettings) -> AsyncIterator[str]:
    """Yield the URL of the log's database; start the embedded server of the data folder when it does not run.

    Raises:
        InputUnusable: no APC_DATABASE_URL, and the data folder holds no database, or may not be read.
    """
    if database.url is not None:
        yield database.url
        return
    if not holds_database(bus.data_dir):
        raise InputUnusable(
            f"there is no log in {bus.data_dir.absolute()}: change to the folder where `apc automl run` or `apc up` "
            "ran, or set APC_DATA_DIR to its .apc, or APC_DATABASE_URL"
        )
    from apc_persister.database.embedded import start_embedded

    server = await start_embedded(bus.data_dir)
    try:
        yield server.url
    finally:
        await server.stop()


@asynccontextmanager
async def open_log() -> AsyncIterator[asyncpg.Pool]:
    """Yield a pool on the database of the log, for commands that read it.

    Raises InputUnusable, DatabaseUnavailable.
    """
    async with open_log_with_url() as (pool, _):
        yield pool


@asynccontextmanager
async def open_log_with_url() -> AsyncIterator[tuple[asyncpg.Pool, str]]:
    """Yield the pool of `open_log`, and the database URL for helper processes."""
    settings = DatabaseSettings()
    async with database_url(BusSettings(), settings) as url:
        pool = await open_pool(url, max_size=2, wait=PATIENCE)
        try:
            if not await holds_log(pool):
                raise InputUnusable("this database holds no log: run `apc migrate`")
            yield pool, url
        except BrokenPipeError:  # the reader of our output left, not the database
            raise
        except DATABASE_AWAY as error:
            raise ServiceAway(f"the database failed: {first_line(error)}") from error
        finally:
            await asyncio.wait_for(pool.close(), PATIENCE.total_seconds())
