"""Take acts from other processes of the same user, and publish them in this system as its operator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from apc_bus import headers
from apc_bus.errors import BusError
from apc_bus.port import Bus, Publication, QueueDepth
from apc_bus.topology import INGRESS, RECEIPTS, gate_queue, log_queue
from apc_client.acts.act_lines import (
    INBOXES,
    LONGEST_LINE,
    NoAct,
    decode_act,
    encode_depths,
    encode_line,
    question_of,
)
from apc_client.acts.act_socket import bind_socket, is_own_peer, remove_socket
from apc_client.acts.inbox_depths import inbox_depths
from apc_web.errors import InputUnusable

MOST_CONNECTIONS = 32
"""At the same time; further ones are closed at once."""
PATIENCE_SECONDS = 10.0
"""How long a client may be silent."""
_log = structlog.get_logger("apc_client")


class ActServer:
    """Answers the connections of one socket.

    Args:
        bus: connected as the operator of the system; the gate judges what comes through it.
        shards: of the system.
    """

    def __init__(self, bus: Bus, shards: int) -> None:
        self._bus = bus
        self._shards = shards
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one more connection."""
        if len(self._connections) >= MOST_CONNECTIONS or not is_own_peer(writer.get_extra_info("socket")):
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End every connection."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(encode_line({"user": self._bus.user, "shards": self._shards}))
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.drain()
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                question = question_of(line)
                if question is not None:
                    writer.write(encode_depths(await self._depths(*question)))
                else:
                    writer.write(encode_line({"error": await self._act(line)}))
        except (OSError, ValueError, TimeoutError):
            return  # it left, was silent, or sent a line without an end
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _depths(self, kind: str, agents: list[str]) -> dict[str, QueueDepth]:
        if kind == INBOXES:
            return await inbox_depths(self._bus, agents)
        names = [queue(shard) for shard in range(self._shards) for queue in (gate_queue, log_queue)]
        return {name: await self._bus.depth(name) for name in names}

    async def _act(self, line: bytes) -> str | None:
        """Publish an act; return why not, None when it cannot be lost any more."""
        try:
            for kind, shard, message in decode_act(line, self._bus.user, self._shards):
                exchange = RECEIPTS if kind == headers.TYPE_RECEIPTS else INGRESS
                await self._bus.publish(Publication(exchange, str(shard), message))
        except (NoAct, BusError) as error:
            return str(error)
        return None


@asynccontextmanager
async def serve_acts(folder: Path, bus: Bus, shards: int) -> AsyncIterator[None]:
    """Take acts through the socket of a data folder while the context is open.

    Where there can be no socket, a warning says so and the system goes on without acts.
    """
    server = ActServer(bus, shards)
    try:
        bound = bind_socket(folder)
        listening = await asyncio.start_unix_server(server.accept, sock=bound, limit=LONGEST_LINE)
    except (OSError, InputUnusable) as error:
        _log.warning("no_acts", folder=str(folder), reason=str(error))
        yield
        return
    try:
        yield
    finally:
        listening.close()
        await server.close()
        remove_socket(folder)
