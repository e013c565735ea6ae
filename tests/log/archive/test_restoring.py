"""Archived segments as tables beside the log: the rows that there were, checked before they are written."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.log.archived import ReleasedLog, full_log

from apc_bus.settings import PersisterSettings
from apc_log.archive import BLOCK, ROW_GROUP
from apc_log.errors import ArchiveDiffers, ArchiveError, ArchiveUnavailable
from apc_log.queries.health import read_growth
from apc_persister.archiving import RESTORED, drop_restored, restore_segment
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.follower import Follower
from apc_persister.verification.verify import verify_shard

pytestmark = [pytest.mark.postgres, pytest.mark.long]
LOGINS = (
    "CREATE ROLE restoring LOGIN IN ROLE apc_reader, apc_archiver",
    "CREATE ROLE another LOGIN IN ROLE apc_reader, apc_archiver",
    "CREATE ROLE reading LOGIN IN ROLE apc_reader",
    "CREATE ROLE agent_login LOGIN IN ROLE apc_agent",
)
ROWS = "SELECT * FROM {schema}.{table} WHERE shard = 0 AND seq BETWEEN $1 AND $2 ORDER BY seq"
COUNT = "SELECT count(*) FROM apc_restored.agent_packets"


@pytest.fixture
async def log(postgres_url: str, tmp_path: Path) -> AsyncIterator[ReleasedLog]:
    async with full_log(postgres_url, tmp_path) as log:
        yield log


@pytest.fixture
async def connection(log: ReleasedLog, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser, who takes logins on."""
    opened = await asyncpg.connect(postgres_url)
    for login in LOGINS:
        await opened.execute(login)
    yield opened
    await opened.execute("RESET SESSION AUTHORIZATION")
    await drop_restored(opened)
    for login in LOGINS:
        await opened.execute(f"DROP OWNED BY {login.split()[2]}; DROP ROLE {login.split()[2]}")
    await opened.close()


async def rows(connection: asyncpg.Connection, schema: str, first: int = 1) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for table in RESTORED:
        given = await connection.fetch(ROWS.format(schema=schema, table=table), first, first + BLOCK - 1)
        found[table] = [dict(row) for row in given]
    return found


async def test_a_restored_segment_has_the_rows_that_there_were(
    log: ReleasedLog, connection: asyncpg.Connection
) -> None:
    """Every column of every row; a second run replaces them, by another login; dropped, nothing is left."""
    before = await rows(connection, "apc_log")
    assert all(before.values())
    await log.release()
    assert await rows(connection, "apc_log") != before

    await connection.execute("SET SESSION AUTHORIZATION restoring")
    done = await restore_segment(connection, log.archive, 0, 1)
    assert (done.first, done.last, done.rows) == (1, BLOCK, sum(map(len, before.values())))
    assert done.bytes > 0
    await connection.execute("SET SESSION AUTHORIZATION reading")
    assert await rows(connection, "apc_restored") == before

    await connection.execute("SET SESSION AUTHORIZATION another")
    assert await restore_segment(connection, log.archive, 0, 1) == done
    async with log.pool.acquire() as ours:  # with the codecs of our pools
        assert await restore_segment(ours, log.archive, 0, 1) == done
    await restore_segment(connection, log.archive, 0, BLOCK + 1)
    assert await rows(connection, "apc_restored") == before
    assert await connection.fetchval(COUNT) > len(before["agent_packets"]), "the other segment is there as well"
    assert await drop_restored(connection) > done.bytes
    assert await connection.fetch("SELECT FROM pg_class WHERE relnamespace = 'apc_restored'::regnamespace") == []
    assert await drop_restored(connection) == 0


async def test_what_is_restored_is_no_part_of_the_log(log: ReleasedLog, connection: asyncpg.Connection) -> None:
    """Neither the verification nor the figures of the log count it, not even with rows that nobody archived."""
    await log.release()
    key = load_signer(PersisterSettings()).public_key(0)
    verified, growth = await verify_shard(connection, 0, key), await read_growth(log.pool)
    await restore_segment(connection, log.archive, 0, 1)
    await connection.execute("UPDATE apc_restored.agent_packets SET verdict = 'held'")
    await Follower(log.pool).catch_up()
    again = await verify_shard(connection, 0, key)
    assert (again.findings, again.entries, again.released) == ([], verified.entries, verified.released)
    assert (await read_growth(log.pool))["bytes_an_entry"] == growth["bytes_an_entry"]
    assert await connection.fetch("SELECT * FROM apc_guard.faults()") == []


