"""The processes of one PostgreSQL server, which nobody but the user who starts it can reach.

The socket stands in a folder of mode 0700, has mode 0700 itself, and the server asks the kernel who is there
(`peer`): one user of the machine may connect, under every name of the database.

PostgreSQL does not run as root. For root it runs as the user `pgserver`, and reaches the two folders that it
needs by descriptors which it inherits (`/proc/self/fd/…`): no folder above them must let it pass.
"""

import hashlib
import os
import pwd
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError

from apc_bus.folders import make_private_file, make_private_folder
from apc_persister.errors import EmbeddedUnavailable

# Which process `postmaster.pid` names, and whether that is the server of this data folder.
#
# After a restart the number in the file is that of another process, even of another folder's server. In a container
# root may not look at the files of another user's process; its name, its user and the shared memory are there for all.

NAME = "postmaster.pid"
_SEGMENT_LINE = 6
_SEGMENTS = Path("/proc/sysvipc/shm")
_KEY_BITS = 0xFFFFFFFF
"""The file has the key without a sign, the table with one."""
Segment = tuple[int, int]
"""The key and the number of a piece of shared memory."""


@dataclass(frozen=True, slots=True)
class NamedServer:
    """A live server that the file names."""

    pid: int
    is_known: bool
    """Whether it surely is the server of the folder: its shared memory is; else nothing says that it is another's."""


def named_server(data: Path, user: int) -> NamedServer | None:
    """Return the live server that the lock file of `data` names, unless it is another folder's; None without one.

    A file that a fault of the disk left names none.
    """
    noted = _read(data)
    if noted is None or not _is_server(noted[0], user):
        return None
    pid, segment = noted
    segments = _segments_of(pid)
    if segment is not None and segments and segment not in segments:
        return None
    # PostgreSQL numbers its memory by its data folder.
    is_known = segment in segments and segment[0] == data.stat().st_ino & _KEY_BITS
    return NamedServer(pid, is_known)


