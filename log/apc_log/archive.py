"""The archive of the log: its segments as objects in a folder or an S3-like store, written once.

A segment is a range of entries of a shard that begins and ends where a block of 2^16 entries does. What its objects
hold is in docs/reference/log-format.md; who reads them is `apc_log.cold`, who writes them the persister.
"""

import asyncio
import hashlib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import obstore
import orjson
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore

from apc_bus.artifacts import is_plain_file, local_folder, open_remote, store_problem
from apc_bus.folders import make_private_folder, sync_below
from apc_bus.settings import ArchiveSettings
from apc_log.errors import ArchiveDiffers, ArchiveError, ArchiveUnavailable
from apc_log.merkle import HASH_SIZE, fold, fold_bytes, widths_between
from apc_log.offline_verifier import CheckFailed, SignedNote, parse_note
from apc_log.parquet_bounds import BeyondBounds, check_bounds

FORMAT, VERSION = "apc-log-segment", 1
BLOCK = 1 << 16
"""Entries of a block: a segment begins and ends with one, so that the archive has the subtrees of the log's tree."""
TABLES = ("packet", "hop", "lineage", "other", "ids", "checkpoints")
"""The objects of Parquet, without `.parquet`."""
LEAVES, MANIFEST = "leaves", "manifest.json"
KEPT = frozenset({"checkpoints.parquet", LEAVES})
"""What stays when a segment expires, beside its manifest."""
OBJECTS = (*(f"{table}.parquet" for table in TABLES), LEAVES)
"""What a manifest lists, in the order in which it is written; the manifest comes last."""
ROW_GROUP = 20_000
Types = Mapping[str, str]
"""Column of a table -> text, texts, uuid, bytes, int, float, flag or time (UTC)."""
_PACKET: Types = {
    **{"seq": "int", "run_id": "text", "session_id": "text", "task_id": "text", "packet_id": "uuid"},
    **{"packet_type": "text", "run_phase": "text", "root_packet_id": "uuid", "parent_packet_id": "uuid"},
    **{"cause_packet_id": "uuid", "sender_agent_id": "text", "recipients": "texts", "generation": "int"},
    **{"round": "int", "verdict": "text", "refusal_code": "text", "judged_at": "time", "refers_to": "texts"},
    **{"defines": "texts", "entry": "text", "body": "bytes"},
}
_HOP: Types = {
    **{"seq": "int", "session_id": "text", "packet_id": "uuid", "recipient": "text", "attempt": "int"},
    **{"from_state": "text", "to_state": "text", "entry": "text"},
}
_LINEAGE: Types = {
    **{"seq": "int", "session_id": "text", "packet_id": "uuid", "protocol_id": "text", "parent_protocol_ids": "texts"},
    **{"transfer_mode": "text", "cross_use_case": "flag", "sender_score": "float", "receiver_score": "float"},
    **{"entry": "text"},
}
_OTHER: Types = {
    **{"entry_kind": "text", "seq": "int", "session_id": "text", "packet_id": "uuid", "event": "text"},
    **{"from_state": "text", "to_state": "text", "agent_id": "text", "entry": "text", "body": "bytes"},
}
_IDS: Types = {"packet_id": "uuid", "session_id": "text", "packet_hash": "bytes", "payload_hash": "bytes", "seq": "int"}
_CHECKPOINTS: Types = {"tree_size": "int", "root_hash": "bytes", "note": "text", "recorded_at": "time"}
SCHEMAS: Mapping[str, Types] = {
    **{"packet": _PACKET, "hop": _HOP, "lineage": _LINEAGE, "other": _OTHER, "ids": _IDS},
    "checkpoints": _CHECKPOINTS,
}
"""Table -> its columns. `entry` is the canonical text of the entry; the others stand in it, but for those of BESIDE."""
BESIDE = frozenset({"entry", "body", "refers_to", "defines"})
SORTED_BY: Mapping[str, tuple[str, ...]] = {
    "packet": ("run_id", "session_id", "seq"),
    "hop": ("session_id", "seq"),
    "lineage": ("session_id", "seq"),
    "other": ("entry_kind", "session_id", "seq"),
    "ids": ("packet_id", "seq"),
    "checkpoints": ("tree_size",),
}
OF_ENTRIES = ("packet", "hop", "lineage", "other")
_DIGEST = re.compile("[0-9a-f]{64}")
_PART_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 1 << 26
_LOCKED = {"x-amz-sdk-checksum-algorithm": "SHA256"}
"""A bucket with object lock takes no object without it."""


