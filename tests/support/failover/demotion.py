"""Postgres after a fail-over: connections that stay at a server that was demoted, addresses that lead elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import asyncpg

from apc_bus.database import open_pool

_TAKES_ALL = "SELECT NULL::text WHERE $1::bool"


@dataclass(slots=True)
class Demoted:
    """A database whose server refuses changes, until `restore`: then new connections are taken by its successor."""

    url: str
    _pools: list[asyncpg.Pool] = field(default_factory=list)

    async def pool(self, max_size: int = 2) -> asyncpg.Pool:
        """Return a pool whose connections are to the server that was demoted, and remain so."""
        with patch("apc_bus.database._REFUSED_AS", _TAKES_ALL):  # it was not demoted when they were made
            pool = await open_pool(self.url, min_size=max_size, max_size=max_size)
        self._pools.append(pool)
        return pool

    async def demote(self) -> None:
        """Refuse changes over new connections."""
        await self._alter("SET default_transaction_read_only = on")

    async def restore(self) -> None:
        """Take changes over new connections."""
        await self._alter("RESET default_transaction_read_only")

    def close(self) -> None:
        """Cut the pools that were given."""
        for pool in self._pools:
            pool.terminate()

    async def _alter(self, what: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("SET default_transaction_read_only = off")
            name = await connection.fetchval("SELECT quote_ident(current_database())")
            await connection.execute(f"ALTER DATABASE {name} {what}")
        finally:
            await connection.close()


class Switch:
    """A TCP address whose target can change: new connections go there, old ones stay where they are.

    Attributes:
        target: host and port, or the path of a Unix socket; None = who connects gets no answer.
        port: where it listens, on 127.0.0.1.
        loses: the server hears what a client says after these words were heard so often before, and its answer is
            lost with the connection; once.
    """

    def __init__(self, target: tuple[str, int] | str | None) -> None:
        self.target = target
        self.port = 0
        self.loses: tuple[bytes, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(cls, target: tuple[str, int] | str | None) -> "AsyncIterator[Switch]":
        """Listen; leaving cuts what goes through it."""
        switch = cls(target)
        server = await asyncio.start_server(switch._serve, "127.0.0.1", 0)
        switch.port = server.sockets[0].getsockname()[1]
        try:
            yield switch
        finally:
            server.close()
            for task in switch._tasks:
                task.cancel()
            await asyncio.gather(*switch._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            await asyncio.Event().wait()
        if isinstance(self.target, str):
            there, back = await asyncio.open_unix_connection(self.target)
        else:
            assert self.target is not None
            there, back = await asyncio.open_connection(*self.target)
        try:
            is_lost = asyncio.Event()
            await asyncio.gather(
                _pass_on(reader, back, lambda said: self._listen(said, is_lost)),
                _pass_on(there, writer, lambda _: not is_lost.is_set()),
            )
        finally:
            back.transport.abort()

    def _listen(self, said: bytes, is_lost: asyncio.Event) -> bool:
        if self.loses is not None and self.loses[0] in said:
            words, before = self.loses
            self.loses = (words, before - 1) if before else None
            if self.loses is None:
                is_lost.set()
        return True


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_pass: Callable[[bytes], bool]
) -> None:
    with suppress(OSError):
        while (data := await reader.read(1 << 16)) and may_pass(data):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


def place_of(url: str) -> tuple[str, int] | str:
    """Return where the server of a URL listens, for a Switch."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder.startswith("/"):
        return f"{folder}/.s.PGSQL.{parse_qs(parts.query).get('port', ['5432'])[0]}"
    return parts.hostname or "127.0.0.1", parts.port or 5432


def by_way_of(url: str, *ports: int, user: str | None = None) -> str:
    """Return a URL that leads to the same database over these ports of 127.0.0.1."""
    parts = urlsplit(url)
    password = f":{parts.password}" if parts.password and user is None else ""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"postgresql://{user or parts.username or 'postgres'}{password}@{hosts}{parts.path}"
