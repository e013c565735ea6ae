"""Every error has the form of the binding that was asked: JSON-RPC's, or google.rpc.Status (A2A 1.0, 9.5 and 11.6)."""

from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest
from tests.doors.a2a.conftest import Behind, Running, desk, made

RPC, REST = "/a2a/jsonrpc", "/a2a/rest/message:send"
CALL = {"jsonrpc": "2.0", "id": "c-7", "method": "ListTasks", "params": {}}


class Told(NamedTuple):
    """What an answer says of an error."""

    status: int
    code: int | str
    reason: str


def told(answer: httpx.Response) -> Told:
    """Return what an error says, after checking its form."""
    said = answer.json()
    error = said["error"]
    assert answer.headers["content-type"].startswith("application/json") and error["message"]
    if answer.request.url.path == RPC:
        assert set(said) == {"jsonrpc", "id", "error"} and said["jsonrpc"] == "2.0"
        assert set(error) == {"code", "message", "data"} and isinstance(error["code"], int)
        (info,) = error["data"]
        code = error["code"]
    else:
        assert set(said) == {"error"} and set(error) == {"code", "status", "message", "details"}
        assert error["code"] == answer.status_code
        (info,) = error["details"]
        code = error["status"]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo" and info["domain"] in (
        "a2a-protocol.org",
        "apc-bus",
    )
    return Told(answer.status_code, code, info["reason"])


async def test_who_is_refused_at_the_door_is_told_in_the_form_of_the_binding(behind: Behind) -> None:
    async with behind(desk(), a2a_most_bytes=10_000) as running:
        nobody, ida = running.clients["nobody"].http, running.ida.http
        large = {"message": made({"text": "x" * 20_000})}
        asked: list[tuple[httpx.AsyncClient, dict[str, Any], Told, Told]] = [
            (
                nobody,
                {"json": CALL},
                Told(401, -32000, "UNAUTHENTICATED"),
                Told(401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
            ),
            (ida, {"json": large}, Told(413, -32600, "TOO_LARGE"), Told(413, "INVALID_ARGUMENT", "TOO_LARGE")),
            (
                ida,
                {"content": b"x", "headers": {"Content-Type": "text/plain"}},
                Told(200, -32005, "CONTENT_TYPE_NOT_SUPPORTED"),
                Told(415, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
            ),
            (
                ida,
                {"content": b"{", "headers": {"Content-Type": "application/json"}},
                Told(200, -32700, "PARSE_ERROR"),
                Told(400, "INVALID_ARGUMENT", "PARSE_ERROR"),
            ),
            (
                ida,
                {"json": CALL, "headers": {"Origin": "https://evil.example"}},
                Told(403, -32000, "WRONG_ORIGIN"),
                Told(403, "PERMISSION_DENIED", "WRONG_ORIGIN"),
            ),
            (
                ida,
                {"json": CALL, "headers": {"Host": "evil.example"}},
                Told(421, -32000, "WRONG_HOST"),
                Told(421, "INVALID_ARGUMENT", "WRONG_HOST"),
            ),
        ]
        for client, request, rpc, rest in asked:
            assert told(await client.post(RPC, **request)) == rpc
            assert told(await client.post(REST, **request)) == rest


async def test_paths_and_methods_that_are_not_there(behind: Behind) -> None:
    async with behind(desk()) as running:
        http = running.ida.http
        for path in ("/", "/a2a", "/a2a/rest/nothing", "/a2a/jsonrpc/more", "/other"):
            assert told(await http.get(path)) == Told(404, "NOT_FOUND", "NO_SUCH_PATH"), path
        for path, code in ((RPC, -32600), (REST, "UNIMPLEMENTED")):
            answer = await http.get(path)
            assert told(answer) == Told(405, code, "METHOD_NOT_ALLOWED") and "POST" in answer.headers["allow"]


async def test_what_the_protocol_refuses_is_told_in_the_same_forms(behind: Behind) -> None:
    async with behind(desk()) as running:
        rpc = await running.ida.http.post(RPC, json=CALL | {"method": "GetTask", "params": {"id": "x"}})
        assert told(rpc) == Told(200, -32001, "TASK_NOT_FOUND") and rpc.json()["id"] == "c-7"
        rest = await running.ida.http.get("/a2a/rest/tasks/x")
        assert told(rest) == Told(404, "NOT_FOUND", "TASK_NOT_FOUND")


async def test_a_door_that_waits_or_is_full_answers_under_the_id_of_the_call(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind(desk(), a2a_most_tasks=1) as running:
        await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        rpc, rest = await both(running, "SendMessage", {"message": made({"text": "more"}, message_id="m-2")})
        assert told(rpc) == Told(429, -32603, "TOO_MANY") and rpc.json()["id"] == "c-7"
        assert told(rest) == Told(429, "RESOURCE_EXHAUSTED", "TOO_MANY") and rest.headers["retry-after"]
        client = await running.served.callers.client("ida")

        async def away(*_: object, **__: object) -> object:
            raise asyncpg.CannotConnectNowError("the database system is starting up")

        monkeypatch.setattr(client, "sessions", away)
        rpc, rest = await both(running, "ListTasks", {})
        assert told(rpc) == Told(503, -32603, "AWAY") and rpc.json()["id"] == "c-7"
        assert told(rest) == Told(503, "UNAVAILABLE", "AWAY") and rest.headers["retry-after"] == "5"


async def both(running: Running, method: str, params: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
    """Ask the same over both bindings."""
    http = running.ida.http
    rpc = await http.post(RPC, json=CALL | {"method": method, "params": params})
    return rpc, await (http.post(REST, json=params) if params else http.get("/a2a/rest/tasks"))
