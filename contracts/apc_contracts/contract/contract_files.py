"""Read files of contracts: at most so many bytes, and of a folder only what really stands in it."""

import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Final

from apc_contracts.errors import ContractInvalid

MAX_BYTES: Final = 256 * 1024
"""Of one file, thirteen times the packaged one: a session's log message carries its contract."""
MAX_FILES: Final = 100
"""In one folder."""


def read_contract_file(path: Path) -> bytes:
    """Return the bytes of a file that an operator names. Raises OSError, ContractInvalid: it is too large."""
    with path.open("rb") as opened:
        return _bounded(opened)


def read_contract_folder(folder: Path) -> list[tuple[Path, bytes]]:
    """Return the `*.json` of a folder, sorted by name, with their bytes.

    A link may lead to another place in the folder (Kubernetes mounts files so), never out of it.

    Raises:
        ContractInvalid: it is no folder, has too many files, or one is too large, no file, or a link that leads out.
    """
    if not folder.is_dir():
        raise ContractInvalid("$", "APC_CONTRACTS is no folder: name one that exists", str(folder))
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MAX_FILES:
        raise ContractInvalid("$", f"it has {len(paths)} files, {MAX_FILES} are allowed: move some out", str(folder))
    return [(path, _read_inside(folder, path)) for path in paths]


def _read_inside(folder: Path, path: Path) -> bytes:
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(folder.resolve()):
            raise ContractInvalid("$", "it is a link that leads out of the folder: put the file there", str(path))
        # Not a moment is waited for the writer of a pipe; what is opened is what is looked at.
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as opened:
            if not S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ContractInvalid("$", "it is no file: move it out of the folder", str(path))
            return _bounded(opened)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError in Python 3.11 and 3.12
        said = getattr(error, "strerror", None) or error
        raise ContractInvalid("$", f"cannot read it: {said}", str(path)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(path)) from error


def _bounded(opened: BinaryIO) -> bytes:
    body = opened.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise ContractInvalid("$", f"it has more than {MAX_BYTES} bytes: shorten it")
    return body