def lives(pid: int) -> bool:
    """Return whether a process is there, and no corpse: in a container nobody may wait for it."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def is_backend(command: list[str] | None) -> bool:
    """Return whether a command line is that of a process which a server started."""
    return (command or [""])[0].startswith("postgres: ")


def _read(data: Path) -> tuple[int, Segment | None] | None:
    try:
        lines = (data / NAME).read_text().splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    segment = None
    with suppress(ValueError, IndexError):  # it has not come so far
        key, number = map(int, lines[_SEGMENT_LINE].split())
        segment = key & _KEY_BITS, number
    return (pid, segment) if pid > 0 else None


def _is_server(pid: int, user: int) -> bool:
    """Return whether a process is alive, and the first one of a server of this user."""
    import psutil

    try:
        process = psutil.Process(pid).as_dict(["cmdline", "name", "status", "uids"])
    except psutil.NoSuchProcess:
        return False
    return (
        process["status"] != psutil.STATUS_ZOMBIE
        and process["name"] == "postgres"
        and process["uids"] is not None
        and process["uids"].real == user
        and not is_backend(process["cmdline"])
    )


def _segments_of(pid: int) -> set[Segment]:
    """Return the shared memory that a process made, as far as this process may know: not that of another container."""
    try:
        rows = [line.split() for line in _SEGMENTS.read_text().splitlines()]
    except OSError:  # no Linux
        return set()
    names, *table = rows
    key, number, maker = (names.index(name) for name in ("key", "shmid", "cpid"))
    return {(int(row[key]) & _KEY_BITS, int(row[number])) for row in table if int(row[maker]) == pid}


SERVER_USER = "pgserver"
PATIENCE_S = 60
"""Recovery after a crash may take a while, and longer on a busy machine; then the start has failed."""
_MOMENT_S = 2
"""A server that ends has no socket any more for a moment."""
PORT = 5432
"""Part of the socket's name; PGPORT of our environment has no say."""
_SOCKET = f".s.PGSQL.{PORT}"
_LONGEST_SOCKET = 103
"""Bytes in the path of a socket; Linux takes four more."""
# A statement locks every segment of the log that it may read, and each of its indexes.
_OPTIONS = "-c unix_socket_permissions=0700 -c max_locks_per_transaction=256"
_READ_IN_URL = frozenset(",'\"\\")
_LOCALES = (None, "C.UTF-8", "C")
"""Of a new cluster: the user's, unless this machine does not have it."""
_PEER = struct.Struct("3i")


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
        """Where the server that runs has its socket: as it was noted, if that was noted of this folder and no copy."""
        with suppress(OSError, ValueError):  # ValueError: a note that a fault of the disk left
            place, inode = self._socket_note.read_bytes().split(b"\0")
            noted = Path(os.fsdecode(place))
            if int(inode) == self.data.stat().st_ino and noted.is_absolute() and self._is_closed(noted):
                return noted
        return self._socket_place()

    def check_owner(self) -> None:
        """Refuse a cluster of another user than the server's. Raises EmbeddedUnavailable, OSError."""
        owner = self.data.stat().st_uid if (self.data / "PG_VERSION").exists() else self._user
        if owner != self._user:
            ours, theirs = _name_of(self._user), _name_of(owner)
            raise EmbeddedUnavailable(
                f"{self.data} belongs to the user {theirs}, and PostgreSQL would run as {ours}: run this as "
                f"{theirs}, or give the folder over with `chown -R {ours}`"
            )

    def is_running(self) -> bool:
        """Return whether the server's user listens at the socket, in a folder where nobody else could put it.

        Not what `postmaster.pid` says: after a restart its number is that of another process, a fault of the disk
        empties it, and in a container root may not look at a process of another user.
        """
        return self._listener() is not None

    def bury(self) -> None:
        """Remove what a dead server left: its lock files stop PostgreSQL when another process has the number in them.

        Its orphaned backends notice the death and leave; until they have, PostgreSQL refuses to start. A server that
        lives ends itself when its lock file is gone, so it stays where one runs whose socket cannot be reached: a
        cleaner of /tmp removed it, or our /tmp is another one. Raises EmbeddedUnavailable then.
        """
        self._check_dead()
        sockets = (self.socket_folder,) if self._is_closed(self.socket_folder) else ()
        left = (self.data / NAME, *(place / f"{_SOCKET}{end}" for place in sockets for end in ("", ".lock")))
        if not any(os.path.lexists(path) for path in left):
            return
        deadline = time.monotonic() + PATIENCE_S
        while self._has_orphans() and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in left:
            path.unlink(missing_ok=True)

    def initialise(self) -> None:
        """Make the cluster if there is none, and let in nobody but us.

        Raises:
            EmbeddedUnavailable: the folder holds something else.
            OSError, SubprocessError: a program or the file system failed.
        """
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._write("pg_hba.conf", "# Written at each start.\nlocal all all peer map=apc\n")
        self._write("pg_ident.conf", f'# Written at each start.\napc "{user}" all\n')

    def _make_cluster(self) -> None:
        """Make the cluster under another name: one that was killed half-way is removed first."""
        if self.data.exists() and any(self.data.iterdir()):
            raise EmbeddedUnavailable(f"{self.data} holds something that is no database: move it away")
        new = self.data.with_suffix(".new")
        if os.path.lexists(new):
            shutil.rmtree(new)
        make_private_folder(new)
        self._hand_over(new)
        with self._folder(new) as (data, descriptors):
            for locale in _LOCALES:
                try:
                    self._call(
                        "initdb", ("--auth=peer", "--encoding=utf8", "-U", "postgres"), data, descriptors, locale
                    )
                    break
                except CalledProcessError:
                    if locale == _LOCALES[-1]:
                        raise
        new.rename(self.data)

    def start(self) -> None:
        """Start the server and return when it is ready. Raises EmbeddedUnavailable, OSError, SubprocessError."""
        place = self._make_socket_folder()
        with self._folder(self.data) as (data, first), self._folder(place) as (sockets, second):
            # pg_ctl puts its options into a command of the shell. The data folder is not among them.
            options = f"-p {PORT} -h '' -k {shlex.quote(_listed(sockets))} {_OPTIONS}"
            make_private_file(self._socket_note)
            self._socket_note.write_bytes(b"%b\0%d" % (os.fsencode(place), self.data.stat().st_ino))
            self._call("pg_ctl", ("-w", "-t", str(PATIENCE_S), "-o", options, "start"), data, first + second)

    def stop(self) -> None:
        """Stop the server, if it runs, and return when it is down. Raises OSError, SubprocessError."""
        pid = self._listener()  # first its number at the socket: the one in the file may be cut
        if pid is None:
            named = named_server(self.data, self._user)
            pid = named.pid if named is not None and named.is_known else None
        if not pid:  # 0: a process of another container
            return
        with self._folder(self.data) as (data, descriptors):
            try:
                self._call("pg_ctl", ("kill", "INT", str(pid)), data, descriptors)
            except CalledProcessError:
                if lives(pid):
                    raise
        deadline = time.monotonic() + 2 * PATIENCE_S
        while lives(pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL (process {pid}) did not stop in {2 * PATIENCE_S} s")
            time.sleep(0.01)
        if self.socket_folder != self.data:
            with suppress(OSError):
                self.socket_folder.rmdir()

    @property
    def _user(self) -> int:
        return os.geteuid() if self.account is None else self.account.pw_uid

    @property
    def _socket_note(self) -> Path:
        return self.data.with_suffix(".socket")

    def _socket_place(self) -> Path:
        """Return the data folder, unless its path is too long for a socket, or means something in a URL's `host`."""
        path = self.data / _SOCKET
        with suppress(UnicodeEncodeError):
            if len(str(path).encode()) <= _LONGEST_SOCKET and not _READ_IN_URL & set(str(path)):
                return self.data
        return self._sockets() / hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]

    def _sockets(self) -> Path:
        return Path(tempfile.gettempdir()) / f"apc-postgres-{os.geteuid()}"

    def _make_socket_folder(self) -> Path:
        place = self._socket_place()
        if place == self.data:
            return place
        ours = self._sockets()
        make_private_folder(ours)
        _check_folder(ours, {os.geteuid()})
        ours.chmod(0o700)
        make_private_folder(place)
        _check_folder(place, {os.geteuid(), self._user})
        place.chmod(0o700)
        self._hand_over(place)
        return place

    def _is_closed(self, place: Path) -> bool:
        """Return whether nobody but us and the server's user can put a socket there."""
        try:
            folders = [(place, self._user)] + ([] if place == self.data else [(place.parent, os.geteuid())])
            owned = [(folder.lstat(), owner) for folder, owner in folders]
        except OSError:
            return False
        return all(stat.S_ISDIR(it.st_mode) and it.st_uid == owner and not it.st_mode & 0o022 for it, owner in owned)

    def _listener(self) -> int | None:
        """Return the id of the process that listens at the socket, 0 when it is not known, None when nobody does."""
        place = self.socket_folder
        if not self._is_closed(place):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(place / _SOCKET))
                pid, user = _peer_of(probe)
                return pid if user == self._user else None
            except (BlockingIOError, AttributeError):  # frozen, with its queue full; no Linux
                named = named_server(self.data, self._user)
                return 0 if named is None else named.pid
            except OSError:
                return None

    def _check_dead(self) -> None:
        deadline = time.monotonic() + _MOMENT_S
        while (named := named_server(self.data, self._user)) is not None:
            if time.monotonic() > deadline:
                raise EmbeddedUnavailable(
                    f"PostgreSQL (process {named.pid}) runs in {self.data}, and its socket cannot be reached: "
                    f"{self.socket_folder / _SOCKET} was removed, or this command has another /tmp. "
                    f"To repeat this, end the commands that use it, or `kill -INT {named.pid}`"
                )
            time.sleep(0.05)

    def _has_orphans(self) -> bool:
        """Return whether a dead server of this user left processes: their parent is no PostgreSQL any more."""
        import psutil

        processes = {process.pid: process.info for process in psutil.process_iter(["cmdline", "name", "ppid", "uids"])}
        return any(
            is_backend(info["cmdline"])
            and info["uids"].real == self._user
            and processes.get(info["ppid"], {}).get("name") != "postgres"
            for info in processes.values()
        )

    def _hand_over(self, path: Path | int) -> None:
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    @contextmanager
    def _folder(self, folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The path under which the server's user finds the folder, and the descriptors that it must inherit."""
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

    def _call(
        self, program: str, options: tuple[str, ...], data: str, descriptors: tuple[int, ...], locale: str | None = None
    ) -> None:
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
                    env=_environment(data, locale),
                    user=None if self.account is None else self.account.pw_uid,
                    group=None if self.account is None else self.account.pw_gid,
                    extra_groups=None if self.account is None else (),
                    cwd="/",
                )
            except PermissionError as error:
                raise EmbeddedUnavailable(
                    f"{self.binaries} cannot be run: reinstall apc-bus[embedded], or set APC_DATABASE_URL"
                ) from error


def _environment(data: str, locale: str | None) -> dict[str, str]:
    """Return what the server's programs get: nothing of what ours says about another PostgreSQL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"PGDATA": data} | ({} if locale is None else {"LC_ALL": locale})


def _peer_of(probe: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and its user. Raises AttributeError where the system does not tell."""
    pid, user, _ = _PEER.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user


def _check_folder(folder: Path, owners: set[int]) -> None:
    """Refuse a link, and a folder of another owner. Raises OSError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise PermissionError(f"{folder} belongs to another user: set TMPDIR, or choose a shorter APC_DATA_DIR")


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # one of another machine or container
        return str(user)


def _listed(folder: str) -> str:
    """Return a folder as an item of a list in PostgreSQL's settings."""
    doubled = folder.replace('"', '""')
    return f'"{doubled}"'
