"""The MCP server of a door: its tools, its resources, whose tokens it takes, and how clients reach it."""

import os
import socket
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

from apc_mcp.acting import add_acting_tools
from apc_mcp.answers import NOTE
from apc_mcp.door import READS, Door, LogServer, add_tools
from apc_mcp.reading import ReadingTools, add_resources


class AccountTokens(TokenVerifier):
    """Verifies bearer tokens: those of the accounts of the web console, or the token of a loopback server."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the account of a token; None when nobody has it."""
        who = self._door.caller_of(token)
        if who is None:
            return None
        return AccessToken(token=token, client_id=who.name, subject=who.name, scopes=[who.role.value])


def make_server(door: Door) -> LogServer:
    """Return the server of a door: tools that read, tools that act where it has acts, and resources."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Door]) -> AsyncIterator[Door]:
        yield door

    is_over_http = door.authority is not None
    server = LogServer(
        door,
        "apc-bus",
        title="Log of an apc system",
        version=version("apc-bus"),
        instructions=_instructions(door),
        auth=AuthSettings(issuer_url=_NO_ISSUER, resource_server_url=None) if is_over_http else None,
        token_verifier=AccountTokens(door) if is_over_http else None,
        log_level="WARNING",
        lifespan=lifespan,
        subscriptions=False,
    )
    add_tools(server, door, ReadingTools(door), READS)
    add_resources(server, door)
    if door.acts is not None:
        add_acting_tools(server, door)
    return server


_NO_ISSUER = AnyHttpUrl("https://localhost")
"""Nobody issues tokens for this server but `apc user`; the SDK wants a name, and publishes it nowhere."""


def _instructions(door: Door) -> str:
    acts = "Tools that act ask the person to confirm first." if door.acts is not None else "It only reads."
    return f"The append-only log of a team of agents: runs, sessions, packets, approvals, proofs. {acts} {NOTE}"


# How clients reach a server: over standard input and output, or over HTTP; both with a limit for a message.

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
