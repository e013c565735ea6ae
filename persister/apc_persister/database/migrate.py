"""Brings a database to the schema of this release, and compares what its owner can change with it."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from apc_bus.database import connect
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_log.heads import AnyConnection
from apc_persister.database.guard import harden, is_superuser, read_guard, warn_of_guard
from apc_persister.database.joined import join_databases
from apc_persister.database.logins import complete_logins
from apc_persister.database.several import after_switch, name_database
from apc_persister.errors import SchemaRetired, SchemaUnknown

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEMA_REVISION = "0125"
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

log = get_logger(__name__)
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
    revision = await schema_version(url)
    if revision is not None and revision > SCHEMA_REVISION:
        raise SchemaUnknown(revision)
    if revision == _JOINED:
        revision = await _rename_joined(url)
    if revision is not None and revision < _FIRST_REVISION:
        raise SchemaRetired(revision)
    if revision != SCHEMA_REVISION:  # alembic and sqlalchemy take a second to import
        await asyncio.to_thread(upgrade_to, SCHEMA_REVISION, url)
        log.info("schema_migrated", found=revision, revision=SCHEMA_REVISION)
    await _complete_guard(url)


async def migrate_all(home: str, others: Mapping[str, str]) -> None:
    """Upgrade all databases of a log, home first, and give each its name.

    Args:
        home: URL of APC_DATABASE_URL.
        others: name -> URL of those of APC_DATABASES.

    Raises:
        DatabaseMisnamed: a URL leads to another database, or to one that holds another log.
        SchemaUnknown, SchemaRetired, OSError, asyncpg.PostgresError: as `migrate`.
    """
    await _part_databases(home)
    async with AsyncExitStack() as stack:
        databases: dict[str, asyncpg.Connection] = {}
        for name, url in {HOME: home, **others}.items():
            await migrate(url)
            databases[name] = await connect(url)
            stack.push_async_callback(databases[name].close)
            await name_database(databases[name], name)
        if others:
            await after_switch(databases, others)


async def _part_databases(home: str) -> None:
    """Drop what reads several databases as one, before the tables below it change: it is made again afterwards."""
    if await schema_version(home) in (None, SCHEMA_REVISION):
        return
    connection = await connect(home)
    try:
        await join_databases(connection, {}, {})
    finally:
        await connection.close()


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


def upgrade_to(revision: str, url: str) -> None:
    """Run the scripts up to this revision, in a thread: alembic's context is the process's, and not asynchronous."""
    with _one_at_a_time:
        asyncio.run(_run(revision, url))


async def _run(revision: str, url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    # The URL goes to asyncpg as it is: socket folders and ssl options survive no second parser.
    engine = create_async_engine("postgresql+asyncpg://", async_creator=partial(_connect, url), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade, revision)
    finally:
        await engine.dispose()


async def _connect(url: str) -> asyncpg.Connection:
    connection = await connect(url)
    connection.add_log_listener(_tell_notice)
    return connection


_FOUND_ALREADY = (asyncpg.DuplicateTableError.sqlstate, asyncpg.DuplicateColumnError.sqlstate)


def _tell_notice(_connection: object, notice: asyncpg.PostgresLogMessage) -> None:
    """Log what the scripts could not do (roles, owners) and go on without; not what they found as it should be."""
    if notice.sqlstate not in _FOUND_ALREADY:
        log.warning("schema_notice", notice=str(notice))


def _upgrade(connection: "Connection", revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


# What decides in the database which rows the log takes, besides the guard: constraints, defaults, triggers, policies.
#
# Nobody can change rows of the log, but its owner can keep rows out of it in a maintenance: by a CHECK, a unique index,
# a trigger. So what stands in the catalog is compared with what the migrations of this release make.

FILE = "objects.txt"
"""In the folder of the migrations: what a fresh database of this release has, a line each, sorted."""
_OBJECTS = """
WITH log_table AS (
    SELECT oid, one.relname AS name, relrowsecurity, part_of.relname AS part_of FROM pg_class AS one
    LEFT JOIN LATERAL (
        SELECT above.relname FROM pg_inherits JOIN pg_class AS above ON above.oid = inhparent WHERE inhrelid = one.oid
    ) AS part_of ON true
    WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
)
SELECT name, part_of, format('constraint %s %s', conname, pg_get_constraintdef(con.oid))
FROM log_table JOIN pg_constraint AS con ON conrelid = log_table.oid
WHERE contype <> 'n' -- PostgreSQL 18: NOT NULL
  AND (part_of IS NULL OR contype NOT IN ('p', 'u'))