def table_of(kind: str) -> str:
    """Return the table that holds entries of a kind."""
    return kind if kind in OF_ENTRIES else "other"


def place_of(origin: str, first: int) -> str:
    """Return where the objects of a segment stand: `log/<log name>/<shard>/<first entry, 20 digits>`."""
    return f"log/{origin}/{first:020}"


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """An object of a segment, as its manifest names it."""

    name: str
    size: int
    sha256: str
    """64 hex digits."""
    version: str | None
    """The version that was written; None where the store has none."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the archive says of a segment. The tree of the log vouches for it: nothing else does."""

    origin: str
    """`<log name>/<shard>`, as in checkpoints."""
    first: int
    last: int
    subtrees: tuple[bytes, ...]
    """The root of each block of 2^16 entries."""
    checkpoint: str
    """The signed checkpoint below which the segment stands: the first one that covers it."""
    objects: tuple[SegmentObject, ...]
    counts: Mapping[str, int]
    """Entries by kind."""
    tallies: Mapping[str, Mapping[str, int]]
    """Packets by type and verdict, hops by the state that they lead to, lineage blocks by mode."""
    log_entries: tuple[str, ...] = ()
    """The entries of kind `log` of the segment, as they are canonical: they stay when its rows expire."""
    beyond: tuple[bytes, ...] = ()
    """The roots of the subtrees that lead from the segment's end to the size of the checkpoint."""

    @property
    def shard(self) -> int:
        """The shard."""
        return int(self.origin.rpartition("/")[2])

    @property
    def place(self) -> str:
        """Where its objects stand."""
        return place_of(self.origin, self.first)

    @property
    def root(self) -> bytes:
        """MTH of RFC 6962 over the leaves first..last."""
        return fold(self.subtrees)

    @property
    def note(self) -> SignedNote:
        """The checkpoint, whose signature is not checked yet."""
        return parse_note(self.checkpoint)

    @property
    def tallies_sha256(self) -> str:
        """The digest of the tallies: 64 hex digits."""
        return hashlib.sha256(_canonical(self.tallies)).hexdigest()

    @property
    def text(self) -> bytes:
        """The bytes of `manifest.json`: the same manifest gives the same ones."""
        return _canonical(
            {
                "format": FORMAT,
                "version": VERSION,
                "origin": self.origin,
                "first_seq": self.first,
                "last_seq": self.last,
                "root": self.root.hex(),
                "subtrees": [root.hex() for root in self.subtrees],
                "checkpoint": self.checkpoint,
                "objects": [
                    {"name": one.name, "size": one.size, "sha256": one.sha256, "version": one.version}
                    for one in self.objects
                ],
                "counts": self.counts,
                "tallies": self.tallies,
                "tallies_sha256": self.tallies_sha256,
                "log_entries": self.log_entries,
                "beyond": [root.hex() for root in self.beyond],
            }
        )

    @property
    def sha256(self) -> str:
        """The digest of `manifest.json`: 64 hex digits."""
        return hashlib.sha256(self.text).hexdigest()

    def object(self, name: str) -> SegmentObject:
        """Return one of its objects. Raises KeyError."""
        return {one.name: one for one in self.objects}[name]


