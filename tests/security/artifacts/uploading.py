"""What a client of the artifact service sends, and the service without its comparison of hashes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from apc_cli.commands import artifact_uploads
from apc_cli.commands.artifact_uploads import ArtifactUploads, UploadLimits, server_of
from apc_web.http import open_listeners

DATA = b"a model" * 1000
HASH = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
PATH = f"/sha256/{HASH.removeprefix('sha256:')}"
LIMITS = UploadLimits(1 << 20, clients=3, clients_of_one_address=2, head_seconds=0.5, free_bytes=0)


@asynccontextmanager
async def service(folder: Path, limits: UploadLimits = LIMITS) -> AsyncIterator[str]:
    """The service over a folder; its URL."""
    async with serving(ArtifactUploads(folder, limits)) as url:
        yield url


@asynccontextmanager
async def serving(uploads: ArtifactUploads) -> AsyncIterator[str]:
    """A service that was made; its URL."""
    server = server_of(uploads, "127.0.0.1", 0)
    with open_listeners("127.0.0.1", 0) as listeners:
        running = asyncio.create_task(server.serve(listeners))
        try:
            yield f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
        finally:
            server.force_exit = server.should_exit = True
            await running


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def send(url: str, request: bytes) -> bytes:
    """Return the first line that comes back; nothing when the connection is cut without one."""
    reader, writer = await connect(url)
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return (await reader.readline()).strip()
    finally:
        writer.close()


def put(path: str, body: bytes, length: int | str | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n".encode() + body


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class AnyHash:
    """A hash that says of all bytes what the client says, and counts them."""

    def __init__(self, digits: str) -> None:
        self._digits = digits
        self.taken = 0

    def update(self, part: bytes) -> None:
        self.taken += len(part)

    def hexdigest(self) -> str:
        return self._digits


def believe_the_client(unguarded: pytest.MonkeyPatch, digits: str) -> AnyHash:
    """Take away the comparison of the bytes with the path."""
    believed = AnyHash(digits)
    unguarded.setattr(artifact_uploads, "hashlib", SimpleNamespace(sha256=lambda: believed))
    return believed
