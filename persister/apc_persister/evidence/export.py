"""Exports checkpoints: each is taken out of the database as it is made, to a folder, a store or a webhook."""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, url2pathname, urlopen

import asyncpg
import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url
from prometheus_client import Gauge

from apc_bus.concurrency import Backoff, reason_of
from apc_bus.crash_points import crash_point
from apc_bus.database import DATABASE_AWAY
from apc_bus.folders import make_private_folder
from apc_bus.telemetry import get_logger
from apc_log.offline_verifier import CheckFailed, parse_note
from apc_persister.errors import ExportFailed

# Where checkpoints go outside the database: a folder of files, an object store, or a webhook.

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
            content = await obstore.get_async(self._store, name)
            return bytes(await content.bytes_async()).decode()
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


# The exporter, and its gauges. What is not out yet can be rewritten unseen.

MOST_NOTES = 1000
"""Checkpoints of one export; at full speed a shard makes about 20 a second."""
_LONGEST_PAUSE_S = 30.0

_WAITING = """
SELECT shard FROM apc_log.log_edges AS edge
WHERE shard < $1 AND tree_size > coalesce(
    (SELECT tree_size FROM apc_log.checkpoint_exports AS kept WHERE kept.shard = edge.shard AND target = $2), 0)
ORDER BY shard
"""
"""The shards whose newest checkpoint is not out: one question for all of them, and no lock."""
_BEGIN = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size)
SELECT shard, $2, 0 FROM unnest($1::integer[]) AS one(shard) ON CONFLICT DO NOTHING
"""
_EXPORTED = """
SELECT shard, tree_size FROM apc_log.checkpoint_exports WHERE shard = ANY($1::integer[]) AND target = $2
ORDER BY shard FOR UPDATE
"""
_NEXT = """
SELECT note.shard, note.tree_size, note.note, note.recorded_at
FROM unnest($1::integer[], $2::bigint[]) AS exported(shard, tree_size) CROSS JOIN LATERAL (
    SELECT * FROM apc_log.log_checkpoints AS one WHERE one.shard = exported.shard AND one.tree_size > exported.tree_size
    ORDER BY one.tree_size LIMIT $3
) AS note ORDER BY note.shard, note.tree_size
"""
_DONE = """
UPDATE apc_log.checkpoint_exports AS kept SET tree_size = done.tree_size, exported_at = now()
FROM unnest($1::integer[], $3::bigint[]) AS done(shard, tree_size) WHERE kept.shard = done.shard AND target = $2
"""

log = get_logger(__name__)


class Exporter:
    """Exports the checkpoints of all shards of a database to one place outside, oldest first, each at least once.

    It follows table log_checkpoints, no matter who writes it: one that a killed writer left is exported by the next.
    """

    def __init__(self, pool: asyncpg.Pool, shards: int, target: str, interval: timedelta) -> None:
        """Open `target` like `open_target`. Raises ExportFailed: it cannot be used."""
        self._pool = pool
        self._shards = shards
        self._target_name = name_of(target)
        self._target = open_target(target)
        self._interval_s = interval.total_seconds()
        self.exported = 0
        """Checkpoints exported since the start."""
        self.failures = 0
        self.oldest_waiting: float | None = None
        """Time (time.time) of the oldest checkpoint that the last look found and that is not out; None = none is."""
        self.newest_exported: float | None = None
        """Time of the newest checkpoint that is out, as far as this process has seen."""

    async def run(self, stop: asyncio.Event) -> None:
        """Export until `stop` is set, then once more: call after the writers have ended."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while True:
            is_last = stop.is_set()
            try:
                shards = [row["shard"] for row in await self._pool.fetch(_WAITING, self._shards, self._target_name)]
                while shards:
                    shards = await self._export(shards)
                backoff.reset()
                pause_s = self._interval_s
            except (*DATABASE_AWAY, ExportFailed) as error:
                self.failures += 1
                if backoff.is_fresh:
                    log.warning("checkpoints_not_exported", target=self._target_name, reason=reason_of(error))
                pause_s = backoff.take()
            if is_last:
                return
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

    @property
    def exposed_seconds(self) -> float:
        """For how long the oldest checkpoint waits that is not out; 0 when all are."""
        return 0.0 if self.oldest_waiting is None else max(0.0, time.time() - self.oldest_waiting)

    @property
    def exported_age_seconds(self) -> float:
        """How long ago the newest exported checkpoint was made; infinite before the first."""
        return float("inf") if self.newest_exported is None else max(0.0, time.time() - self.newest_exported)

    async def _export(self, shards: list[int]) -> list[int]:
        """Export the next checkpoints of these shards; return those that may have more.

        One transaction for all of them: each costs as much for one shard as for many. The locks keep a standby from
        doing the same. Raises ExportFailed when a shard's were not taken, once those of the others are noted.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            exported = dict(map(tuple, await connection.fetch(_EXPORTED, shards, self._target_name)))
            if len(exported) < len(shards):
                await connection.execute(_BEGIN, shards, self._target_name)
                exported = dict(map(tuple, await connection.fetch(_EXPORTED, shards, self._target_name)))
            notes = await connection.fetch(_NEXT, list(exported), list(exported.values()), MOST_NOTES)
            each = {shard: list(rows) for shard, rows in groupby(notes, key=itemgetter("shard"))}
            self.oldest_waiting = min((_time_of(rows[0]) for rows in each.values()), default=None)
            # At the same time: a place that does not answer costs all of them one timeout.
            results = await asyncio.gather(*(self._put(*one) for one in each.items()))
            failed = {shard: why for shard, why in zip(each, results, strict=True) if why is not None}
            self.oldest_waiting = min((_time_of(each[shard][0]) for shard in failed), default=None)
            self.exported += sum(len(rows) for shard, rows in each.items() if shard not in failed)
            done = {shard: rows[-1]["tree_size"] for shard, rows in each.items() if shard not in failed}
            await connection.execute(_DONE, list(done), self._target_name, list(done.values()))
        for target, reason in failed.values():
            raise ExportFailed(target, reason)
        return [shard for shard, rows in each.items() if len(rows) == MOST_NOTES]

    async def _put(self, shard: int, rows: Sequence[asyncpg.Record]) -> tuple[str, str] | None:
        """Put these checkpoints of a shard; return where and why they were not taken."""
        try:
            await self._target.put(shard, rows[-1]["tree_size"], "".join(f"{row['note']}\n" for row in rows))
        except ExportFailed as error:
            return error.target, error.reason
        crash_point("persister.after_export")
        self.newest_exported = max(_time_of(rows[-1]), self.newest_exported or 0.0)
        return None


def _time_of(row: asyncpg.Record) -> float:
    at: float = row["recorded_at"].timestamp()
    return at


_AGE = Gauge(
    "apc_log_exported_checkpoint_age_seconds",
    "Age of the newest checkpoint outside the database: what is younger could be rewritten unseen.",
)
_EXPOSED = Gauge(
    "apc_log_checkpoint_waiting_seconds",
    "For how long the oldest checkpoint waits that is not exported; 0 when all are.",
)


def publish_gauges(exporters: Sequence[Exporter]) -> None:
    """Publish the figures of a process's exporters, one for each database, as its gauges."""
    _AGE.set_function(lambda: min(one.exported_age_seconds for one in exporters))
    _EXPOSED.set_function(lambda: max(one.exposed_seconds for one in exporters))