def _canonical(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def parse_manifest(text: bytes, origin: str, first: int) -> Manifest:
    """Return the manifest of the segment that begins at `first`.

    Raises:
        ArchiveDiffers: it is none, of another segment, or does not agree with itself.
    """
    try:
        manifest = _read_manifest(orjson.loads(text))
        problem = _problem_of(manifest, origin, first, text)
    except (KeyError, ValueError, TypeError, AttributeError, CheckFailed) as error:
        problem = f"it is no manifest of format {FORMAT}, version {VERSION} ({type(error).__name__}: {error})"
    if problem is not None:
        raise ArchiveDiffers(place_of(origin, first), MANIFEST, problem)
    return manifest


def _read_manifest(document: dict[str, Any]) -> Manifest:
    if (document["format"], document["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
    if not all(type(document[name]) is int for name in ("first_seq", "last_seq")):
        raise ValueError("the range is not of numbers")
    return Manifest(
        document["origin"],
        document["first_seq"],
        document["last_seq"],
        tuple(bytes.fromhex(root) for root in document["subtrees"]),
        document["checkpoint"],
        tuple(_read_object(SegmentObject(**one)) for one in document["objects"]),
        document["counts"],
        document["tallies"],
        tuple(document["log_entries"]),
        tuple(bytes.fromhex(root) for root in document["beyond"]),
    )


def _read_object(one: SegmentObject) -> SegmentObject:
    """Return an object of a manifest. Raises ValueError: its digest, which names a file of the cache, is none."""
    if _DIGEST.fullmatch(one.sha256) is None or type(one.size) is not int or not isinstance(one.version, str | None):
        raise ValueError(f"the object {one.name!r} has no digest, size or version")
    return one


def _problem_of(manifest: Manifest, origin: str, first: int, text: bytes) -> str | None:
    """Return what is wrong with a manifest by itself; None if nothing is."""
    if (manifest.origin, manifest.first) != (origin, first):
        return f"it is the manifest of the segment from entry {manifest.first} of {manifest.origin}"
    check_range(manifest.first, manifest.last)
    if tuple(one.name for one in manifest.objects) != OBJECTS:
        return "it does not name the objects of a segment"
    blocks = (manifest.last - manifest.first + 1) // BLOCK
    if len(manifest.subtrees) != blocks or any(len(root) != HASH_SIZE for root in manifest.subtrees):
        return f"a segment of {blocks} blocks has {len(manifest.subtrees)} subtrees in it"
    checkpoint = manifest.note.checkpoint
    if checkpoint.origin != origin or checkpoint.size < manifest.last:
        return f"its checkpoint, of {checkpoint.size} entries of {checkpoint.origin}, does not cover the segment"
    if len(manifest.beyond) != len(widths_between(manifest.last, checkpoint.size)):
        return "it does not lead from its end to its checkpoint"
    if not all(isinstance(entry, str) for entry in manifest.log_entries):
        return "its log entries are no texts"
    if manifest.object(LEAVES).size != blocks * BLOCK * HASH_SIZE:
        return f"a segment of {blocks} blocks has no leaves of {manifest.object(LEAVES).size} bytes"
    if sum(manifest.counts.values()) != manifest.last - manifest.first + 1:
        return "its counts are not those of its range"
    return None if manifest.text == text else "it does not agree with itself, or is not in its one spelling"


def check_range(first: int, last: int) -> None:
    """Raise ValueError unless a segment can stand from entry `first` to `last`."""
    if not (first >= 1 and last >= first and (first - 1) % BLOCK == 0 and last % BLOCK == 0):
        raise ValueError(f"a segment has whole blocks of {BLOCK} entries: {first} to {last} does not")


class Archive:
    """Reads and writes the segments of one log.

    Args:
        location: a folder, or a URL: `file:///…`, `s3://bucket/prefix`.
        log_name: the name of the log in its checkpoints: their origin is `<log name>/<shard>`.
        cache: folder for objects of a store that is no folder, made if absent, for its owner alone.
        cache_bytes: the most that stays in it.
        allow_http: reach an S3-like store over http.

    Raises:
        ArchiveError: a location that no store can be opened for.
    """

    def __init__(
        self,
        location: str | Path,
        log_name: str,
        *,
        cache: Path,
        cache_bytes: int = 4 << 30,
        allow_http: bool = False,
    ) -> None:
        self.location = str(location)
        self._log_name = log_name
        self._folder = local_folder(location)
        self._cache = cache
        self._cache_bytes = cache_bytes
        self._used: Counter[str] = Counter()
        """Digests of cached objects that are being read."""
        self._checked: dict[Path, tuple[object, ...]] = {}
        """File of a folder -> the state in which it had the bytes that its manifest names."""
        self._bounded: set[tuple[str, str, int]] = set()
        """Name, digest and entries of the objects of Parquet that take no more to decode than they may."""
        if {"", ".", ".."} & set(log_name.split("/")):
            raise ArchiveError(f"the log's name {log_name!r} is no name of objects")
        self._remotes: tuple[ObjectStore, ObjectStore] | None = None
        if self._folder is None:
            try:
                reads = open_remote(self.location, allow_http)
                writes = open_remote(self.location, allow_http, _LOCKED, config={"checksum_algorithm": "SHA256"})
            except (BaseError, OSError, ValueError) as error:
                problem = store_problem(error, "APC_ARCHIVE")
                raise ArchiveError(f"cannot open the archive {location}: {problem}; check APC_ARCHIVE_URL") from error
            self._remotes = reads, writes

    @property
    def _store(self) -> ObjectStore:
        """The store for reading. Raises FileNotFoundError: there is no such folder."""
        if self._remotes is not None:
            return self._remotes[0]
        if self._folder is None or not self._folder.is_dir():
            raise FileNotFoundError(f"there is no folder {self.location}")
        return LocalStore(prefix=self._folder)

    @property
    def _writer(self) -> ObjectStore:
        """The store for writing. Raises OSError: a folder cannot be made."""
        if self._folder is not None:
            make_private_folder(self._folder)
        return self._store if self._remotes is None else self._remotes[1]

    @classmethod
    def open(cls, settings: ArchiveSettings, log_name: str) -> Self:
        """Return the archive that the settings name. Raises ArchiveError: they name none, or it cannot be opened."""
        if settings.archive_url is None:
            raise ArchiveError("there is no archive: set APC_ARCHIVE_URL to a folder or s3://bucket/prefix")
        folder = local_folder(settings.archive_url)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ArchiveError(f"APC_ARCHIVE_URL {settings.archive_url} is a file: name a folder")
        return cls(
            settings.archive_url,
            log_name,
            cache=settings.data_dir / "archive-cache",
            cache_bytes=settings.archive_cache_bytes,
            allow_http=settings.archive_allow_http,
        )

    def with_cache(self, cache: Path) -> "Archive":
        """Return the same archive with another cache, for which every object is read from the store."""
        other = copy(self)
        other._cache, other._checked, other._used, other._bounded = cache, {}, Counter(), set()
        return other

    def origin(self, shard: int) -> str:
        """Return the origin of a shard: `<log name>/<shard>`."""
        return f"{self._log_name}/{shard}"

    async def segments(self, shard: int) -> list[int]:
        """Return the first entry of every segment of a shard of which the archive has an object.

        Raises:
            ArchiveUnavailable: the archive does not answer.
        """
        prefix = f"log/{self.origin(shard)}"
        try:
            listed = await obstore.list_with_delimiter_async(self._store, prefix)
        except FileNotFoundError:
            return []
        except (BaseError, OSError) as error:
            raise ArchiveUnavailable(prefix, None, store_problem(error, "APC_ARCHIVE")) from error
        names = [str(path).rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]]
        return sorted(int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit())

    async def read_manifest(self, shard: int, first: int, sha256: str | None = None) -> Manifest:
        """Return the manifest of the segment that begins at `first`.

        Args:
            shard: the shard.
            first: the first entry.
            sha256: the digest that the log has of it (64 hex digits); None = none is compared.

        Raises:
            ArchiveUnavailable: there is none, or the archive does not answer.
            ArchiveDiffers: it is another one.
        """
        place = place_of(self.origin(shard), first)
        text = await self._read(place, MANIFEST)
        if sha256 not in (None, hashlib.sha256(text).hexdigest()):
            raise ArchiveDiffers(place, MANIFEST, "the log's segment entry names other bytes")
        return parse_manifest(text, self.origin(shard), first)

    async def has_manifest(self, shard: int, first: int) -> bool:
        """Return whether a segment is whole: its manifest is written last. Raises ArchiveUnavailable."""
        place = place_of(self.origin(shard), first)
        try:
            await obstore.head_async(self._store, f"{place}/{MANIFEST}")
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise ArchiveUnavailable(place, MANIFEST, store_problem(error, "APC_ARCHIVE")) from error
        return True

    async def put(self, place: str, name: str, data: bytes | Path) -> SegmentObject:
        """Write an object once; one that is there already must have the same bytes.

        Raises:
            ArchiveDiffers: an object of that name holds other bytes; it is left as it is.
            ArchiveUnavailable: the store failed.
        """
        digest, size = await asyncio.to_thread(_digest_of, data)
        key = f"{place}/{name}"
        try:
            try:
                result = await obstore.put_async(self._writer, key, data, mode="create")
                version: str | None = result["version"]
            except AlreadyExistsError:
                version = await self._adopt(place, name, digest)
            if self._folder:
                await asyncio.to_thread(sync_below, self._folder, self._folder / key)
        except (BaseError, OSError) as error:
            raise ArchiveUnavailable(place, name, store_problem(error, "APC_ARCHIVE")) from error
        return SegmentObject(name, size, digest, version)

    async def _adopt(self, place: str, name: str, digest: str) -> str | None:
        """Return the version of an object that was written before, once it has the bytes of this digest."""
        found = hashlib.sha256()
        result = await obstore.get_async(self._store, f"{place}/{name}")
        async for part in result.stream(min_chunk_size=_PART_BYTES):
            found.update(part)
        if found.hexdigest() != digest:
            raise ArchiveDiffers(
                place, name, "it was written before, with other bytes: find out by whom, and move it away"
            )
        version: str | None = result.meta.get("version")
        return version

    async def _read(self, place: str, name: str) -> bytes:
        try:
            self._refuse_irregular(place, name)
            result = await obstore.get_async(self._store, f"{place}/{name}")
            if result.meta["size"] > _MOST_MANIFEST_BYTES:
                raise ArchiveDiffers(place, name, f"it has {result.meta['size']} bytes")
            return bytes(await result.bytes_async())
        except (BaseError, OSError) as error:
            raise _unavailable(place, name, error) from error

    def _refuse_irregular(self, place: str, name: str) -> None:
        if self._folder is not None and not is_plain_file(self._folder / place / name):
            raise ArchiveDiffers(place, name, "it is no regular file")

    async def read_block(self, manifest: Manifest, number: int) -> bytes:
        """Return the leaf hashes of a block, the segment's first one being 0, once they fold to its subtree.

        Raises:
            ArchiveUnavailable, ArchiveDiffers: as `fetch`.
        """
        one, width = manifest.object(LEAVES), BLOCK * HASH_SIZE
        try:
            self._refuse_irregular(manifest.place, LEAVES)
            options: Any = {"range": (number * width, (number + 1) * width)}
            if one.version is not None:
                options["version"] = one.version
            result = await obstore.get_async(self._store, f"{manifest.place}/{LEAVES}", options=options)
            leaves = bytes(await result.bytes_async())
        except (BaseError, OSError) as error:
            raise _unavailable(manifest.place, LEAVES, error) from error
        if len(leaves) != width or await asyncio.to_thread(fold_bytes, leaves) != manifest.subtrees[number]:
            raise ArchiveDiffers(manifest.place, LEAVES, f"block {number} does not fold to the manifest's subtree")
        return leaves

    @asynccontextmanager
    async def fetched(self, manifest: Manifest, *names: str) -> AsyncIterator[Mapping[str, Path]]:
        """Give files with the bytes of these objects, which have the digests that the manifest names.

        A folder's own files, or those of the cache: do not change them. They stay for the length of the context.

        Raises:
            ArchiveUnavailable: an object is missing, or the archive does not answer.
            ArchiveDiffers: an object has other bytes.
        """
        async with self.fetched_all([(manifest, name) for name in names]) as paths:
            yield dict(zip(names, paths, strict=True))

    @asynccontextmanager
    async def fetched_all(self, wanted: Sequence[tuple[Manifest, str]]) -> AsyncIterator[Sequence[Path]]:
        """Give files of these objects of several segments, in their order, as `fetched`."""
        objects = [(manifest.place, manifest.object(name)) for manifest, name in wanted]
        entries = [manifest.last - manifest.first + 1 for manifest, _ in wanted]
        self._used.update(one.sha256 for _, one in objects)
        try:
            known = await asyncio.to_thread(lambda: [self._known(*one) for one in objects])
            paths = [path or await self._fetch(*one) for path, one in zip(known, objects, strict=True)]
            await asyncio.to_thread(self._check_bounds, objects, entries, paths)
            yield paths
        finally:
            self._used.subtract(one.sha256 for _, one in objects)
            if self._folder is None:
                await asyncio.to_thread(self._trim)

    def _known(self, place: str, one: SegmentObject) -> Path | None:
        """Return the file of an object that was fetched before and is as it was; None = it has to be fetched."""
        if self._folder is None:
            cached = self._cache / one.sha256
            return cached if _touch(cached, one.size) else None
        path = self._folder / place / one.name
        try:
            is_known = is_plain_file(path) and self._checked.get(path) == _state_of(path, one)
        except OSError:
            return None
        return path if is_known else None

    async def _fetch(self, place: str, one: SegmentObject) -> Path:
        try:
            if self._folder is not None:
                self._refuse_irregular(place, one.name)
                path = self._folder / place / one.name
                await asyncio.to_thread(self._check_file, path, place, one)
                return path
            cached = self._cache / one.sha256
            await self._download(cached, place, one)
            return cached
        except (BaseError, OSError) as error:
            raise _unavailable(place, one.name, error) from error

    def _check_bounds(
        self, objects: Sequence[tuple[str, SegmentObject]], entries: Sequence[int], paths: Sequence[Path]
    ) -> None:
        """Refuse Parquet that takes more to decode than it may, before anyone decodes it; once for the same bytes."""
        for (place, one), count, path in zip(objects, entries, paths, strict=True):
            table, key = one.name.removesuffix(".parquet"), (one.name, one.sha256, count)
            if table in SCHEMAS and key not in self._bounded:
                try:
                    check_bounds(path, SCHEMAS[table], plain=BESIDE, most_rows=count, row_group=ROW_GROUP)
                except BeyondBounds as error:
                    raise ArchiveDiffers(place, one.name, f"it cannot be read: {error}") from error
                except OSError as error:
                    raise _unavailable(place, one.name, error) from error
                self._bounded.add(key)

    def _check_file(self, path: Path, place: str, one: SegmentObject) -> None:
        """Compare a file with its digest."""
        state = _state_of(path, one)
        digest, size = _digest_of(path)
        _compare(place, one, digest, size)
        self._checked[path] = state

    async def _download(self, cached: Path, place: str, one: SegmentObject) -> None:
        """Write the version that the manifest names into the cache, whole or not at all."""
        options: Any = {} if one.version is None else {"version": one.version}
        result = await obstore.get_async(self._store, f"{place}/{one.name}", options=options)
        if result.meta["size"] != one.size:
            raise ArchiveDiffers(place, one.name, f"it has {result.meta['size']} bytes instead of {one.size}")
        make_private_folder(self._cache)
        await asyncio.to_thread(self._trim, one.size)
        part = cached.with_name(f".{one.sha256}.{token_hex(4)}")
        digest, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as file:
                part.chmod(0o600)
                async for data in result.stream(min_chunk_size=_PART_BYTES):
                    digest.update(data)
                    size += file.write(data)
            _compare(place, one, digest.hexdigest(), size)
            part.replace(cached)
        finally:
            part.unlink(missing_ok=True)

    def _trim(self, wanted: int = 0) -> None:
        """Remove the objects that were not read for the longest time, until the cache has room for `wanted` bytes."""
        files = sorted(_cached(self._cache), key=lambda found: found[1])
        total = wanted + sum(size for _, _, size in files)
        for path, _, size in files:
            if total <= self._cache_bytes:
                return
            if self._used[path.name] <= 0:
                path.unlink(missing_ok=True)
                total -= size


def _cached(cache: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the file, the time of the last use and the size of each cached object."""
    for path in cache.iterdir() if cache.is_dir() else ():
        try:
            status = path.stat()
        except FileNotFoundError:  # another process trims, too
            continue
        if not path.name.startswith("."):
            yield path, status.st_mtime_ns, status.st_size


def _touch(cached: Path, size: int) -> bool:
    """Return whether an object is in the cache, and note that it is used."""
    try:
        if cached.stat().st_size != size:
            return False
        os.utime(cached)
    except FileNotFoundError:
        return False
    return True


def _state_of(path: Path, one: SegmentObject) -> tuple[object, ...]:
    """Return what changes with the bytes of a file: this process compares them with the digest once."""
    status = path.stat()
    return one.sha256, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest_of(data: bytes | Path) -> tuple[str, int]:
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest(), len(data)
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size


def _compare(place: str, one: SegmentObject, digest: str, size: int) -> None:
    if (digest, size) != (one.sha256, one.size):
        raise ArchiveDiffers(place, one.name, f"its {size} bytes have SHA-256 {digest} instead of {one.sha256}")


def _unavailable(place: str, name: str, error: Exception) -> ArchiveUnavailable:
    is_missing = isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error)
    problem = "it is missing" if is_missing else store_problem(error, "APC_ARCHIVE")
    return ArchiveUnavailable(place, name, problem)
