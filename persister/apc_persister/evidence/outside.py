"""Where checkpoints go outside the database: a folder of files, an object store, or a webhook."""

import asyncio
import hashlib
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, url2pathname, urlopen

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from apc_persister.errors import ExportFailed

_TIMEOUT = timedelta(seconds=10)
_TAIL_BYTES = 4096
_WHOLE_NOTE = re.compile(rb"\xe2\x80\x94 [^\n]+\n\n")


class Outside(Protocol):
    """Takes checkpoints of a shard, oldest first. When `put` returns they are safe; a repeated one does no harm."""

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Keep these notes, one after the other with an empty line behind each. Raises ExportFailed."""
        ...


def open_outside(target: str) -> Outside:
    """The place that a setting names: a folder or `file://` URL, `http(s)://` = webhook, else an object store.

    Raises:
        ExportFailed: a URL that no store can be opened for.
    """
    scheme = urlsplit(target).scheme if "://" in target else ""
    if scheme in ("http", "https"):
        return Webhook(target)
    if scheme in ("", "file"):
        return Folder(Path(url2pathname(urlsplit(target).path)) if scheme else Path(target))
    return Objects(target)


def name_of(target: str) -> str:
    """What a place is called in the database and in messages: the URL of a webhook may hold a secret."""
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
        """Append and sync."""
        try:
            await asyncio.to_thread(self._append, shard, notes.encode())
        except OSError as error:
            raise ExportFailed(str(self._folder), str(error)) from error

    def _append(self, shard: int, notes: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"shard-{shard}.checkpoints"
        with path.open("ab") as file:
            if shard not in self._checked:
                file.truncate(_whole_bytes(path))
                self._checked.add(shard)
            file.write(notes)
            file.flush()
            os.fsync(file.fileno())


def _whole_bytes(path: Path) -> int:
    """How much of the file is whole notes: a power cut may have torn the last one, which will come again."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        start, tail = file.tell(), file.read()
    ends = [match.end() for match in _WHOLE_NOTE.finditer(tail)]
    return start + ends[-1] if ends else 0


class Objects:
    """An object store (`s3://bucket/prefix`): an object an export, named after the size of its last checkpoint."""

    def __init__(self, target: str) -> None:
        self._target = target
        try:
            self._store: ObjectStore = from_url(target)
        except (BaseError, OSError, ValueError) as error:
            raise ExportFailed(target, str(error)) from error

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """Put one object; the same export gives the same object."""
        try:
            await obstore.put_async(self._store, f"shard-{shard}/{last_size:020}.checkpoints", notes.encode())
        except (BaseError, OSError) as error:
            raise ExportFailed(self._target, str(error)) from error


class Webhook:
    """A URL that takes the notes by POST as text, and answers 2xx when it has them."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def put(self, shard: int, last_size: int, notes: str) -> None:
        """POST them."""
        try:
            await asyncio.to_thread(self._post, notes.encode())
        except (HTTPError, URLError, OSError, ValueError) as error:
            raise ExportFailed(name_of(self._url), str(error)) from error

    def _post(self, body: bytes) -> None:
        request = Request(self._url, data=body, headers={"Content-Type": "text/plain; charset=utf-8"}, method="POST")
        with urlopen(request, timeout=_TIMEOUT.total_seconds()):
            pass
