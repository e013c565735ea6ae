"""Test support: an MCP server over HTTP with accounts, as `apc serve mcp --listen` makes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2 as httpx
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from apc_mcp import Door, make_server
from apc_mcp.server import PATH, http_app
from apc_web.access import AccountRole, Accounts, UserRecord, UsersDocument, UsersFile, write_users
from apc_web.http import make_server as make_http_server
from apc_web.http import open_listeners
from apc_web.local_names import LOOPBACK_NAMES
from apc_web.route_services import Acts, Services

PEOPLE = {"vera": AccountRole.VIEWER, "rosa": AccountRole.READER, "olga": AccountRole.OPERATOR}


def token_of(name: str) -> str:
    """Return the API token of a person."""
    return f"token-of-{name}"


def write_people(file: Path, people: dict[str, AccountRole] | None = None) -> None:
    """Write the file of accounts."""
    users = {
        name: UserRecord(role=role, tokens={"t": sha256(token_of(name).encode()).hexdigest()})
        for name, role in (PEOPLE if people is None else people).items()
    }
    write_users(file, UsersDocument(users=users))


@dataclass
class Served:
    """A server and the way to it."""

    url: str
    users: Path

    @asynccontextmanager
    async def client(self, name: str, **options: Any) -> AsyncIterator[Client]:
        """Open a client with the token of a person."""
        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {token_of(name)}"}, timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http), **options) as opened,
        ):
            yield opened

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        """Send a message as it is, as olga unless `authorization` says otherwise."""
        given = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {token_of('olga')}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with httpx.AsyncClient(timeout=30) as client:
            if isinstance(body, bytes):
                return await client.post(self.url, content=body, headers={"content-type": "application/json", **given})
            return await client.post(self.url, json=body, headers=given)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@asynccontextmanager
async def served(services: Services, users: Path, acts: Acts | None = None) -> AsyncIterator[Served]:
    """Serve the log behind a web console's services until the context is left."""
    write_people(users)
    door = Door(services, services.state, authority=Accounts(UsersFile(users)), acts=acts)
    with open_listeners("127.0.0.1", 0) as listeners:
        port = listeners[0].getsockname()[1]
        app = http_app(make_server(door), LOOPBACK_NAMES)
        server = make_http_server(app, "127.0.0.1", port, lifespan=True, graceful_seconds=1)
        serving = asyncio.create_task(server.serve(listeners))
        try:
            yield Served(f"http://127.0.0.1:{port}{PATH}", users)
        finally:
            server.should_exit = True
            await serving
