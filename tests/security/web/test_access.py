"""Nobody without the token of this start reads the log over HTTP, and no other page makes a browser do so."""

import asyncio
import json
import re
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2 as httpx
import orjson
import pytest
from starlette.staticfiles import StaticFiles
from tests.web.conftest import TOKEN, WebBench

from apc_cli.commands.ui import write_link
from apc_web import cursors, guard, log_routes
from apc_web.app import DOCUMENT, PageFiles, make_app
from apc_web.cursors import read_cursor, write_cursor
from apc_web.guard import LARGEST_BODY, AccessGuard
from apc_web.http import make_server
from apc_web.local_token import make_token
from apc_web.packets import PacketQuery, packets_page

PATIENCE = 30.0
BEARER = f"Bearer {TOKEN}"
NOT_THERE = "00000000-0000-4000-8000-000000000000"
WRONG_TOKENS = ("", "Bearer", f"Bearer {make_token()}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer ü")
ACTS = (
    "DELETE FROM apc_log.sessions",
    "INSERT INTO apc_log.log_edges VALUES (9, 0, '{}')",
    "SET default_transaction_read_only = off; UPDATE apc_log.shards SET next_seq = 1",
    "CREATE TABLE public.mine ()",
    "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null'",
)
ROUTES = sorted(orjson.loads(DOCUMENT.read_bytes())["paths"])


@asynccontextmanager
async def served(bench: WebBench, *, is_guarded: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the API on a port, without the token's guard if a test shows what the guard is for."""
    app = make_app(bench.services)
    server = make_server(AccessGuard(app, TOKEN) if is_guarded else app, "127.0.0.1", 0, graceful_seconds=1)
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE)
        listening.close()


@pytest.mark.long
async def test_no_route_answers_without_the_token_of_this_start(bench: WebBench) -> None:
    async with served(bench, is_guarded=False) as client:
        assert (await client.get("/api/v1/runs")).status_code == 200, "the guard is what refuses"
    async with served(bench) as client:
        assert (await client.get("/api/v1/runs", headers={"Authorization": BEARER})).status_code == 200
        for wrong in WRONG_TOKENS:
            response = await client.get("/api/v1/runs", headers={b"Authorization": wrong.encode()})
            assert (response.status_code, response.json()["code"]) == (401, "UNAUTHORIZED"), wrong
        for route in ROUTES:
            path = re.sub(r"\{[^}]+\}", "1", route)
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
                body: dict[str, Any] = {"json": {}} if method in ("POST", "PUT") else {}
                response = await client.request(method, path, **body)
                assert response.status_code == 401, (method, path)
        for path in ("/api", "/api/", "/api/v1/../v1/runs", "//api/v1/runs", "/api%2fv1/runs"):
            response = await client.get(path)
            assert response.status_code in (401, 404) or "<html" in response.text, path
        response = await client.get(f"/api/v1/runs?token={TOKEN}", headers={"Cookie": f"token={TOKEN}"})
        assert response.status_code == 401, "a token in an address or a cookie is no token"


async def test_a_foreign_name_or_page_gets_nothing_even_with_the_token(bench: WebBench) -> None:
    async with served(bench) as client:
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://127.0.0.1:1"}, 403),
        ):
            response = await client.get("/api/v1/runs", headers={"Authorization": BEARER, **headers})
            assert response.status_code == status and response.headers["content-type"] == "application/problem+json"
        own = str(client.base_url).rstrip("/")
        headers = {"Authorization": BEARER, "Origin": own}
        assert (await client.get("/api/v1/runs", headers=headers)).status_code == 200