UNION ALL
SELECT name, part_of, format('column %s is not null', attname)
FROM log_table JOIN pg_attribute ON attrelid = log_table.oid WHERE attnum > 0 AND attnotnull AND NOT attisdropped
UNION ALL
SELECT name, part_of, format('column %s has the value %s', attname, pg_get_expr(adbin, adrelid))
FROM log_table JOIN pg_attrdef ON adrelid = log_table.oid JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
UNION ALL
SELECT name, part_of, format('index %s', pg_get_indexdef(indexrelid))
FROM log_table JOIN pg_index ON indrelid = log_table.oid
WHERE part_of IS NULL AND (indisunique OR indexprs IS NOT NULL OR indpred IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
UNION ALL
SELECT name, part_of, -- names of a segment's indexes say nothing; a primary key is a unique index
       format('index%s %s', CASE WHEN indisunique THEN ' UNIQUE' END,
              substring(pg_get_indexdef(indexrelid) FROM 'USING .*'))
FROM log_table JOIN pg_index ON indrelid = log_table.oid
WHERE part_of IS NOT NULL AND (indisunique OR indexprs IS NOT NULL OR indpred IS NOT NULL)
UNION ALL
SELECT name, part_of,
       format('trigger %s', replace(pg_get_triggerdef(pg_trigger.oid), name, coalesce(part_of, name)))
FROM log_table JOIN pg_trigger ON tgrelid = log_table.oid WHERE NOT tgisinternal
UNION ALL
SELECT name, part_of, format('rule %s', rulename) FROM log_table JOIN pg_rewrite ON ev_class = log_table.oid
UNION ALL
SELECT name, part_of, format('policy %s', polname) FROM log_table JOIN pg_policy ON polrelid = log_table.oid
UNION ALL
SELECT name, part_of, 'row level security' FROM log_table WHERE relrowsecurity
"""


@dataclass(frozen=True, slots=True)
class Additions:
    """How the log's tables differ from those of this release."""

    added: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableObjects:
    """What decides which rows a table of the log takes."""

    kind: str
    """Its name; of a segment `segment of` the divided table: all segments of one are alike."""
    objects: set[str]


async def read_objects(connection: AnyConnection) -> dict[str, TableObjects]:
    """Return what decides which rows the log's tables take, by their names."""
    tables: dict[str, TableObjects] = {}
    async with connection.transaction(readonly=True):
        # Names outside of the search path come with their schema, whatever the user has set.
        await connection.execute("SET LOCAL search_path = pg_catalog")
        for name, part_of, found in await connection.fetch(_OBJECTS):
            kind = name if part_of is None else f"segment of {part_of}"
            tables.setdefault(name, TableObjects(kind, set())).objects.add(" ".join(found.split()))
    return tables


async def read_additions(connection: AnyConnection) -> Additions:
    """Compare a database of this release's schema with what its migrations make."""
    text = await asyncio.to_thread((migrations_folder() / FILE).read_text, encoding="utf-8")
    expected: dict[str, set[str]] = {}
    for line in text.splitlines():
        kind, _, wanted = line.partition(": ")
        expected.setdefault(kind, set()).add(wanted)
    added, missing = set[str](), set[str]()
    tables = await read_objects(connection)
    for name, table in tables.items():
        wanted_here = expected.get(table.kind, set())
        added |= {f"{name}: {one}" for one in table.objects - wanted_here}
        missing |= {f"{name}: {one}" for one in wanted_here - table.objects}
    for kind in expected.keys() - {table.kind for table in tables.values()}:
        missing |= {f"{kind}: {one}" for one in expected[kind]}
    return Additions(tuple(sorted(added)), tuple(sorted(missing)))
