"""A broker that hands its consumers any bytes: as much of AMQP 0-9-1 as the bus needs, and no routing."""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Self

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame
from pamqp.common import FieldTable
from tests.support.hostile_messages import RawMessage
from tests.support.raw_amqp import FRAME, FRAME_END, HEADER, METHOD, MOST

Feed = Iterator[RawMessage]
"""The messages of a queue, as long as there are some."""
_DELIVERY = struct.Struct(">QB")
_HEARTBEAT = b"\x08\0\0\0\0\0\0" + FRAME_END
_AT_ONCE = 50
_CAPABILITIES = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")


@dataclass
class Queue:
    """What one queue still holds, and what became of the rest."""

    feed: Feed
    consumers: int = 0
    """Consumers so far: more than one, and one of them has ended."""
    open: dict[int, RawMessage] = field(default_factory=dict)
    """Handed over and not settled, by the tag of its consumer."""
    acknowledged: int = 0
    dead: int = 0
    returned: list[RawMessage] = field(default_factory=list)
    """Given back to be delivered again."""
    is_empty: bool = False

    @property
    def is_done(self) -> bool:
        """Whether all of it was handed over and settled."""
        return self.is_empty and not self.open

    def settle(self, tag: int, *, multiple: bool, outcome: str) -> None:
        """Take what a consumer says of a message, or of all up to it."""
        tags = list(takewhile(lambda one: one <= tag, self.open)) if multiple else [tag]
        for one in tags:
            message = self.open.pop(one)
            if outcome == "ack":
                self.acknowledged += 1
            elif outcome == "dead":
                self.dead += 1
            else:
                self.returned.append(message)


class ScriptedBroker:
    """Serves feeds by the names of their queues; confirms every publish, or returns it before.

    Args:
        published: told of each publish: exchange, routing key, content header and body.
        returning: gives the message that comes back for a publish to an exchange; None = it is taken.
    """

    def __init__(
        self,
        published: Callable[[str, str, bytes, bytes], None] = lambda *content: None,
        returning: Callable[[bytes], RawMessage | None] = lambda header: None,
    ) -> None:
        self.published = published
        self.returning = returning
        self.queues: dict[str, Queue] = {}
        self.too_long = 0
        """Frames beyond the bound: a broker closes the connection."""
        self.errors: list[BaseException] = []
        """Faults of the test itself."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"amqp://orchestrator:pw@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def note(self, done: asyncio.Task[None]) -> None:
        """Note how a task has ended."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.errors.append(error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self.note)
        try:
            await connection.run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            connection.close()
            self._tasks.discard(task)


