"""The artifact store: immutable objects by the SHA-256 of their bytes, in a folder or an S3-like store.

An agent that may only read the store uploads through the service that alone may write it: `PUT /sha256/<64 hex
digits>`.
"""

import asyncio
import base64
import hashlib
import http.client
import io
import re
import stat
import tempfile
import time
from collections.abc import AsyncIterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from apc_bus.concurrency import Backoff
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactServiceAway, ArtifactTooLarge
from apc_bus.folders import make_private_folder, sync_below
from apc_bus.settings import BusSettings
from apc_bus.telemetry import get_logger

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ClientConfig, RetryConfig

_TIMEOUT_S = 30.0
"""For every answer, and for every part that is sent."""
_TAKEN = (200, 201)
_LATER = (429, 502, 503, 504)
"""The service, or what it asks who uploads, is away or busy for now."""
_LONGEST_ANSWER = 1000


Login = tuple[str, str]
"""User and password: the agent's own at the broker."""


def upload(service: str, artifact_hash: str, data: bytes | Path, login: Login | None = None) -> None:
    """Send bytes to the service at a URL and return when it has them safe; blocks.

    Raises:
        ArtifactServiceAway: the service does not answer, or says that it cannot take them now.
        ArtifactError: it refused them.
        OSError: a file cannot be read.
    """
    digits = artifact_hash.removeprefix("sha256:")
    if isinstance(data, bytes):
        _put(service, digits, io.BytesIO(data), len(data), login)
        return
    with data.open("rb") as file:
        _put(service, digits, file, data.stat().st_size, login)


def _put(service: str, digits: str, body: io.BufferedIOBase, size: int, login: Login | None) -> None:
    parts = urlsplit(service)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        headers = {"Content-Length": str(size), "Connection": "close"}
        if login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"
        # A service that refuses may answer and leave before it has read all of it.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("PUT", f"/sha256/{digits}", body=body, headers=headers)
        answer = connection.getresponse()
        said = answer.read(_LONGEST_ANSWER).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise ArtifactServiceAway(
            f"cannot store artifact sha256:{digits} at {service}: {error or type(error).__name__}; check "
            "APC_ARTIFACTS_UPLOAD_URL, and whether `apc serve artifacts` runs"
        ) from error
    finally:
        connection.close()
    if answer.status not in _TAKEN:
        kind_of_error = ArtifactServiceAway if answer.status in _LATER else ArtifactError
        raise kind_of_error(f"{service} refused artifact sha256:{digits}: {answer.status} {said}")


_HASH = re.compile(r"sha256:([0-9a-f]{64})")
DEFAULT_MAX_BYTES = 1 << 30
_PART_BYTES = 1 << 20
"""Read at a time: a process need not hold a whole artifact to check it."""
_PATIENCE = timedelta(seconds=60)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_RETRIES: "RetryConfig" = {"max_retries": 4, "retry_timeout": _PATIENCE}
"""With back-off, within seconds: who asked says so and decides, instead of hanging for minutes."""
_TIMEOUTS: "ClientConfig" = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(minutes=15),
}
"""The last one for a whole object: the library's 30 s would cut off large ones."""
_S3_ERROR = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)
_REQUEST = re.compile(r" for path \S+: Error performing \w+ \S+ in \S+")
_NO_BUCKET = "NoSuchBucket"

_log = get_logger("apc_bus")