async def test_answers_forbid_scripts_frames_and_referrers_and_set_no_cookie(bench: WebBench) -> None:
    async with served(bench, is_guarded=False) as client:
        bare = (await client.get("/")).headers
        assert not {"content-security-policy", "referrer-policy", "x-content-type-options"} & set(bare)
    async with served(bench) as client:
        for path in ("/", "/runs/1", "/api/v1/runs", "/api/v1/nothing"):
            headers = (await client.get(path, headers={"Authorization": BEARER})).headers
            assert "default-src 'self'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer" and headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in headers and "access-control-allow-origin" not in headers


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_static_files_stay_in_their_folder(
    bench: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    if not is_guarded:  # a name is joined with the folder, whatever it leads to
        monkeypatch.setattr(StaticFiles, "lookup_path", lambda self, path: (folder / path, (folder / path).stat()))
        monkeypatch.setattr(PageFiles, "_is_file", lambda self, path: (folder / path).is_file())
    (folder / "index.html").write_text("page")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    transport = httpx.ASGITransport(make_app(bench.services, folder))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/runs/1", "/runs/release-1.2.png", "/packets/a.b"):
            assert (await client.get(path)).text == "page", path
        assert (await client.get("/assets/gone.js")).status_code == 404 or not is_guarded
        # Encoded, as clients take plain dots away by themselves.
        up = "%2e%2e/%2e%2e/secret.txt"
        for path in ("/%2e%2e/secret.txt", "/..%2fsecret.txt", "/link.txt", f"/assets/{up}", f"/assets/..%2f{up[7:]}"):
            response = await client.get(path)
            assert (response.text == "secret") is not is_guarded, path


async def test_made_up_cursors_and_those_of_another_list_are_refused(told: WebBench) -> None:
    page = await told.get("/packets", session_id="s-1", limit=2)
    foreign = (page["next"], write_cursor("packets", {}, 0, 1 << 63), write_cursor("packets", {}, "0", 1), "%00", "é")
    for cursor in foreign:
        problem = await told.get("/packets", 400, after=cursor)
        assert problem["code"] == "BAD_CURSOR"
    with pytest.MonkeyPatch.context() as unguarded:
        unguarded.setattr(cursors, "_digest", lambda *_: "")
        taken = write_cursor("runs", {}, 0, 1)
        assert read_cursor(taken, "packets", {}, int, int) == [0, 1], "the cursor of another list is believed"
    await told.get("/packets", session_id="s-1", limit=2, after=page["next"])  # where it belongs it is taken
    for path in ("/runs", "/sessions", "/arbitrations", "/dead"):
        assert (await told.get(path, 400, after=page["next"]))["code"] == "BAD_CURSOR"
    made_up = write_cursor("runs", {}, (1 << 62), "run-1")
    assert (await told.get("/runs", 400, after=made_up))["code"] == "BAD_CURSOR"


async def test_what_is_not_there_is_told_apart_by_nothing(told: WebBench) -> None:
    for path in (f"/packets/{NOT_THERE}", f"/packets/{NOT_THERE}/body", f"/packets/{NOT_THERE}/proof", "/packets/9-9"):
        assert (await told.get(path, 404))["code"] == "NOT_FOUND"
    for name in ("nobody", "' OR 1=1 --", "<script>", "\u202e", "a" * 256):
        assert (await told.get(f"/sessions/{name}", 404))["code"] == "NOT_FOUND"
    assert (await told.get("/sessions/%00", 422))["field"] == "session_id"


def no_limits(unguarded: pytest.MonkeyPatch) -> None:
    """Take away the bound of a body, and the look at where a stream is to begin."""
    unguarded.setattr(guard, "LARGEST_BODY", 1 << 40)
    unguarded.setattr(log_routes, "_MOST_SHARDS", 1 << 40)
    unguarded.setattr(log_routes, "_is_head", lambda _: True)


async def test_without_the_guards_a_request_may_ask_for_anything(
    told: WebBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the routes stand in front of takes any of it."""
    everything = PacketQuery({"session_id": "s-1"}, None, newest=False)
    page = await packets_page(told.services, everything, None, 1 << 40)
    assert page.next is None and len(page.items) > 2, "the whole log in one answer"
    no_limits(monkeypatch)
    response = await told.client.post("/api/v1/dead/requeue", json={"deliveries": [], "note": "x" * LARGEST_BODY})
    assert response.status_code != 413, "the body is read to its end"
    assert log_routes._read_heads('{"0":-1}') == {0: -1}
    assert len(log_routes._read_heads(json.dumps({str(n): 1 for n in range(2000)}))) == 2000


async def test_requests_have_limits(told: WebBench) -> None:
    for parameters in ({"limit": 0}, {"limit": 501}, {"text": "x" * 201}, {"generation": -1}, {"packet_type": "NO"}):
        assert (await told.get("/packets", 422, **parameters))["code"] == "INVALID"
    for since in ("[]", '{"0":-1}', '{"x":1}', '{"0":true}', json.dumps({str(n): 1 for n in range(2000)})):
        assert (await told.get("/stream", 422, since=since))["code"] == "INVALID"
    large = {"deliveries": [], "note": "x" * LARGEST_BODY}
    response = await told.client.post("/api/v1/dead/requeue", json=large)
    assert response.status_code == 413

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * (LARGEST_BODY // 4)

    json_type = {"Content-Type": "application/json"}
    response = await told.client.post("/api/v1/dead/requeue", content=parts(), headers=json_type)
    assert response.status_code == 400, "a body without a length is read up to the bound, and refused"
    response = await told.client.post("/api/v1/dead/requeue", json={"deliveries": []})
    assert (response.status_code, response.json()["code"]) == (403, "NO_ACTS")


async def test_the_pool_can_only_read_and_only_briefly(bench: WebBench) -> None:
    pool = bench.services.pool
    async with bench.house.pool.acquire() as unguarded:
        for statement in ACTS:
            attempt = unguarded.transaction()
            await attempt.start()
            await unguarded.execute(statement)
            await attempt.rollback()
    for statement in ACTS:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)):
            await pool.execute(statement)
    with pytest.raises(asyncpg.QueryCanceledError):
        await pool.execute("SET statement_timeout = '20ms'; SELECT pg_sleep(60)")
    assert await pool.fetchval("SHOW statement_timeout") == "5s", "the next user of the connection has the limit"


def test_the_link_is_for_its_owner_alone(tmp_path: Path) -> None:
    token = make_token()
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(plain.stat().st_mode) & 0o077, "an ordinary file may be read by others"
    link = write_link(tmp_path / "data", "127.0.0.1", 8083, '"><script>', token)

    assert stat.S_IMODE(link.stat().st_mode) == 0o600
    text = link.read_text()
    assert f"#token={token}" in text and "<script>" not in text
    assert "?token" not in text, "a fragment is in no log and no referrer"
