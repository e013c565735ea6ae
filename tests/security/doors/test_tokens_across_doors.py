"""Three doors over one system, A2A, MCP and the web API: the token of one opens no other."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg
import httpx2 as httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from tests.doors.a2a.conftest import Behind, behind, desk, make_tokens
from tests.doors.mcp.serving import INITIALIZE, Served, served

from apc_a2a import access
from apc_a2a.server import CardKey
from apc_contracts.contract.contract import load_contract
from apc_web.access import AccountRole, Accounts, UserRecord, UsersDocument, UsersFile, write_users
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.http import make_server, open_listeners
from apc_web.live import Feed
from apc_web.local_token import LocalToken
from apc_web.route_services import Services

__all__ = ["behind"]

STORED = "SELECT sum(next_seq) FROM apc_log.shards"
LOCAL = "token-of-this-machine"


@dataclass
class Doors:
    """The doors that answer, and a good token of each."""

    urls: dict[str, str]
    tokens: dict[str, str]
    pool: asyncpg.Pool
    files: dict[str, Path]

    async def status(self, door: str, authorization: str, **headers: str) -> int:
        """Present something at a door; return the HTTP status."""
        given = {"Authorization": authorization, "Accept": "application/json, text/event-stream", **headers}
        async with httpx.AsyncClient(base_url=self.urls[door], headers=given, timeout=30) as http:
            if door == "mcp":
                return (await http.post("/mcp", json=INITIALIZE)).status_code
            if door == "a2a":
                body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
                return (await http.post("/a2a/jsonrpc", json=body, headers={"A2A-Version": "1.0"})).status_code
            return (await http.get("/api/v1/sessions")).status_code


def write_olga(file: Path, token: str) -> None:
    """Write accounts with an operator who has this token."""
    digest = sha256(token.encode()).hexdigest()
    write_users(file, UsersDocument(users={"olga": UserRecord(role=AccountRole.OPERATOR, tokens={"t": digest})}))


@asynccontextmanager
async def web_door(services: Services, authority: Accounts | LocalToken) -> AsyncIterator[str]:
    """Serve the web API; yield its address."""
    with open_listeners("127.0.0.1", 0) as listeners:
        port = listeners[0].getsockname()[1]
        server = make_server(AccessGuard(make_app(services), authority), "127.0.0.1", port, graceful_seconds=1)
        serving = asyncio.create_task(server.serve(listeners))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await serving


def issued_by(key: ed25519.Ed25519PrivateKey) -> str:
    """Return a JSON Web Token for ida at this door."""
    now = datetime.now(UTC)
    claims: dict[str, Any] = {"iss": "https://issuer", "aud": "door-1", "sub": "ida", "exp": now + timedelta(hours=1)}
    return jwt.encode(claims, key, "EdDSA", {"kid": CardKey(key).public_jwk["kid"]})


@pytest.fixture
async def doors(behind: Behind, tmp_path: Path) -> AsyncIterator[Doors]:
    key, keys = ed25519.Ed25519PrivateKey.generate(), tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [CardKey(key).public_jwk]}))
    issuer = {"a2a_jwt_issuer": "https://issuer", "a2a_jwt_audience": "door-1", "a2a_jwks_file": keys}
    files = {name: tmp_path / f"{name}-users.json" for name in ("web", "mcp")}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(behind(desk(), **issuer))
        pool, contract = running.system.pool, load_contract()
        services = Services(pool, contract, lambda _: None, pool, Feed(pool, contract), is_embedded=True)
        mcp: Served = await stack.enter_async_context(served(services, files["mcp"]))
        tokens = {name: f"token-of-olga-at-{name}" for name in files}
        for name, file in files.items():
            write_olga(file, tokens[name])
        web = await stack.enter_async_context(web_door(services, Accounts(UsersFile(files["web"]))))
        local = await stack.enter_async_context(web_door(services, LocalToken(lambda: LOCAL)))
        urls = {"a2a": running.door.url, "mcp": mcp.url.removesuffix("/mcp"), "web": web, "local": local}
        tokens |= {"a2a": make_tokens(running.place.callers_file)["ida"], "local": LOCAL, "issuer": issued_by(key)}
        files["a2a"] = running.place.callers_file
        yield Doors(urls, tokens, pool, files)


@pytest.mark.long
async def test_a_token_opens_its_own_door_alone(doors: Doors) -> None:
    """In any form in which somebody may present it; nothing is stored."""
    opens = {**{name: name for name in doors.urls}, "issuer": "a2a"}
    for name, door in opens.items():
        assert await doors.status(door, f"Bearer {doors.tokens[name]}") == 200, f"{name} works at its own door"
    before = await doors.pool.fetchval(STORED)
    for name, own in opens.items():
        token = doors.tokens[name]
        forms = [
            f"Bearer {token}",
            f"bearer  {token}",
            f"Basic {token}",
            f"Bearer {sha256(token.encode()).hexdigest()}",
        ]
        for door in doors.urls.keys() - {own}:
            for form in forms:
                assert await doors.status(door, form) == 401, (name, door, form)
            cookie = {"Cookie": f"apc_login={token}; __Host-apc_login={token}"}
            assert await doors.status(door, "", **cookie) == 401, (name, door)
    assert await doors.pool.fetchval(STORED) == before


async def test_a_digest_that_is_copied_to_the_file_of_another_door_opens_it_for_nobody(doors: Doors) -> None:
    """The accounts of console and MCP server are of one kind: with one file for both, a token is good at both."""
    write_olga(doors.files["mcp"], doors.tokens["web"])
    assert await doors.status("mcp", f"Bearer {doors.tokens['web']}") == 200, "the same account at both"
    digests = access.read_callers(doors.files["a2a"]).callers["ida"].tokens
    for name in ("web", "mcp"):
        record = UserRecord(role=AccountRole.OPERATOR, tokens=dict(digests))
        write_users(doors.files[name], UsersDocument(users={"ida": record}))
        assert await doors.status(name, f"Bearer {doors.tokens['a2a']}") == 401
    plain = sha256(doors.tokens["web"].encode()).hexdigest()
    ours = {"ida": access.CallerTokens(tokens={"web": plain})}
    access.write_callers(doors.files["a2a"], access.CallersDocument(callers=ours))
    assert await doors.status("a2a", f"Bearer {doors.tokens['web']}") == 401


@pytest.mark.long
async def test_without_its_prefix_the_door_would_take_it(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sha256(doors.tokens["web"].encode()).hexdigest()
    ours = {"ida": access.CallerTokens(tokens={"web": plain})}
    with monkeypatch.context() as unguarded:
        unguarded.setattr(access, "_PREFIX", b"")
        access.write_callers(doors.files["a2a"], access.CallersDocument(callers=ours))
        assert await doors.status("a2a", f"Bearer {doors.tokens['web']}") == 200
    assert await doors.status("a2a", f"Bearer {doors.tokens['web']}") == 401