class ArtifactStore:
    """Puts and gets bytes by hash. What `put` returned is safe: a local store has synced file and folders.

    Args:
        location: a folder (made if absent, for its owner alone), or a URL: `file:///…`, `s3://bucket/prefix`, `memory:///`.
        max_bytes: the largest artifact that is taken or read.
        allow_http: reach an S3-like store over http.
        uploads: URL of the service that stores what is put; the location is only read then.
        login: user and password for that service.
        patience: how long an upload is repeated while the service is away or busy.

    Raises:
        ArtifactError: a location that no store can be opened for.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        allow_http: bool = False,
        uploads: str | None = None,
        login: Login | None = None,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._max_bytes = max_bytes
        self._patience = patience
        self._uploads = uploads
        self._login = login
        self._folder = local_folder(location)
        self._root = self._folder.as_uri() if self._folder else str(location).rstrip("/")
        try:
            if self._folder:
                make_private_folder(self._folder)
            self._store: ObjectStore = (
                LocalStore(prefix=self._folder) if self._folder else open_remote(str(location), allow_http)
            )
        except (BaseError, OSError, ValueError) as error:
            raise ArtifactError(
                f"cannot open the artifact store {location}: {_reason(error)}; check APC_ARTIFACTS_URL, or without it "
                "APC_DATA_DIR"
            ) from error

    @classmethod
    def open(cls, location: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Self:
        """Return the store at a folder or URL; as the constructor."""
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
        await self._store_as(artifact_hash, data)
        return artifact_hash

    async def put_stream(self, parts: AsyncIterable[bytes]) -> str:
        """Store what comes in parts, without holding it in memory: it is gathered in a file on this machine first.

        Raises:
            ArtifactTooLarge: more than `max_bytes`, as soon as so many have come; nothing is stored.
            ArtifactError: the store failed.
        """
        digest, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(prefix="apc-artifact-") as file:
            async for part in parts:
                size += len(part)
                if size > self._max_bytes:
                    raise ArtifactTooLarge(f"artifact of {size} bytes or more; the store takes {self._max_bytes}")
                await asyncio.to_thread(digest.update, part)
                await asyncio.to_thread(file.write, part)
            file.flush()
            artifact_hash = f"sha256:{digest.hexdigest()}"
            await self._store_as(artifact_hash, Path(file.name))
        return artifact_hash

    async def put_file(self, artifact_hash: str, file: Path) -> None:
        """Store a file whose hash the caller has computed. Raises ArtifactError when the store failed."""
        await self._store_as(artifact_hash, file)

    async def get(self, artifact_hash: str, *, max_bytes: int | None = None) -> bytes:
        """Return the bytes, verified against the hash.

        Raises:
            ArtifactMissing: no object with that hash.
            ArtifactCorrupt: the stored bytes have another hash.
            ArtifactTooLarge: more than `max_bytes`, by default the store's; nothing was read.
            ArtifactError: not a hash, or the store failed.
        """
        try:
            data = bytes(await (await self._open(artifact_hash, max_bytes)).bytes_async())
        except (BaseError, OSError) as error:
            raise _failed(f"read artifact {artifact_hash}", error) from error
        _check(artifact_hash, await _hash(data))
        return data

    async def check(self, artifact_hash: str) -> None:
        """Check that the stored bytes have this hash; they are read in parts, however large they are.

        Raises:
            ArtifactMissing, ArtifactCorrupt, ArtifactTooLarge, ArtifactError: as `get`.
        """
        digest = hashlib.sha256()
        try:
            async for part in (await self._open(artifact_hash, None)).stream(min_chunk_size=_PART_BYTES):
                await asyncio.to_thread(digest.update, part)
        except (BaseError, OSError) as error:
            raise _failed(f"read artifact {artifact_hash}", error) from error
        _check(artifact_hash, f"sha256:{digest.hexdigest()}")

    async def exists(self, artifact_hash: str) -> bool:
        """Return whether an object stands under that hash; its bytes are not verified. Raises ArtifactError."""
        try:
            await self._refuse_irregular(artifact_hash)
            await obstore.head_async(self._store, object_key(artifact_hash))
        except ArtifactCorrupt:
            return False
        except FileNotFoundError:
            return await self._is_there_after_all(artifact_hash)
        except (BaseError, OSError) as error:
            raise _failed(f"look for artifact {artifact_hash}", error) from error
        return True

    def uri(self, artifact_hash: str) -> str:
        """Return where the object of that hash stands, as an absolute URI. Raises ArtifactError for no hash."""
        return f"{self._root}/{object_key(artifact_hash)}"

    async def _open(self, artifact_hash: str, max_bytes: int | None) -> "GetResult":
        """Return the object, not yet read; the store hands over no more bytes than it says beforehand."""
        bound = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        await self._refuse_irregular(artifact_hash)
        try:
            result = await obstore.get_async(self._store, object_key(artifact_hash))
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise _failed(f"read artifact {artifact_hash}", error) from error
            raise ArtifactMissing(f"no artifact {artifact_hash} in {self._root}") from error
        if result.meta["size"] > bound:
            raise ArtifactTooLarge(f"artifact {artifact_hash} has {result.meta['size']} bytes; {bound} are allowed")
        return result

    async def _refuse_irregular(self, artifact_hash: str) -> None:
        """Refuse what is no regular file: a pipe, for instance, may never give a byte, or never end."""
        if self._folder is not None and not await asyncio.to_thread(
            is_plain_file, self._folder / object_key(artifact_hash)
        ):
            raise ArtifactCorrupt(f"artifact {artifact_hash} is no regular file")

    async def _is_there_after_all(self, artifact_hash: str) -> bool:
        """Find out by GET whether the whole bucket is missing: an answer to HEAD has no body."""
        try:
            await self._open(artifact_hash, None)
        except ArtifactMissing:
            return False
        except ArtifactTooLarge:
            return True
        except (BaseError, OSError) as error:
            raise _failed(f"look for artifact {artifact_hash}", error) from error
        return True

    async def _store_as(self, artifact_hash: str, data: bytes | Path) -> None:
        if self._uploads is not None:
            await self._upload(self._uploads, artifact_hash, data)
            return
        key = object_key(artifact_hash)
        try:
            try:
                await obstore.put_async(self._store, key, data, mode="create")
            except AlreadyExistsError:
                # The same bytes, unless a power cut tore them before they were synced.
                if not await self._holds(artifact_hash):
                    await obstore.put_async(self._store, key, data)
            if self._folder:
                await asyncio.to_thread(sync_below, self._folder, self._folder / key)
        except (BaseError, OSError) as error:
            raise _failed(f"store artifact {artifact_hash}", error) from error

    async def _upload(self, service: str, artifact_hash: str, data: bytes | Path) -> None:
        try:
            if not await self.exists(artifact_hash) or not await self._holds(artifact_hash):
                await self._repeat_upload(service, artifact_hash, data)
        except OSError as error:
            raise _failed(f"store artifact {artifact_hash}", error) from error

    async def _repeat_upload(self, service: str, artifact_hash: str, data: bytes | Path) -> None:
        """Upload, and repeat it while the service is away: at most as long as a remote store is asked again."""
        deadline = time.monotonic() + self._patience.total_seconds()
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return await asyncio.to_thread(upload, service, artifact_hash, data, self._login)
            except ArtifactServiceAway as error:
                if time.monotonic() + backoff.pause > deadline:
                    raise
                _log.warning("upload_repeated", artifact=artifact_hash, reason=str(error))
            await backoff.wait()

    async def _holds(self, artifact_hash: str) -> bool:
        try:
            await self.check(artifact_hash)
        except (ArtifactCorrupt, ArtifactTooLarge):
            return False
        return True


def open_artifacts(settings: BusSettings) -> ArtifactStore:
    """Return the store that the settings name. Raises ArtifactError."""
    return ArtifactStore(
        settings.artifacts,
        max_bytes=settings.max_artifact_bytes,
        allow_http=settings.artifacts_allow_http,
        uploads=settings.artifacts_upload_url,
        login=settings.broker_login,
    )


def open_remote(url: str, allow_http: bool, headers: Mapping[str, str] | None = None, **options: Any) -> ObjectStore:
    """Return the object store at a URL, with time-outs and retries of seconds.

    `headers` go with every request; `options` are those of the kind of store. Raises BaseError or ValueError.
    """
    client: ClientConfig = {**_TIMEOUTS, "allow_http": allow_http}
    if headers:
        client["default_headers"] = dict(headers)
    return from_url(url, client_options=client, retry_config=_RETRIES, **options)


def _check(artifact_hash: str, actual: str) -> None:
    if actual != artifact_hash:
        raise ArtifactCorrupt(f"artifact {artifact_hash} holds bytes with hash {actual}")


def _failed(what: str, error: Exception) -> ArtifactError:
    return ArtifactError(f"cannot {what}: {store_problem(error, 'APC_ARTIFACTS')}")


def store_problem(error: Exception, prefix: str) -> str:
    """Return what a store says without the request's whole history, and what to check in the settings PREFIX_URL and
    PREFIX_ALLOW_HTTP."""
    return f"{_reason(error)}{_remedy(error, prefix)}"


def _reason(error: Exception) -> str:
    """Return what a store says, without the request's whole history."""
    if (answer := _S3_ERROR.search(str(error))) is not None:
        return f"{answer[1]}: {answer[2].rstrip('.')}"
    return " ".join(_REQUEST.sub("", str(error).partition("\n\nDebug source")[0]).split()).rstrip(":")


def _remedy(error: Exception, prefix: str) -> str:
    text = str(error)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and what the bucket allows"
    if _NO_BUCKET in text:
        return f"; check the bucket in {prefix}_URL"
    if "builder error" in text:
        return f"; an http:// endpoint wants {prefix}_ALLOW_HTTP=true"
    if "S3 error" in text:
        return "; check AWS_ENDPOINT_URL, and whether the store is up"
    return ""


def local_folder(location: str | Path) -> Path | None:
    """Return the folder that a location names by its path or a `file://` URL; None of another place."""
    text = str(location)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return None if "://" in text else Path(location).absolute()


def object_key(artifact_hash: str) -> str:
    """Return where the object of a hash stands in its store. Raises ArtifactError for no hash."""
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


def is_plain_file(path: Path) -> bool:
    """Return whether the path is a regular file or does not exist; a link is neither."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True
