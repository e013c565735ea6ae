"""The artifact store: immutable objects by the SHA-256 of their bytes, in a folder or an S3-like store."""

import asyncio
import hashlib
import os
import re
from pathlib import Path
from typing import Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge

_HASH = re.compile(r"sha256:([0-9a-f]{64})")
DEFAULT_MAX_BYTES = 1 << 30
_PART_BYTES = 1 << 20


class ArtifactStore:
    """Puts and gets bytes by hash. What `put` returned is safe: a local store has synced file and folders.

    Args:
        location: a folder (made if absent), or a URL: `file:///…`, `s3://bucket/prefix`, `memory:///`.
        max_bytes: the largest artifact that is taken or read.

    Raises:
        ArtifactError: a location that no store can be opened for.
    """

    def __init__(self, location: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._folder = _local_folder(location)
        self._root = self._folder.as_uri() if self._folder else str(location).rstrip("/")
        try:
            self._store: ObjectStore = (
                LocalStore(prefix=self._folder, mkdir=True) if self._folder else from_url(str(location))
            )
        except (BaseError, OSError, ValueError) as error:
            raise ArtifactError(
                f"cannot open the artifact store {location}: {error}; check APC_ARTIFACTS_URL"
            ) from error

    @classmethod
    def open(cls, location: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Self:
        """The store at a folder or URL; as the constructor."""
        return cls(location, max_bytes=max_bytes)

    async def put(self, data: bytes) -> str:
        """Store bytes; idempotent. Returns `sha256:<64 hex>`.

        Raises:
            ArtifactTooLarge: more than `max_bytes`.
            ArtifactError: the store failed (full, no rights, no network).
        """
        if len(data) > self._max_bytes:
            raise ArtifactTooLarge(f"artifact of {len(data)} bytes; the store takes {self._max_bytes}")
        artifact_hash = await _hash(data)
        key = _key(artifact_hash)
        try:
            try:
                await obstore.put_async(self._store, key, data, mode="create")
            except AlreadyExistsError:
                # The same bytes, unless a power cut tore them before they were synced.
                if not await self._holds(artifact_hash):
                    await obstore.put_async(self._store, key, data)
            if self._folder:
                await asyncio.to_thread(_sync, self._folder, key)
        except (BaseError, OSError) as error:
            raise ArtifactError(f"cannot store artifact {artifact_hash}: {error}") from error
        return artifact_hash

    async def get(self, artifact_hash: str) -> bytes:
        """The bytes, verified against the hash.

        Raises:
            ArtifactMissing: no object with that hash.
            ArtifactCorrupt: the stored bytes have another hash.
            ArtifactTooLarge: more than `max_bytes`.
            ArtifactError: not a hash, or the store failed.
        """
        key = _key(artifact_hash)
        try:
            result = await obstore.get_async(self._store, key)
            if result.meta["size"] > self._max_bytes:
                raise ArtifactTooLarge(f"artifact {artifact_hash} has {result.meta['size']} bytes")
            data = bytes(await result.bytes_async())
        except FileNotFoundError as error:
            raise ArtifactMissing(f"no artifact {artifact_hash} in {self._root}") from error
        except (BaseError, OSError) as error:
            raise ArtifactError(f"cannot read artifact {artifact_hash}: {error}") from error
        found = await _hash(data)
        if found != artifact_hash:
            raise ArtifactCorrupt(f"artifact {artifact_hash} holds bytes with hash {found}")
        return data

    async def check(self, artifact_hash: str) -> None:
        """Return when the stored bytes have this hash; they are read in parts, however large they are.

        Raises:
            ArtifactMissing, ArtifactCorrupt, ArtifactTooLarge, ArtifactError: as `get`.
        """
        key = _key(artifact_hash)
        digest = hashlib.sha256()
        try:
            result = await obstore.get_async(self._store, key)
            if result.meta["size"] > self._max_bytes:
                raise ArtifactTooLarge(f"artifact {artifact_hash} has {result.meta['size']} bytes")
            async for part in result.stream(min_chunk_size=_PART_BYTES):
                await asyncio.to_thread(digest.update, part)
        except FileNotFoundError as error:
            raise ArtifactMissing(f"no artifact {artifact_hash} in {self._root}") from error
        except (BaseError, OSError) as error:
            raise ArtifactError(f"cannot read artifact {artifact_hash}: {error}") from error
        if f"sha256:{digest.hexdigest()}" != artifact_hash:
            raise ArtifactCorrupt(f"artifact {artifact_hash} holds bytes with hash sha256:{digest.hexdigest()}")

    async def exists(self, artifact_hash: str) -> bool:
        """Whether an object stands under that hash; its bytes are not verified. Raises ArtifactError."""
        try:
            await obstore.head_async(self._store, _key(artifact_hash))
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise ArtifactError(f"cannot look for artifact {artifact_hash}: {error}") from error
        return True

    def uri(self, artifact_hash: str) -> str:
        """Where the object of that hash stands, as an absolute URI. Raises ArtifactError for no hash."""
        return f"{self._root}/{_key(artifact_hash)}"

    async def _holds(self, artifact_hash: str) -> bool:
        try:
            await self.get(artifact_hash)
        except ArtifactError:
            return False
        return True


def _local_folder(location: str | Path) -> Path | None:
    text = str(location)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return None if "://" in text else Path(location).absolute()


def _key(artifact_hash: str) -> str:
    match = _HASH.fullmatch(artifact_hash)
    if match is None:
        raise ArtifactError(f"{artifact_hash!r} is no artifact hash: it must be sha256: and 64 hex digits")
    digits = match[1]
    return f"sha256/{digits[:2]}/{digits[2:4]}/{digits}"


async def _hash(data: bytes) -> str:
    # hashlib releases the interpreter lock: large artifacts do not stop the event loop.
    if len(data) > 1 << 18:
        digest = await asyncio.to_thread(hashlib.sha256, data)
    else:
        digest = hashlib.sha256(data)
    return f"sha256:{digest.hexdigest()}"


def _sync(folder: Path, key: str) -> None:
    # The store writes and renames, but does not sync: a logged hash must outlive a power cut.
    path = folder / key
    for place in (path, *path.parents):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if place == folder:
            return
