"""`apc serve artifacts`: the only process that writes artifacts, into a folder or an S3-like store that agents read.

`PUT /sha256/<64 hex digits>` with a Content-Length: the body is written to its own file while it is hashed, and
moved or copied into the store when the hash matches the path. An existing object is never overwritten. Every wait for a
client has a time limit.
"""

import asyncio
import base64
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from apc_bus.artifacts import ArtifactStore, object_key
from apc_bus.errors import ArtifactCorrupt, ArtifactError, BusUnavailable
from apc_bus.folders import make_private_folder, sync_below
from apc_bus.settings import BusSettings
from apc_bus.telemetry import get_logger
from apc_cli.errors import InputUnusable
from apc_web.http import HttpLimits, StoppableServer, listen_address, make_server, open_listeners

log = get_logger(__name__)

_PATH = re.compile(r"/sha256/([0-9a-f]{64})")
_MOST_LOGINS = 1_000
"""Logins that need no question to the broker for a while."""
LoginCheck = Callable[[str, str], Awaitable[bool]]
"""(user, password) -> whether they are valid. Raises BusUnavailable."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits of one client and of all clients together."""

    max_bytes: int
    """Size of one artifact."""
    clients: int = 32
    """Connections at the same time; further ones are told to come back."""
    clients_of_one_address: int = 8
    head_seconds: float = 10.0
    """Time for the head of a request."""
    farewell_seconds: float = 2.0
    """Time for what a client still sends when it is answered."""
    bytes_per_second: int = 256 << 10
    """A body may take as long as it needs at this rate, plus the time for a head."""
    login_seconds: float = 60.0
    """How long a login is cached; a revoked agent may go on this long."""
    free_bytes: int = 1 << 30
    """Space that must stay free on the store's disk."""


class _Refused(Exception):
    """A request that is answered with a status and a reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Space:
    """Space that is set aside for one body; `left` is what was not written yet."""

    def __init__(self, uploads: "ArtifactUploads", size: int) -> None:
        self._uploads = uploads
        self.left = size

    def use(self, size: int) -> None:
        """Note that bytes of the body are on the disk."""
        self.left -= size
        self._uploads.note_written(size)


class ArtifactUploads:
    """Takes uploads into a store.

    Args:
        folder: of the store; with `remote`, the folder in which a body waits until its hash is known.
        limits: of a client, and of all.
        may_log_in: which clients may upload; without it anybody.
        remote: a store that is no folder.
    """

    def __init__(
        self,
        folder: Path,
        limits: UploadLimits,
        may_log_in: LoginCheck | None = None,
        remote: ArtifactStore | None = None,
    ) -> None:
        self._folder = folder
        self._remote = remote
        self._may_log_in = may_log_in
        self._known: dict[tuple[str, bytes], float] = {}
        self._incoming = folder / "incoming"
        self.limits = limits
        self._store = remote or ArtifactStore(folder, max_bytes=limits.max_bytes)
        self._unwritten = 0
        """Bytes of uploads that were let in and are not on the disk yet."""
        make_private_folder(self._incoming)
        for left_over in self._incoming.iterdir():
            left_over.unlink()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        request = Request(scope, receive)
        try:
            status, reason = await self._outcome(request)
        except ClientDisconnect:
            return
        answer = PlainTextResponse(f"{reason}\n", status, {"Connection": "close"})
        await answer(scope, receive, partial(self._say, request, send))

    async def _outcome(self, request: Request) -> tuple[HTTPStatus, str]:
        try:
            return await self._take(request)
        except _Refused as refused:
            return refused.status, str(refused)
        except TimeoutError:
            return HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly, or not whole"
        except ArtifactError as error:
            log.error("artifact_not_stored", error=str(error))
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        except OSError as error:
            log.error("artifact_not_stored", error=str(error))
            return HTTPStatus.INSUFFICIENT_STORAGE, f"the store failed: {error.strerror}"

    async def _take(self, request: Request) -> tuple[HTTPStatus, str]:
        path = request.scope["path"]
        if request.method == "GET" and path in ("/healthz", "/readyz"):
            return HTTPStatus.OK, "ready"
        digits = _digits(request.method, path)
        user = await self._user(request.headers.get("authorization", ""))
        size = self._size(request)
        if await self._is_there(f"sha256:{digits}"):
            return HTTPStatus.OK, "it is there"
        with self._space_for(size) as space:
            async with asyncio.timeout(self.limits.head_seconds + size / self.limits.bytes_per_second):
                await self._receive(request, space, digits)
        log.info("artifact_stored", artifact=f"sha256:{digits}", bytes=size, user=user)
        return HTTPStatus.CREATED, "stored"

    async def _user(self, authorization: str) -> str | None:
        """Return the authenticated user; None when no login is required."""
        if self._may_log_in is None:
            return None
        user, password = _basic(authorization)
        login, now = (user, hashlib.sha256(password.encode()).digest()), time.monotonic()
        if self._known.get(login, 0.0) > now:
            return user
        try:
            if not await self._may_log_in(user, password):
                raise _Refused(HTTPStatus.UNAUTHORIZED, "the broker does not know this user or its password")
        except BusUnavailable as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        if len(self._known) >= _MOST_LOGINS:
            self._known.clear()
        self._known[login] = now + self.limits.login_seconds
        return user

    def _size(self, request: Request) -> int:
        text = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers or not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length, and no Transfer-Encoding")
        size = int(text)
        if size > self.limits.max_bytes:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{self.limits.max_bytes} bytes are allowed")
        return size

    @contextmanager
    def _space_for(self, size: int) -> Iterator["_Space"]:
        """Set space aside for a body, so that the bodies of several clients do not count on the same."""
        if shutil.disk_usage(self._folder).free - self._unwritten - size < self.limits.free_bytes:
            raise _Refused(HTTPStatus.INSUFFICIENT_STORAGE, "the disk of the store is nearly full")
        space = _Space(self, size)
        self._unwritten += size
        try:
            yield space
        finally:
            self._unwritten -= space.left

    async def _is_there(self, artifact_hash: str) -> bool:
        try:
            if not await self._store.exists(artifact_hash):
                return False
            await self._store.check(artifact_hash)
        except ArtifactCorrupt as error:
            raise _Refused(
                HTTPStatus.CONFLICT, f"{error}; nothing is overwritten here: an operator takes it away"
            ) from error
        except ArtifactError as error:
            raise _Refused(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error
        return True

    async def _receive(self, request: Request, space: "_Space", digits: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(descriptor, "wb") as file:
                digest = hashlib.sha256()
                async for part in request.stream():
                    digest.update(part)
                    await asyncio.to_thread(_write, file, part)
                    space.use(len(part))
            if digest.hexdigest() != digits:
                raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"these bytes have the hash {digest.hexdigest()}")
            if self._remote is not None:
                await self._remote.put_file(f"sha256:{digits}", Path(name))
            else:
                await asyncio.to_thread(self._place, Path(name), digits)
        finally:
            os.unlink(name)

    def note_written(self, size: int) -> None:
        """Note that bytes are on the disk, which no longer has them free."""
        self._unwritten -= size

    def _place(self, file: Path, digits: str) -> None:
        """Give a complete file its final name, unless another client was faster with the same bytes."""
        sync_below(file, file)
        place = self._folder / object_key(f"sha256:{digits}")
        make_private_folder(place.parent)
        with suppress(FileExistsError):
            os.link(file, place)
        sync_below(self._folder, place)

    async def _say(self, request: Request, send: Send, message: Message) -> None:
        """Send a part of the answer, and read on for a while before the end closes the connection.

        A client that is still sending would lose the answer with it.
        """
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: the body was read to its end
                async with asyncio.timeout(self.limits.farewell_seconds):
                    async for _ in request.stream():
                        pass
            message = {**message, "body": b""}
        await send(message)


def _write(file: BinaryIO, part: bytes) -> None:
    file.write(part)
    file.flush()


def _basic(authorization: str) -> tuple[str, str]:
    """Return user and password of HTTP's Basic authentication."""
    kind, _, text = authorization.partition(" ")
    try:
        user, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        user, colon, password = "", "", ""
    if kind.lower() != "basic" or not (user and colon and password):
        raise _Refused(HTTPStatus.UNAUTHORIZED, "give the agent's user and password at the broker (Basic)")
    return user, password


