"""Which process `postmaster.pid` names, and whether that is the server of this data folder.

After a restart the number in the file is that of another process, even of another folder's server. In a container
root may not look at the files of another user's process; its name, its user and the shared memory are there for all.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
        found = psutil.Process(pid).as_dict(["cmdline", "name", "status", "uids"])
    except psutil.NoSuchProcess:
        return False
    return (
        found["status"] != psutil.STATUS_ZOMBIE
        and found["name"] == "postgres"
        and found["uids"] is not None
        and found["uids"].real == user
        and not is_backend(found["cmdline"])
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
