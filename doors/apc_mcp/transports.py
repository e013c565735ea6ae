"""How clients reach a server: over standard input and output, or over HTTP; both with a limit for a message."""

import os
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

LARGEST_MESSAGE = 512 * 1024
"""Bytes of one message of a client."""
PATH = "/mcp"
_IDLE_SECONDS = 600.0
"""A session of the older protocol ends when nothing was asked for so long."""
_MOST_SESSIONS = 256
_CHUNK = 64 * 1024
_TOO_LONG = b"a message of more than %d bytes was left out\n" % LARGEST_MESSAGE


def http_app(server: MCPServer[Any], names: Collection[str]) -> Starlette:
    """Return the application at /mcp, which needs its lifespan. It answers to these host names alone."""
    hosts = [one for name in names for one in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=LARGEST_MESSAGE,
        session_idle_timeout=_IDLE_SECONDS,
        max_sessions=_MOST_SESSIONS,
        transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins),
    )


@contextmanager
def bounded_input() -> Iterator[socket.socket]:
    """Put a copy in the place of standard input that has no line longer than a message may be.

    Yields the copy's writing end: shutting it down ends the server as the end of its input does, whatever the client
    does. The SDK itself reads lines of any length, in a thread that nothing can stop.
    """
    given = os.dup(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(theirs.fileno(), 0)
        threading.Thread(target=_copy, args=(given, ours), name="mcp-input", daemon=True).start()
        try:
            yield ours
        finally:
            end_input(ours)
            os.dup2(given, 0)


def end_input(copied: socket.socket) -> None:
    """End the copy of standard input; idempotent."""
    try:
        copied.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended


def _copy(given: int, copied: socket.socket) -> None:
    """Copy line by line; of a line that is too long no byte is copied, and a sentence that is no message says so."""
    line = bytearray()
    is_left_out = False
    try:
        while chunk := os.read(given, _CHUNK):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line += end
                is_left_out = is_left_out or len(line) > LARGEST_MESSAGE
                copied.sendall(_TOO_LONG if is_left_out else line + b"\n")
                line.clear()
                is_left_out = False
            line += rest
            if len(line) > LARGEST_MESSAGE:
                line.clear()
                is_left_out = True
        end_input(copied)
    except OSError:
        return  # the server has ended