def _digits(method: str, path: str) -> str:
    if method != "PUT":
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "PUT alone")
    match = _PATH.fullmatch(path)
    if match is None:
        raise _Refused(HTTPStatus.NOT_FOUND, "PUT /sha256/<64 hex digits>")
    return match[1]


def uploads_of(settings: BusSettings, may_log_in: LoginCheck | None) -> ArtifactUploads:
    """Return what takes uploads into the store of APC_ARTIFACTS_URL, a folder or an S3-like store.

    Raises:
        ArtifactError: the store cannot be opened.
        OSError: its folder, or the one in which bodies wait (in APC_DATA_DIR), cannot be made.
    """
    location, limits = settings.artifacts, UploadLimits(settings.max_artifact_bytes)
    if "://" not in location or location.startswith("file://"):
        return ArtifactUploads(Path(location.removeprefix("file://")).absolute(), limits, may_log_in)
    remote = ArtifactStore(location, max_bytes=limits.max_bytes, allow_http=settings.artifacts_allow_http)
    return ArtifactUploads(settings.data_dir.absolute() / "uploads", limits, may_log_in, remote)


def login_check(settings: BusSettings, host: str) -> LoginCheck | None:
    """Return the login check by the broker of APC_AMQP_URL.

    Raises:
        InputUnusable: there is no broker, and other machines can reach the address.
    """
    if settings.amqp_nodes:
        from apc_bus.rabbit.administration import may_log_in

        return partial(may_log_in, settings)
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise InputUnusable(f"--listen {host}: set APC_AMQP_URL, the broker that checks the logins of agents")
    return None


def server_of(uploads: ArtifactUploads, host: str, port: int) -> StoppableServer:
    """Return the server that takes uploads, within their limits."""
    limits = uploads.limits
    longest = limits.head_seconds + limits.max_bytes / limits.bytes_per_second
    bounds = HttpLimits(limits.clients, limits.clients_of_one_address, limits.head_seconds, longest + 1)
    return make_server(uploads, host, port, limits=bounds, media_type=None)


async def serve_artifacts(listen: str) -> None:
    """Take uploads until the process is told to stop. Raises InputUnusable."""
    settings = BusSettings()
    host, port = listen_address(listen)
    try:
        uploads = uploads_of(settings, login_check(settings, host))
    except OSError as error:
        raise InputUnusable(f"cannot keep artifacts at {settings.artifacts}: {error.strerror}") from error
    with open_listeners(host, port) as listeners:
        log.info("artifacts_taken", listen=listen)
        await server_of(uploads, host, port).serve(listeners)
