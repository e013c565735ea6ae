"""The MCP server of a door: its tools, its resources, and whose tokens it takes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

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
