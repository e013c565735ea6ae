"""Where checkpoints go outside the database: a folder of files, an object store, or a webhook."""

import asyncio
import hashlib
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, url2pathname, urlopen

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url

from apc_bus.folders import make_private_folder
from apc_log.offline_verifier import CheckFailed, parse_note
from apc_persister.errors import ExportFailed

_TIMEOUT = timedelta(seconds=10)
_TAIL_BYTES = 4096
_WHOLE_NOTE = re.compile(rb"[^\n]+\n[^\n]+\n[^\n]+\n\n(?:\xe2\x80\x94 [^\n]+\n)+\n")
_TORN_NOTE = re.compile(rb"[^\r\n\0]*(?:\n\d*(?:\n[\w+/=]*(?:\n(?:\n[^\r\n\0]*\n?)?)?)?)?|\0*")
"""A note that ends too early, or zeros that a file system left where it was to stand."""


class CheckpointTarget(Protocol):
    """Takes checkpoints of a shard, oldest first. When `put` returns they are safe; a repeated one does no harm."""

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Keep these notes, one after the other with an empty line behind each. Raises ExportFailed."""
        ...


def open_target(target: str) -> CheckpointTarget:
    """Return the place that a setting names: a folder or `file://` URL, `http(s)://` = webhook, else an object store.

    Raises:
        ExportFailed: a URL that no store can be opened for.
    """
    folder = folder_of(target)
    if folder is not None:
        return Folder(folder)
    return Webhook(target) if urlsplit(target).scheme in ("http", "https") else Objects(target)


def folder_of(target: str) -> Path | None:
    """Return the folder that a setting names by its path or a `file://` URL; None of another place."""
    if "://" not in target:
        return Path(target)
    parts = urlsplit(target)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def name_of(target: str) -> str:
    """Return what a place is called in the database and in messages: the URL of a webhook may hold a secret."""
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https"):
        return target
    return f"{parts.scheme}://{parts.hostname}#{hashlib.sha256(target.encode()).hexdigest()[:16]}"


class Folder:
    """A file a shard, `shard-<n>.checkpoints`, to which notes are appended and synced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked: set[int] = set()

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Append and sync. A note that a power cut has torn is completed, or cut behind a whole one that stays."""
        try:
            await asyncio.to_thread(self._append, shard, notes.encode())
        except OSError as error:
            raise ExportFailed(str(self._folder), str(error)) from error

    def _append(self, shard: int, notes: bytes) -> None:
        make_private_folder(self._folder)
        path = self._folder / f"shard-{shard}.checkpoints"
        with path.open("ab") as file:
            if shard not in self._checked:
                notes = notes[_mend_tail(path, file, notes) :]
            self._checked.discard(shard)
            file.write(notes)
            file.flush()
            os.fsync(file.fileno())
        self._checked.add(shard)


def _mend_tail(path: Path, file: IO[bytes], notes: bytes) -> int:
    """Make the file end with a whole note, or with as many bytes of `notes` as are returned.

    Raises:
        ExportFailed: neither can be had without the loss of what may be evidence; the file is left as it was.
    """
    size = path.stat().st_size
    with path.open("rb") as reader:
        reader.seek(max(0, size - _TAIL_BYTES))
        start, tail = reader.tell(), reader.read()
    ends = [match.end() for match in _WHOLE_NOTE.finditer(tail) if _is_note(match[0])]
    if not ends and start == 0 and notes.startswith(tail):
        return len(tail)
    if not ends:
        raise ExportFailed(str(path), f"its last {len(tail)} bytes hold no whole checkpoint: keep it, move it away")
    if not _TORN_NOTE.fullmatch(tail, ends[-1]):
        raise ExportFailed(str(path), "what stands behind its last whole one is no torn checkpoint: move it away")
    file.truncate(start + ends[-1])
    return 0


def _is_note(found: bytes) -> bool:
    try:
        parse_note(found[:-1].decode())
    except (CheckFailed, UnicodeError):
        return False
    return True


class Objects:
    """An object store (`s3://bucket/prefix`): an object an export, named after the size of its last checkpoint."""

    def __init__(self, target: str) -> None:
        self._target = target
        try:
            self._store: ObjectStore = from_url(target)
        except (BaseError, OSError, ValueError) as error:
            raise ExportFailed(target, str(error)) from error

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Put one object; the same export gives the same object, and another one never takes its place."""
        name = f"shard-{shard}/{last_size:020}.checkpoints"
        try:
            held = await self._read(name)
            if held.endswith(notes):
                return
            if not notes.endswith(held):
                raise ExportFailed(self._target, f"{name} holds other checkpoints: it is kept; export to another place")
            await obstore.put_async(self._store, name, notes.encode())
        except (BaseError, OSError, UnicodeError) as error:
            raise ExportFailed(self._target, str(error)) from error

    async def _read(self, name: str) -> str:
        """Return what the object holds, nothing when there is none."""
        try:
            found = await obstore.get_async(self._store, name)
            return bytes(await found.bytes_async()).decode()
        except (NotFoundError, FileNotFoundError):
            return ""


class Webhook:
    """A URL that takes the notes by POST as text, and answers 2xx when it has them."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Send the notes in one POST."""
        try:
            await asyncio.to_thread(self._post, notes.encode())
        except (HTTPError, URLError, OSError, ValueError) as error:
            raise ExportFailed(name_of(self._url), str(error)) from error

    def _post(self, body: bytes) -> None:
        request = Request(self._url, data=body, headers={"Content-Type": "text/plain; charset=utf-8"}, method="POST")
        with urlopen(request, timeout=_TIMEOUT.total_seconds()):
            pass