@pytest.mark.parametrize("login", ["reading", "agent_login"])
async def test_who_only_reads_may_not_restore(log: ReleasedLog, connection: asyncpg.Connection, login: str) -> None:
    await log.release()
    for _ in range(2):
        await connection.execute(f"SET SESSION AUTHORIZATION {login}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await restore_segment(connection, log.archive, 0, 1)
        for statement in ("CREATE TABLE apc_restored.mine (a int)", "CREATE VIEW apc_restored.mine AS SELECT 1"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute("SET SESSION AUTHORIZATION restoring")
        await restore_segment(connection, log.archive, 0, 1)
    await connection.execute(f"SET SESSION AUTHORIZATION {login}")
    for act in ("DELETE FROM", "DROP TABLE", "TRUNCATE", "UPDATE"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(
                f"{act} apc_restored.agent_packets{' SET run_id = NULL' if act == 'UPDATE' else ''}"
            )


def lie(log: ReleasedLog) -> Path:
    """Change the verdict of one archived packet; return the object."""
    path = log.folder / "archive" / log.places[0] / "packet.parquet"
    table = pq.read_table(path)
    changed = table.to_pylist()
    values = json.loads(changed[0]["entry"])
    values[values.index("accepted")] = "held"
    changed[0] |= {"entry": json.dumps(values, separators=(",", ":"), ensure_ascii=False), "verdict": "held"}
    table = pa.Table.from_pylist(changed, schema=table.schema)
    pq.write_table(table, path, compression="zstd", use_dictionary=False, row_group_size=ROW_GROUP)
    return path


async def test_nothing_of_a_lying_archive_is_written(log: ReleasedLog, connection: asyncpg.Connection) -> None:
    """Another entry in an object, an object that is missing, the manifest of another segment: nothing is written."""
    await log.release()
    await restore_segment(connection, log.archive, 0, 1)
    await drop_restored(connection)
    folder = log.folder / "archive" / log.places[0]
    shutil.copytree(folder, log.folder / "kept")

    lie(log)
    with pytest.raises(ArchiveDiffers, match=r"packet\.parquet: its .* bytes have SHA-256"):
        await restore_segment(connection, log.archive, 0, 1)
    shutil.copy(log.folder / "archive" / log.places[1] / "manifest.json", folder)
    with pytest.raises(ArchiveDiffers, match="the log's segment entry names other bytes"):
        await restore_segment(connection, log.archive, 0, 1)
    shutil.copytree(log.folder / "kept", folder, dirs_exist_ok=True)
    (folder / "hop.parquet").unlink()
    with pytest.raises(ArchiveUnavailable, match=r"hop\.parquet: it is missing"):
        await restore_segment(connection, log.archive, 0, 1)
    assert await connection.fetchval(COUNT) == 0
    shutil.copy(log.folder / "kept" / "hop.parquet", folder)
    assert (await restore_segment(connection, log.archive, 0, 1)).rows > 0


async def test_a_segment_that_cannot_be_restored_is_named(log: ReleasedLog, connection: asyncpg.Connection) -> None:
    with pytest.raises(ArchiveError, match="from entry 1 of shard 0 cannot be restored: it is not archived yet"):
        await restore_segment(connection, log.archive, 0, 1)
    with pytest.raises(ArchiveError, match="from entry 2 of shard 0 cannot be restored: there is none"):
        await restore_segment(connection, log.archive, 0, 2)
    await log.release()
    with pytest.raises(ArchiveError, match="it is not full"):
        await restore_segment(connection, log.archive, 0, 2 * BLOCK + 1)
    await restore_segment(connection, log.archive, 0, 1)
    await connection.execute("UPDATE apc_log.sessions SET is_terminal = true")
    await connection.execute("SELECT apc_guard.expire(0, 1)")
    with pytest.raises(ArchiveError, match="its rows have expired"):
        await restore_segment(connection, log.archive, 0, 1)
    await connection.execute("ALTER TABLE apc_restored.packet_ids ADD COLUMN older integer")
    with pytest.raises(ArchiveError, match="tables of another release: `apc log restore --drop`"):
        await restore_segment(connection, log.archive, 0, BLOCK + 1)
