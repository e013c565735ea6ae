"""A primary and its streaming standby for fail-overs, private to a test: Debian's Postgres 15, or the embedded 18."""

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg
from tests.support.servers.folders import make_server_folder
from tests.support.servers.private_postgres import find_binaries, unprivileged_user
from tests.support.waiting import until

from apc_bus.errors import BusUnavailable

_SETTINGS = "-c listen_addresses= -c unix_socket_permissions=0700 -c shared_buffers=16MB -c max_connections=60"


class PostgresPair:
    """Two servers, `a` and `b`: first `a` is the primary. Blocking calls: from async code use `asyncio.to_thread`.

    Attributes:
        folders: name -> where the server listens, as a Unix socket, and keeps its data.
    """

    def __init__(self) -> None:
        binaries = find_binaries(15) or find_binaries(18)
        if binaries is None:
            raise BusUnavailable("a fail-over needs the programs of Postgres: install postgresql-15")
        self._binaries = binaries
        self._user = unprivileged_user()
        self.folders = {name: make_server_folder(f"apc-pg-{name}-") for name in "ab"}

    def __enter__(self) -> Self:
        """Start `a`."""
        if self._user is not None:
            for folder in self.folders.values():
                shutil.chown(folder, self._user)
        self._run("a", "initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
        self.start("a")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop both and delete their folders."""
        for name, folder in self.folders.items():
            if (folder / "data" / "postmaster.pid").exists():
                self._run(name, "pg_ctl", "stop", "--wait", "--mode=immediate")
            shutil.rmtree(folder, ignore_errors=True)

    def url(self, name: str, database: str = "postgres") -> str:
        """Return the URL of a database of a server."""
        return f"postgresql://postgres@/{database}?host={self.folders[name]}"

    def start(self, name: str, options: str = "") -> None:
        """Start a server, and wait until it answers."""
        options = f"{_SETTINGS} -c unix_socket_directories={self.folders[name]} {options}"
        log = str(self.folders[name] / "log")
        self._run(name, "pg_ctl", "start", "--wait", "--log", log, "--options", options)

    def stop(self, name: str) -> None:
        """Stop a server, as an administrator does."""
        self._run(name, "pg_ctl", "stop", "--wait", "--mode=fast")

    def make_standby(self) -> None:
        """Make `b` a standby that streams from `a`."""
        source = f"host={self.folders['a']} user=postgres"
        self._run("b", "pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", source)
        self.start("b")

    async def until_standby_has_all(self) -> None:
        """Wait until the standby has replayed what is committed."""
        primary = await asyncpg.connect(self.url("a"))
        try:
            await until(lambda: primary.fetchval(_HAS_ALL))
        finally:
            await primary.close()

    def switch_over(self) -> None:
        """Stop `a`, promote `b`, and bring `a` back as a standby that only reads."""
        self.stop("a")
        self._run("b", "pg_ctl", "promote", "--wait")
        (self.folders["a"] / "data" / "standby.signal").touch()
        self.start("a")

    def _run(self, name: str, command: str, *arguments: str) -> None:
        folder = self.folders[name]
        said = subprocess.run(
            [self._binaries / command, "--pgdata", folder / "data", *arguments],
            user=self._user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if command == "pg_ctl" else subprocess.PIPE,
            text=True,
            timeout=60,
        )
        if said.returncode != 0:
            log = folder / "log"
            words = said.stderr or (log.read_text(errors="replace") if log.exists() else "")
            raise BusUnavailable(f"{command} failed: {words[-2000:]}")


def socket_of(folder: Path) -> str:
    """Return the socket of a server that listens in the folder."""
    return f"{folder}/.s.PGSQL.5432"


_HAS_ALL = "SELECT coalesce(bool_and(replay_lsn = pg_current_wal_lsn()), false) FROM pg_stat_replication"
