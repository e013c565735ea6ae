"""A stranger with and without a token writes to a real door: odd texts, smuggled headers, streams that nobody reads."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import httpx
import pytest
from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from tests.doors.a2a.conftest import Behind, Running, behind, desk, made, state_of
from tests.security.doors.test_a2a_access import STORED
from tests.support.waiting import until

from apc_a2a import push, server
from apc_a2a.push import PushHosts
from apc_bus.concurrency import cancelled
from apc_client import callers as callers_module
from apc_contracts.errors import InputUnusable
from apc_log.registry import read_registry

__all__ = ["behind"]

TEXTS = [
    "\x00",
    "a\x00b",
    "\x1b]0;owned\x07",
    "\u202e",
    "x" * 70_000,
    "' OR 1=1 --",
    "../../etc/passwd",
    "\U0001f600",
]
INTERNAL = -32603


def odd_requests(task_id: str, text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return requests with a text at each place that takes one."""
    message = made({"text": "apples"})
    told = {"taskId": task_id, "url": "https://192.0.43.8/hook"}
    return {
        "text": ("SendMessage", {"message": made({"text": text})}),
        "data": ("SendMessage", {"message": made({"data": {"text": "a", text: 1}})}),
        "key and media type": ("SendMessage", {"message": made({"text": "a", "mediaType": text, "filename": text})}),
        "messageId": ("SendMessage", {"message": made({"text": "apples"}, message_id=text)}),
        "contextId": ("SendMessage", {"message": {**message, "contextId": text}}),
        "metadata": ("SendMessage", {"message": {**message, "metadata": {text: text}}}),
        "extensions": ("SendMessage", {"message": {**message, "extensions": [text]}}),
        "referenceTaskIds": ("SendMessage", {"message": {**message, "referenceTaskIds": [text]}}),
        "answer": ("SendMessage", {"message": made({"data": {"approved": False, "note": text}}, taskId=task_id)}),
        "list": ("ListTasks", {"contextId": text}),
        "page": ("ListTasks", {"pageToken": text}),
        "push id": ("CreateTaskPushNotificationConfig", {**told, "id": text}),
        "push url": ("CreateTaskPushNotificationConfig", {**told, "url": f"https://a{text}b.example/"}),
        "push path": ("CreateTaskPushNotificationConfig", {**told, "url": f"https://192.0.43.8/{text}"}),
        "push token": ("CreateTaskPushNotificationConfig", {**told, "id": "t", "token": text}),
        "push scheme": (
            "CreateTaskPushNotificationConfig",
            {**told, "id": "s", "authentication": {"scheme": text, "credentials": text}},
        ),
        "push get": ("GetTaskPushNotificationConfig", {"taskId": task_id, "id": text}),
        "push delete": ("DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": text}),
        "tenant": ("GetTask", {"id": task_id, "tenant": text}),
    }


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_no_text_at_any_place_makes_the_door_fail(
    behind: Behind, text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """An internal error would be a door that did not think of it, and its log would have the text."""
    async with behind(desk()) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        caplog.set_level(logging.DEBUG)
        for place, (method, params) in odd_requests(asked["id"], text).items():
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            for headers in ({}, {"A2A-Extensions": "urn:apc-bus:a2a:repeats:v1"}):
                answer = await running.ida.http.post("/a2a/jsonrpc", json=body, headers=headers)
                said = answer.json()
                assert answer.status_code == 200 and said.get("error", {}).get("code") != INTERNAL, (place, said)
        for path in (f"/a2a/rest/tasks/{text[:99]!r}", "/a2a/rest/tasks?contextId=%00&pageToken=%00"):
            assert (await running.ida.http.get(path)).status_code < 500
        assert state_of(await running.ida.send({"text": "apples"}, message_id="last")) == "COMPLETED"
    assert "Traceback" not in caplog.text
    assert "\x1b" not in capfd.readouterr().err


async def test_headers_and_paths_smuggle_nothing(behind: Behind) -> None:
    """Nobody becomes a caller by two tokens, by the public paths, or by what proxies say."""
    async with behind(desk()) as running:
        before = await running.system.pool.fetchval(STORED)
        token, nobody = running.ida.http.headers["authorization"], running.clients["nobody"].http
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        for headers in (
            [("Authorization", token), ("Authorization", token)],
            [("Authorization", f"{token}, {token}")],
            [("Authorization", "Bearer no-token"), ("X-Forwarded-User", "ida"), ("X-Original-URL", "/healthz")],
            [("Authorization", "Bearer no-token"), ("Cookie", f"token={token[7:]}"), ("Proxy-Authorization", token)],
        ):
            assert (await nobody.post("/a2a/jsonrpc", json=body, headers=headers)).status_code == 401, headers
        for path in (
            "/.well-known/../a2a/jsonrpc",
            "/.well-known/%2e%2e/a2a/jsonrpc",
            "/.well-known//a2a/jsonrpc",
            "/healthz/../a2a/jsonrpc",
            "/healthz/a2a/jsonrpc",
            "//a2a/jsonrpc",
            "/.well-known/agent-card.json/../../a2a/jsonrpc",
        ):
            lines = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            assert await raw_status(running, lines + "Content-Length: 2\r\n\r\n{}") in (401, 404, 405), path
        twice = "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /a2a/jsonrpc HTTP/1.1\r\n\r\n"
        differ = "Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}abc"
        lines = f"POST /a2a/jsonrpc HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n"
        assert await raw_status(running, lines + differ) == 400
        assert await raw_status(running, lines.replace(token, "x") + twice) in (400, 401)
        assert await running.system.pool.fetchval(STORED) == before
        assert (await running.ida.http.post("/a2a/jsonrpc", json=body)).status_code == 200, "the act works with a token"


async def test_the_card_says_nothing_that_a_request_says(behind: Behind) -> None:
    """A card with the name of a request's Host, kept by a cache, would lead others to the stranger."""
    async with behind(desk()) as running:
        headers = {"Host": "localhost:1", "X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
        card = await running.clients["nobody"].http.get("/.well-known/agent-card.json", headers=headers)
        assert card.status_code == 200 and "evil" not in card.text and "localhost:1" not in card.text
        assert card.json()["supportedInterfaces"][0]["url"].startswith(running.door.url)


async def raw_status(running: Running, request: str) -> int:
    """Return the status of bytes as they are."""
    host, _, port = running.door.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    line = await reader.readline()
    writer.transport.abort()
    return int(line.split()[1])


async def test_streams_that_nobody_reads_or_that_are_cut_give_their_places_back(behind: Behind) -> None:
    async with behind(desk(), a2a_most_streams=3) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": asked["id"]}})
        head = (
            "POST /a2a/jsonrpc HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\nContent-Type: application/json\r\n"
            f"Authorization: {running.ida.http.headers['authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        host, _, port = running.door.url.removeprefix("http://").rpartition(":")
        for _ in range(3):
            opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            for reader, writer in opened:
                writer.write((head + body).encode())
                assert b" 200 " in await reader.readline()
            full = await running.ida.http.post("/a2a/jsonrpc", content=body, headers=JSON_TYPE)
            assert full.status_code == 429, "the places are taken"
            for _, writer in opened:
                writer.transport.abort()
            await until(lambda: _has_place(running))
        assert state_of(await running.ida.send({"text": "apples"})) == "COMPLETED"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_connections_without_a_token_leave_room_for_others(
    behind: Behind, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 8)
    monkeypatch.setattr(server, "_OF_ONE_ADDRESS", 4 if is_guarded else None)
    async with behind(desk()) as running:
        host, _, port = running.door.url.removeprefix("http://").rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.readline()).split()[1] == (b"200" if is_guarded else b"503")
        for _, one in (*held, (reader, writer)):
            one.transport.abort()


JSON_TYPE = {"Content-Type": "application/json"}


async def _has_place(running: Running) -> bool:
    sent = made({"text": "plums"}, message_id="m-place")
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}
    return (await running.ida.http.post("/a2a/jsonrpc", json=body)).status_code == 200


async def test_names_that_nobody_has_are_looked_up_together(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of an issuer for somebody who is no caller costs a reading of the registry; a crowd of them, two."""
    async with behind(desk()) as running:
        read, reads = read_registry, 0

        async def counting(pool: asyncpg.Pool) -> Any:
            nonlocal reads
            reads += 1
            return await read(pool)

        monkeypatch.setattr(callers_module, "read_registry", counting)

        async def ask(number: int) -> None:
            with pytest.raises(InputUnusable, match="is no caller of this door"):
                await running.served.callers.client(f"nobody-{number}")

        await ask(0)
        assert reads == 1, "one who asks alone is looked up, so that a new caller is known at once"
        await asyncio.gather(*(ask(number) for number in range(200)))
        assert reads <= 3


# Push to receivers that mean harm.


@asynccontextmanager
async def dripping() -> AsyncIterator[str]:
    """A receiver whose answer never ends and never stops."""

    dripping: list[asyncio.Task[Any] | None] = []

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dripping.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while not writer.is_closing():
                writer.write(b"X: y\r\n")
                await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/hook"
        await cancelled(*filter(None, dripping))


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_receiver_that_drips_holds_nobody(
    postgres_url: str, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes within the time of a read, so without a time for all of it the telling goes on for hours."""
    monkeypatch.setattr(push, "_SEND_SECONDS", 0.5 if is_guarded else 60)
    async with (
        dripping() as url,
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
        httpx.AsyncClient(timeout=0.5, trust_env=False) as http,
    ):
        pusher = push.Push(pool, b"k" * 32, PushHosts(["127.0.0.1"]))
        telling = asyncio.create_task(pusher._send(http, TaskPushNotificationConfig(url=url), {}))
        done, _ = await asyncio.wait([telling], timeout=3)
        if is_guarded:
            with pytest.raises(push.PushAway, match="TimeoutError"):
                await telling
            return
        assert not done
        telling.cancel()
        await asyncio.wait([telling])


async def test_a_name_server_that_does_not_answer_holds_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "_SEND_SECONDS", 0.2)

    async def silent(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(InputUnusable, match="is not known"):
        await PushHosts(resolve=silent).accept("https://hooks.example/x")


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "a\nHost: evil", "\u00fc", "a\x00"])
async def test_credentials_smuggle_no_header_to_a_receiver(postgres_url: str, text: str) -> None:
    seen: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # a client that did not write the header it was given
            seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(take, "127.0.0.1", 0)
    async with (
        listening,
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/hook"
        pusher = push.Push(pool, b"k" * 32, PushHosts(["127.0.0.1"]))
        await pusher._send(http, TaskPushNotificationConfig(url=url, token="good"), {})
        assert b"good" in seen.pop(), "the act works with a good one"
        for changed in (
            TaskPushNotificationConfig(url=url, token=text),
            TaskPushNotificationConfig(url=url, authentication={"scheme": "Bearer", "credentials": text}),
            TaskPushNotificationConfig(url=url, authentication={"scheme": text, "credentials": "x"}),
        ):
            with pytest.raises(push.PushAway):
                await pusher._send(http, changed, {})
        assert seen == []