class _Connection:
    def __init__(self, broker: ScriptedBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self._consuming: dict[int, tuple[Queue, asyncio.Event, asyncio.Task[None]]] = {}
        self._prefetch: dict[int, int] = {}
        self._tags: Counter[int] = Counter()
        self._publish: tuple[bytes, list[bytes], int] | None = None

    def close(self) -> None:
        for queue, _, task in self._consuming.values():
            task.cancel()
            queue.returned += queue.open.values()
            queue.open.clear()
        self._writer.close()

    async def run(self) -> None:
        await self._reader.readexactly(8)
        capabilities: FieldTable = dict.fromkeys(_CAPABILITIES, True)
        self._answer(commands.Connection.Start(0, 9, {"capabilities": capabilities}, "PLAIN", "en_US"), 0)
        beating = asyncio.create_task(self._beat())
        rest = b""
        try:
            while data := await self._reader.read(1 << 16):
                rest = self._split(rest + data)
                await self._writer.drain()
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._writer.write(_HEARTBEAT)

    def _split(self, data: bytes) -> bytes:
        position = 0
        while len(data) - position >= FRAME.size + 1:
            kind, channel, size = FRAME.unpack_from(data, position)
            end = position + FRAME.size + size + 1
            if size + FRAME.size + 1 > MOST:
                self._broker.too_long += 1
                raise ConnectionError("a frame beyond the bound")
            if end > len(data):
                break
            self._take(kind, channel, data[position + FRAME.size : end - 1])
            position = end
        return data[position:]

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            self._take_method(channel, payload)
        elif self._publish is not None:
            method, pieces, missing = self._publish
            if kind == HEADER:
                missing = int.from_bytes(payload[4:12], "big")
            else:
                missing -= len(payload)
            pieces.append(payload)
            self._publish = (method, pieces, missing)
            if missing == 0:
                self._publish = None
                self._confirm(channel, method, pieces)

    def _confirm(self, channel: int, method: bytes, pieces: list[bytes]) -> None:
        exchange = method[7 : 7 + method[6]]
        key = method[8 + len(exchange) : 8 + len(exchange) + method[7 + len(exchange)]]
        self._broker.published(exchange.decode(), key.decode(), pieces[0], b"".join(pieces[1:]))
        self._tags[channel] += 1
        returned = self._broker.returning(pieces[0])
        if returned is not None:
            self._writer.write(returned.returned(exchange, channel))
        self._answer(commands.Basic.Ack(self._tags[channel], False), channel)

    def _take_method(self, channel: int, payload: bytes) -> None:
        method = payload[:4]
        if method == b"\0\x3c\0\x28":
            self._publish = (payload, [], 1)
        elif method in (b"\0\x3c\0\x50", b"\0\x3c\0\x78"):
            tag, bits = _DELIVERY.unpack_from(payload, 4)
            outcome = "ack" if method[3] == 0x50 else "again" if bits & 2 else "dead"
            queue, room, _ = self._consuming[channel]
            queue.settle(tag, multiple=bool(bits & 1), outcome=outcome)
            room.set()
        else:
            read = pamqp.frame.unmarshal(FRAME.pack(METHOD, channel, len(payload)) + payload + FRAME_END)[2]
            assert isinstance(read, Frame)
            self._take_question(channel, read)

    def _take_question(self, channel: int, asked: Frame) -> None:
        match asked:
            case commands.Connection.StartOk():
                self._answer(commands.Connection.Tune(2047, MOST, 0), channel)
            case commands.Connection.Open():
                self._answer(commands.Connection.OpenOk(), channel)
            case commands.Channel.Open():
                self._answer(commands.Channel.OpenOk(), channel)
            case commands.Confirm.Select():
                self._answer(commands.Confirm.SelectOk(), channel)
            case commands.Basic.Qos():
                self._prefetch[channel] = asked.prefetch_count
                self._answer(commands.Basic.QosOk(), channel)
            case commands.Basic.Consume():
                self._answer(commands.Basic.ConsumeOk(asked.consumer_tag), channel)
                self._consume(channel, asked.queue)
            case commands.Queue.Declare():
                self._answer(commands.Queue.DeclareOk(asked.queue, 0, 1), channel)
            case commands.Channel.Close():
                self._answer(commands.Channel.CloseOk(), channel)
            case commands.Connection.Close():
                self._answer(commands.Connection.CloseOk(), channel)

    def _answer(self, frame: Frame, channel: int) -> None:
        self._writer.write(pamqp.frame.marshal(frame, channel))

    def _consume(self, channel: int, name: str) -> None:
        queue = self._broker.queues.setdefault(name, Queue(iter(())))
        queue.consumers += 1
        room = asyncio.Event()
        feeding = asyncio.create_task(self._feed(channel, queue, room))
        feeding.add_done_callback(self._broker.note)
        self._consuming[channel] = queue, room, feeding

    async def _feed(self, channel: int, queue: Queue, room: asyncio.Event) -> None:
        prefetch, tag = self._prefetch.get(channel) or 1000, 0
        while not queue.is_empty:
            parts: list[bytes] = []
            while len(queue.open) < prefetch and len(parts) < _AT_ONCE:
                message = next(queue.feed, None)
                if message is None:
                    queue.is_empty = True
                    break
                tag += 1
                queue.open[tag] = message
                parts.append(message.delivered(tag, channel))
            self._writer.write(b"".join(parts))
            await self._writer.drain()
            if len(queue.open) >= prefetch:
                room.clear()
                await room.wait()
