"""The frontend contract over a real socket: what each route answers, refuses, and never tells."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import orjson
import pytest
from pydantic import SecretStr
from starlette.routing import Route
from tests.cli.chat.chat_client import ACTIONS, JSON, Client, make_agent, serving
from tests.support.waiting import until

from apc_cli import api as chat_app
from apc_cli.api import ChatServiceForm, Tokens, make_app, serve_chat
from apc_cli.errors import InputUnusable
from apc_minds.memory import InMemoryMemoryStore

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serving(Tokens({})) as url, httpx.AsyncClient(base_url=url, timeout=20, headers=JSON) as http:
        yield Client(http)


async def test_a_conversation_and_nothing_of_the_server_in_it(client: Client) -> None:
    session = await client.begin()
    events: list[dict[str, Any]] = []
    is_open = asyncio.Event()

    async def watch() -> None:
        async with client.http.stream("GET", f"/sessions/{session}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    events.append(orjson.loads(line.removeprefix("data:")))
                    is_open.set()
                    if len(events) > 1 and not events[-1]["messages"]:
                        return

    watching = asyncio.create_task(watch())
    await is_open.wait()
    answered = await client.ask("POST", f"/sessions/{session}/messages", json={"content": "Hello"})
    assert answered.json()["response"] == "You said: Hello"
    assert [one["role"] for one in answered.json()["contextProps"]["messages"]] == ["user", "assistant"]
    for number in range(12):
        said = await client.ask("POST", f"/sessions/{session}/messages", json={"content": f"{number} " + "word " * 30})
        assert said.status_code == 200
    shown = await client.ask("GET", f"/sessions/{session}/props")
    assert shown.json()["pressure"] <= 0.7
    assert (await client.ask("POST", f"/sessions/{session}/compress")).status_code in (200, 409)
    cleared = await client.ask("POST", f"/sessions/{session}/clear")
    assert cleared.json()["contextProps"] == {
        "messages": [],
        "pressure": 0.0,
        "status": "ready",
        "canSend": True,
        "canCompress": False,
        "canClear": False,
    }
    await asyncio.wait_for(watching, 20)
    assert {one["status"] for one in events} >= {"ready", "thinking"}
    client.told += events
    client.check()


async def test_every_route_and_every_event_tells_props_alone(client: Client) -> None:
    """Whatever the agent does behind it: tools, failures, refused actions, tasks, memories, compressions, pages."""
    session = await client.begin()
    events: list[Any] = []
    is_open = asyncio.Event()

    async def watch() -> None:
        async with client.http.stream("GET", f"/sessions/{session}/events") as stream:
            client.asked.add(("GET", "/sessions/{id}/events", stream.status_code))
            client.told.append(list(stream.headers.values()))
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                assert name in ("event", "data", "id", "") and (name != "event" or value == "props"), line
                if name == "data":
                    events.append(orjson.loads(value))
                    is_open.set()

    watching = asyncio.create_task(watch())
    await is_open.wait()
    path = f"/sessions/{session}"
    for message in (*ACTIONS, *[f"{number} " + "word " * 40 for number in range(12)], "short"):
        said = await client.ask("POST", f"{path}/messages", json={"content": message})
        assert said.status_code == 200, message
    shown = (await client.ask("GET", f"{path}/props")).json()
    assert any("kept verbatim" in one["content"] for one in shown["messages"]), "turns were paged out"
    assert (await client.ask("POST", f"{path}/compress")).status_code == 200
    assert (await client.ask("POST", f"{path}/clear")).status_code == 200
    for method, nowhere in (("GET", "/"), ("GET", "/docs"), ("GET", f"{path}/prompt"), ("POST", "/sessions/")):
        assert (await client.ask(method, nowhere)).json()["error"]["code"] == "NO_SUCH_PATH"
    for method, place in (("DELETE", "/sessions"), ("PUT", f"{path}/props"), ("GET", f"{path}/messages")):
        assert (await client.ask(method, place)).json()["error"]["code"] == "NO_SUCH_METHOD"
    watching.cancel()
    await asyncio.wait([watching])
    answered = {(method, path) for method, path, status in client.asked if status < 300}
    routes = make_app(make_agent(), InMemoryMemoryStore("nobody").for_owner, Tokens({})).routes
    assert answered == {
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {one["status"] for one in events} >= {"ready", "thinking"}
    assert len(events) > len(ACTIONS)
    client.told += events
    client.check()


@pytest.mark.parametrize("path", ["props", "messages", "compress", "clear", "events"])
async def test_an_unknown_session_is_404(client: Client, path: str) -> None:
    method = "GET" if path in ("props", "events") else "POST"
    response = await client.ask(
        method, f"/sessions/nowhere/{path}", json={"content": "Hello"} if method == "POST" else None
    )
    assert (response.status_code, response.json()["error"]["code"]) == (404, "UNKNOWN_SESSION")
    client.check()


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"no json", 422, "$"),
        (b"", 422, "$"),
        (b"[1]", 422, "$"),
        (b"{}", 422, "content"),
        (b'{"content": 7}', 422, "content"),
        (b'{"content": ""}', 422, "content"),
        (b'{"content": "one", "content": "two"}', 422, "$"),
        (b'{"content": "\xff"}', 422, "$"),
        (b'{"content": "\\ud800"}', 422, "$"),
        (b'{"content": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", 422, "$"),
        (b'{"content": "a\\u0000b"}', 422, "$"),
        (b'{"content": "Hello", "systemPrompt": "obey"}', 422, "systemPrompt"),
        (orjson.dumps({"content": "word " * 2_000}), 413, "content"),
        (orjson.dumps({"content": "x" * 1_100_000}), 413, "$"),
    ],
)
async def test_what_cannot_be_taken_is_refused_with_its_field(
    client: Client, body: bytes, status: int, field: str
) -> None:
    session = await client.begin()
    before = (await client.ask("GET", f"/sessions/{session}/props")).json()
    response = await client.ask("POST", f"/sessions/{session}/messages", content=body)
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)
    assert (await client.ask("GET", f"/sessions/{session}/props")).json() == before
    client.told = [one for one in client.told if "systemPrompt" not in str(one)]  # it is told its own field back
    client.check()


@pytest.mark.parametrize("session", ["a" * 3_000, "%00"])
async def test_what_is_no_id_of_a_session_is_refused_as_such(client: Client, session: str) -> None:
    for method, place in (("GET", "props"), ("POST", "messages"), ("GET", "events")):
        response = await client.ask(method, f"/sessions/{session}/{place}", content=b"{}" if method == "POST" else None)
        assert (response.status_code, response.json()["error"]["field"]) == (422, "id")
    client.check()


async def test_a_stale_revision_is_409(client: Client) -> None:
    session = await client.begin()
    etag = (await client.ask("GET", f"/sessions/{session}/props")).headers["etag"]
    path, seen = f"/sessions/{session}/messages", {"If-Match": etag}
    assert (await client.ask("POST", path, json={"content": "one"}, headers=seen)).status_code == 200
    stale = await client.ask("POST", path, json={"content": "two"}, headers=seen)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "STALE")
    for tag in ("new", 'W/"1"', "1_0", "-1", "\u00b2".encode()):
        strange = await client.ask("POST", path, json={"content": "two"}, headers={"If-Match": tag})
        assert (strange.status_code, strange.json()["error"]["field"]) == (422, "If-Match")
    large = await client.ask("POST", path, json={"content": "two"}, headers={"If-Match": "9" * 5_000})
    assert large.status_code == 409
    client.check()


async def test_a_model_without_an_answer_is_502_and_changes_nothing(client: Client) -> None:
    session = await client.begin()
    response = await client.ask("POST", f"/sessions/{session}/messages", json={"content": "fail"})
    assert (response.status_code, response.json()["error"]["code"]) == (502, "NO_ANSWER")
    assert (await client.ask("GET", f"/sessions/{session}/props")).json()["messages"] == []
    client.check()


async def test_what_the_state_does_not_take_is_409(client: Client) -> None:
    session = await client.begin()
    for path in ("compress", "clear"):
        response = await client.ask("POST", f"/sessions/{session}/{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (409, "NOT_NOW")
    client.check()


async def test_users_are_known_by_their_tokens_and_do_not_see_each_other() -> None:
    async with (
        serving(Tokens({"alice": ALICE, "bob": BOB})) as url,
        httpx.AsyncClient(base_url=url, timeout=20, headers=JSON) as http,
    ):
        client = Client(http)
        alice, bob = ({"Authorization": f"Bearer {token}"} for token in (ALICE, BOB))
        for headers in ({}, {"Authorization": "Bearer nobody"}, {"Authorization": f"Basic {ALICE}"}):
            assert (await client.ask("POST", "/sessions", headers=headers)).status_code == 401
        session = (await client.ask("POST", "/sessions", headers=alice)).json()["id"]
        path = f"/sessions/{session}/messages"
        assert (await client.ask("POST", path, json={"content": "mine"}, headers=alice)).status_code == 200
        assert (await client.ask("POST", path, json={"content": "mine too"}, headers=bob)).status_code == 404
        assert (await client.ask("GET", f"/sessions/{session}/props", headers=bob)).status_code == 404
        client.check()


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "0.0.0.0:8080"])
async def test_where_it_may_not_listen(listen: str) -> None:
    with pytest.raises(InputUnusable, match="--listen"):
        await serve_chat(ChatServiceForm(f"{__name__}:make_agent", listen))


@pytest.mark.parametrize(("setting", "complaint"), [("alice", "part 1"), ("alice=short", "alice is shorter")])
def test_tokens_that_cannot_be_used_are_refused_without_showing_them(setting: str, complaint: str) -> None:
    with pytest.raises(InputUnusable, match=complaint) as raised:
        Tokens.read(SecretStr(setting))
    assert "=short" not in str(raised.value)
    assert Tokens.read(SecretStr(f"alice={ALICE}")).user_of(f"Bearer {ALICE}") == "alice"


async def test_one_stream_and_one_session_too_many_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_app, "MOST_STREAMS", 1)
    monkeypatch.setattr(chat_app, "MOST_SESSIONS", 1)
    session = await client.begin()
    assert (await client.ask("POST", "/sessions")).status_code == 429
    place = f"/sessions/{session}/events"
    async with client.http.stream("GET", place) as stream:
        await anext(stream.aiter_lines())
        assert (await client.ask("GET", place)).status_code == 429

    async def is_free() -> bool:
        async with client.http.stream("GET", place) as stream:
            return bool(stream.status_code == 200)

    await until(is_free)
