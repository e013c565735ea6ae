"""A client below every library: it writes the bytes of a message's frames as they are given to it."""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame

FRAME = struct.Struct(">BHI")
CONTENT = struct.Struct(">HHQ")
"""Class, weight, body size; flags and properties follow."""
FRAME_END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
CHANNEL = 1
CONFIRMED = "confirmed"
MOST = 131_072
"""Bytes of a frame that a broker takes, by default."""


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    """Return a frame with this payload."""
    return FRAME.pack(kind, channel, len(payload)) + payload + FRAME_END


def short(data: bytes) -> bytes:
    """Return a short string of these bytes."""
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """Return a long string, or the content of a table or an array, with its length."""
    return struct.pack(">I", len(data)) + data


def method(of_class: int, number: int) -> bytes:
    """Return how the payload of a method begins: its class, its number, and the reserved field that most have."""
    return struct.pack(">HHH", of_class, number, 0)


def publish(exchange: bytes, key: bytes) -> bytes:
    """Return the payload of basic.publish."""
    return method(60, 40) + short(exchange) + short(key) + b"\0"


def content(properties: bytes, body: bytes) -> bytes:
    """Return the payload of a content header: flags and properties as they are."""
    return CONTENT.pack(60, 0, len(body)) + properties


class RawClient:
    """One connection to a broker with one channel; it connects again when the broker closes it.

    Args:
        confirms: whether the channel is in confirm mode, as `publish` needs it.
    """

    def __init__(self, url: str, *, confirms: bool = True) -> None:
        self._url, self._confirms = urlsplit(url), confirms
        self._socket: socket.socket | None = None
        self._rest = b""

    @property
    def user(self) -> str:
        """The broker user."""
        return unquote(self._url.username or "guest")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection; the next publish opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def publish(self, exchange: str, key: bytes, properties: bytes, body: bytes, pieces: Sequence[int] = ()) -> str:
        """Publish one message; return CONFIRMED or what the broker says instead.

        Args:
            properties: the flags and the property list, as they are.
            pieces: the sizes of the first body frames, zero is one too.
        """
        if self._socket is None:
            self._connect()
        parts = [frame(METHOD, publish(exchange.encode(), key)), frame(HEADER, content(properties, body))]
        position = 0
        for size in pieces:
            if position < len(body):  # a frame after the last byte belongs to no message
                parts.append(frame(BODY, body[position : position + size]))
                position += size
        rest = body[position:]
        parts += [frame(BODY, rest[at : at + MOST - 8]) for at in range(0, len(rest), MOST - 8)]
        try:
            self._write(b"".join(parts))
            answer = self._read()
        except OSError as error:
            self.close()
            return f"connection lost: {error!r}"
        if isinstance(answer, commands.Basic.Ack):
            return CONFIRMED
        if not isinstance(answer, commands.Basic.Nack):
            self.close()
        return f"{answer.name} {getattr(answer, 'reply_text', '')}"

    def call(self, payload: bytes) -> Frame:
        """Send the payload of a method; return the answer, which may be a Channel.Close: then the next call connects.

        Raises OSError when the broker closes the connection.
        """
        if self._socket is None:
            self._connect()
        self._write(frame(METHOD, payload))
        answer = self._read()
        if isinstance(answer, commands.Channel.Close):
            self.close()
        return answer

    def flood(self, exchange: str, key: bytes, body: bytes, times: int) -> None:
        """Write a message so many times and read nothing."""
        if self._socket is None:
            self._connect()
        parts = [frame(METHOD, publish(exchange.encode(), key)), frame(HEADER, content(b"\0\0", body))]
        parts += [frame(BODY, body[at : at + MOST - 8]) for at in range(0, len(body), MOST - 8)]
        for _ in range(times):
            self._write(b"".join(parts))

    def _connect(self) -> None:
        host, port = self._url.hostname or "localhost", self._url.port or 5672
        self._socket, self._rest = socket.create_connection((host, port), timeout=20), b""
        self._write(b"AMQP\0\0\x09\x01")
        self._read()
        user, password = (unquote(text or "guest") for text in (self._url.username, self._url.password))
        self._send(commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"), 0)
        tune = self._read()
        assert isinstance(tune, commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self._send(commands.Connection.Open(unquote(self._url.path[1:]) or "/"), 0)
        self._read()
        openings = (commands.Channel.Open(), *((commands.Confirm.Select(),) if self._confirms else ()))
        for opening in openings:
            self._send(opening, CHANNEL)
            self._read()

    def _send(self, method: Frame, channel: int) -> None:
        self._write(pamqp.frame.marshal(method, channel))

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def _read(self) -> Frame:
        """Return the next method; an end of the connection is an OSError."""
        assert self._socket is not None
        while True:
            if len(self._rest) >= FRAME.size:
                kind, _, size = FRAME.unpack_from(self._rest)
                end = FRAME.size + size + 1
                if len(self._rest) >= end:
                    data, self._rest = self._rest[:end], self._rest[end:]
                    if kind == METHOD:
                        read = pamqp.frame.unmarshal(data)[2]
                        assert isinstance(read, Frame)
                        return read
                    continue
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("the broker has closed it")
            self._rest += received
