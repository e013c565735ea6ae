"""Brings a database to the schema of this release."""

import asyncio
import threading
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import structlog

from apc_bus.database import connect
from apc_log.connection import AnyConnection
from apc_persister.database.guard import harden, is_superuser, read_guard, warn_of_guard
from apc_persister.database.logins import complete_logins
from apc_persister.errors import SchemaRetired, SchemaUnknown

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEMA_REVISION = "0111"
"""The revision that this release needs; the newest file of migrations/versions."""
_FIRST_REVISION = "0101"
_JOINED, _JOINED_AS = "0025", "0108"
"""Revisions 0001 to 0025 became 0101 to 0108 before the first release: the last of both have the same schema, but for
the indexes of `_INDEX_JOINED`."""
_MAINTAIN_JOINED = "SELECT apc_guard.maintain('the schema is renamed from 0025 to 0108')"
_INDEX_JOINED = """
CREATE INDEX IF NOT EXISTS agent_packets_refused ON apc_log.agent_packets (shard, seq) WHERE verdict = 'refused';
CREATE INDEX IF NOT EXISTS packet_conflicts_session ON apc_log.packet_conflicts (session_id, shard, seq)
    WHERE session_id IS NOT NULL;
"""
_RENAME = "UPDATE apc_guard.alembic_version SET version_num = $2 WHERE version_num = $1"

log = structlog.get_logger(__name__)
_one_at_a_time = threading.Lock()


def migrations_folder() -> Path:
    """Return the scripts: inside the package when installed from a wheel, else the checkout's migrations/."""
    packaged = Path(str(files("apc_persister") / "migrations"))
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "migrations"


def run_script(name: str) -> None:
    """Run `sql/<name>.sql` in the transaction of the migration; for the files of migrations/versions."""
    from alembic import op

    script = (migrations_folder() / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    raw = op.get_bind().connection.dbapi_connection
    assert raw is not None
    # Sent whole: `op.execute` prepares a statement, which takes one command only.
    raw.run_async(lambda connection: connection.execute(script))


def refuse_downgrade() -> None:
    """Refuse to go back: it would delete the log."""
    raise RuntimeError("the log is append-only and has no downgrade: restore a backup taken before the upgrade")


async def schema_version(url: str) -> str | None:
    """Return the schema revision of a database, None without one. Raises OSError or asyncpg's errors when away."""
    connection = await connect(url)
    try:
        return await read_revision(connection)
    finally:
        await connection.close()


async def read_revision(connection: AnyConnection) -> str | None:
    """Return the `schema_version` over an open connection."""
    if await connection.fetchval("SELECT to_regclass('apc_guard.alembic_version')") is None:
        return None
    revision: str | None = await connection.fetchval("SELECT version_num FROM apc_guard.alembic_version")
    return revision


async def migrate(url: str) -> None:
    """Upgrade the database at `url` to SCHEMA_REVISION; a no-op when it is there.

    One transaction; several migrations may start at once, one works and the others wait. Works inside a
    running event loop. `url` is a PostgreSQL URL as asyncpg takes it. The user should be a superuser the first time;
    later a member of apc_owner is enough. On a server that gives no superuser the log is guarded by triggers
    and roles alone, which is said as a warning; a superuser who migrates it later completes the guard.

    Raises:
        SchemaUnknown: the database is at a revision of a newer release.
        SchemaRetired: it is at a revision from before the first release.
        OSError, asyncpg.PostgresError: the server is away or refuses.
    """
    found = await schema_version(url)
    if found is not None and found > SCHEMA_REVISION:
        raise SchemaUnknown(found)
    if found == _JOINED:
        found = await _rename_joined(url)
    if found is not None and found < _FIRST_REVISION:
        raise SchemaRetired(found)
    if found != SCHEMA_REVISION:  # alembic and sqlalchemy take a second to import
        await asyncio.to_thread(_migrate_in_thread, url)
        log.info("schema_migrated", found=found, revision=SCHEMA_REVISION)
    await _complete_guard(url)


async def _rename_joined(url: str) -> str:
    connection = await connect(url)
    try:
        async with connection.transaction():
            await connection.execute(_MAINTAIN_JOINED)
            await connection.execute(_INDEX_JOINED)
            await connection.execute(_RENAME, _JOINED, _JOINED_AS)
    finally:
        await connection.close()
    log.info("schema_renamed", found=_JOINED, revision=_JOINED_AS)
    return _JOINED_AS


async def _complete_guard(url: str) -> None:
    """Close holes and install what an earlier user could not, when this one may; else warn of what is lacking."""
    connection = await connect(url)
    try:
        state = await read_guard(connection)
        if not state.is_full and await is_superuser(connection):
            await harden(connection, migrations_folder() / "sql")
            state = await read_guard(connection)
        warn_of_guard(state)
        await complete_logins(connection, migrations_folder() / "sql")
    finally:
        await connection.close()


def _migrate_in_thread(url: str) -> None:
    """Migrate in a thread with its own loop: alembic's context is global to the process and not asynchronous."""
    with _one_at_a_time:
        asyncio.run(_run(url))


async def _run(url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    # The URL goes to asyncpg as it is: socket folders and ssl options survive no second parser.
    engine = create_async_engine("postgresql+asyncpg://", async_creator=partial(_connect, url), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


async def _connect(url: str) -> asyncpg.Connection:
    connection = await connect(url)
    connection.add_log_listener(_tell_notice)
    return connection


def _tell_notice(_connection: object, notice: asyncpg.PostgresLogMessage) -> None:
    """Log what the scripts could not do (roles, owners) and go on without."""
    log.warning("schema_notice", notice=str(notice))


def _upgrade(connection: "Connection") -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA_REVISION)
