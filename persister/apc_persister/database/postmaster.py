"""The processes of one PostgreSQL server, which nobody but the user who starts it can reach.

The socket stands in a folder of mode 0700, has mode 0700 itself, and the server asks the kernel who is there
(`peer`): one user of the machine may connect, under every name of the database.

PostgreSQL does not run as root. For root it runs as the user `pgserver`, and reaches the two folders that it
needs by descriptors which it inherits (`/proc/self/fd/…`): no folder above them must let it pass.
"""

import hashlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from apc_bus.folders import make_private_folder
from apc_persister.errors import EmbeddedUnavailable

SERVER_USER = "pgserver"
PATIENCE_S = 60
"""Recovery after a crash may take a while, and longer on a busy machine; then the start has failed."""
_SOCKET = ".s.PGSQL.5432"
_LONGEST_SOCKET = 103
"""Bytes in the path of a socket; Linux takes four more."""
_OPTIONS = "-c unix_socket_permissions=0700"


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The server of the cluster in `data`, a folder that belongs to the server's user alone.

    What this process writes for itself stands beside `data`, not in it: where the server has its own user,
    that user cannot lead us to another file.
    """

    data: Path
    binaries: Path
    account: pwd.struct_passwd | None
    """Who runs it when that is not us."""

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.data.with_suffix(".log")

    @property
    def socket_folder(self) -> Path:
        """Where the server that runs has its socket."""
        note = self._socket_note
        return Path(note.read_text()) if note.exists() else self.data

    def initialise(self) -> None:
        """Make the cluster if there is none, and let in nobody but us. Raises OSError, SubprocessError."""
        if not (self.data / "PG_VERSION").exists():
            with self._folder(self.data) as (data, descriptors):
                options = ("--auth=peer", "--encoding=utf8", "-U", "postgres", "-D", data)
                self._call("initdb", options, descriptors)
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._write("pg_hba.conf", "# Written at each start.\nlocal all all peer map=apc\n")
        self._write("pg_ident.conf", f'# Written at each start.\napc "{user}" all\n')

    def start(self) -> None:
        """Start the server and return when it is ready. Raises OSError, SubprocessError."""
        place = self._make_socket_folder()
        with self._folder(self.data) as (data, first), self._folder(place) as (socket, second):
            options = ("-w", "-t", str(PATIENCE_S), "-D", data, "-o", f'-h "" -k {socket} {_OPTIONS}', "start")
            self._socket_note.write_text(str(place))
            self._call("pg_ctl", options, first + second)

    def stop(self) -> None:
        """Stop the server and return when it is down. Raises OSError, SubprocessError."""
        with self._folder(self.data) as (data, descriptors):
            self._call("pg_ctl", ("-w", "-m", "fast", "-D", data, "stop"), descriptors)
        if self.socket_folder != self.data:
            with suppress(OSError):
                self.socket_folder.rmdir()

    @property
    def _socket_note(self) -> Path:
        return self.data.with_suffix(".socket")

    def _make_socket_folder(self) -> Path:
        if len(os.fsencode(self.data / _SOCKET)) <= _LONGEST_SOCKET:
            return self.data
        ours = Path(tempfile.gettempdir()) / f"apc-postgres-{os.geteuid()}"
        make_private_folder(ours)
        found = ours.lstat()
        if ours.is_symlink() or found.st_uid != os.geteuid():
            raise PermissionError(f"{ours} belongs to another user: set TMPDIR, or choose a shorter APC_DATA_DIR")
        ours.chmod(0o700)
        place = ours / hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]
        make_private_folder(place)
        self._hand_over(place)
        return place

    def _hand_over(self, path: Path | int) -> None:
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    @contextmanager
    def _folder(self, folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return the path under which the server's user finds the folder, and the descriptors that it must inherit."""
        if self.account is None:
            yield str(folder), ()
            return
        with ExitStack() as stack:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            yield f"/proc/self/fd/{descriptor}", (descriptor,)

    def _write(self, name: str, text: str) -> None:
        """Replace a file, whatever is at its place."""
        new = self.data / f"{name}.new"
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            self._hand_over(descriptor)
            file.write(text)
        new.replace(self.data / name)

    def _call(self, program: str, options: tuple[str, ...], descriptors: tuple[int, ...]) -> None:
        """Run a program of the server; what it says goes to the log, which the server that it starts keeps open."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(self.log, flags, 0o600), "ab") as log:
            try:
                subprocess.run(
                    (str(self.binaries / program), *options),
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=2 * PATIENCE_S,
                    pass_fds=descriptors,
                    user=None if self.account is None else self.account.pw_uid,
                    group=None if self.account is None else self.account.pw_gid,
                    extra_groups=None if self.account is None else (),
                    cwd=None if self.account is None else "/",
                )
            except PermissionError as error:
                raise EmbeddedUnavailable(self._not_allowed()) from error

    def _not_allowed(self) -> str:
        if self.account is None:
            return f"{self.binaries} cannot be run: reinstall apc-bus[embedded], or set APC_DATABASE_URL"
        return (
            f"PostgreSQL does not run as root, and the user {SERVER_USER} may not enter {self.binaries}: run this as "
            "an ordinary user, install apc-bus where others may read it, or set APC_DATABASE_URL"
        )
