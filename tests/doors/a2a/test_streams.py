"""Streams of a door: what happens to a task, as it happens, to its end or to a question; and many at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.doors.a2a.conftest import A2AClient, Behind, RpcError, desk, made, state_of, teller


async def events(client: A2AClient, method: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the results of a stream. Raises RpcError."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with client.http.stream("POST", "/a2a/jsonrpc", json=body) as answer:
        if answer.headers["content-type"].startswith("application/json"):
            raise RpcError(json.loads(await answer.aread())["error"])
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                said = json.loads(line.removeprefix("data:"))
                if "error" in said:
                    raise RpcError(said["error"])
                yield said["result"]


def kinds(seen: list[dict[str, Any]]) -> list[str]:
    """Return what each event is, with its state."""
    found = []
    for one in seen:
        ((kind, body),) = one.items()
        found.append(f"{kind} {state_of(body)}" if "status" in body else kind)
    return found


async def test_a_send_streams_to_the_end(behind: Behind) -> None:
    async with behind(teller()) as running:
        seen = [one async for one in events(running.ida, "SendStreamingMessage", message=made({"text": "a story"}))]
    # A task that was faster than its stream is there at once, with its end.
    assert next(iter(seen[0])) == "task" and kinds(seen)[-1].endswith(" COMPLETED")
    updates = [one["artifactUpdate"] for one in seen if "artifactUpdate" in one]
    in_task = seen[0]["task"].get("artifacts", [])
    text = "".join(part["text"] for one in in_task for part in one["parts"])
    assert text + "".join(one["artifact"]["parts"][0]["text"] for one in updates) == "Once upon a time"


async def test_a_send_ends_at_a_question_and_a_subscription_goes_on(behind: Behind) -> None:
    async with behind(desk()) as running:
        message = made({"data": {"text": "a boat", "amount": 700}})
        first = [one async for one in events(running.ida, "SendStreamingMessage", message=message)]
        assert kinds(first)[-1].endswith("INPUT_REQUIRED")
        task_id = first[0]["task"]["id"]

        async def follow() -> list[dict[str, Any]]:
            return [one async for one in events(running.ida, "SubscribeToTask", id=task_id)]

        followed = [asyncio.create_task(follow()) for _ in range(5)]
        await running.ida.send({"text": "yes"}, taskId=task_id)
        for seen in await asyncio.gather(*followed):
            assert kinds(seen)[0].startswith("task ") and kinds(seen)[-1].endswith("COMPLETED")
        with pytest.raises(RpcError) as ended:
            await follow()
        assert ended.value.code == -32004
        with pytest.raises(RpcError) as foreign:
            async for _ in events(running.bob, "SubscribeToTask", id=task_id):
                pass
        assert foreign.value.code == -32001


async def test_a_caller_has_so_many_streams_and_tasks(behind: Behind) -> None:
    async with behind(desk(), a2a_most_streams=2, a2a_most_tasks=2) as running:
        asked = [await running.ida.send({"data": {"text": "boat", "amount": 700}}) for _ in range(2)]
        full = await running.ida.http.post(
            "/a2a/jsonrpc",
            json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": made({"text": "third"})}},
        )
        again = {"A2A-Extensions": "urn:apc-bus:a2a:repeats:v1"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": made({"text": "fourth"})}}
        assert (await running.ida.http.post("/a2a/jsonrpc", json=body, headers=again)).status_code == 429
        assert full.status_code == 429 and full.headers["retry-after"] and "2 tasks are open" in full.text
        await running.ida.call("CancelTask", id=asked[0]["id"])
        assert state_of(await running.ida.send({"text": "third"})) == "COMPLETED"
        waiting = [asyncio.create_task(_open(running.ida.http, asked[1]["id"])) for _ in range(2)]
        answers = await asyncio.gather(*waiting)
        third = await _open(running.ida.http, asked[1]["id"])
        assert [one.status_code for one in answers] == [200, 200] and third.status_code == 429
        for one in (*answers, third):
            await one.aclose()
        assert state_of(await running.bob.send({"text": "bob's"})) == "COMPLETED"


async def _open(http: httpx.AsyncClient, task_id: str) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
    return await http.send(http.build_request("POST", "/a2a/jsonrpc", json=body), stream=True)


async def test_who_does_not_wait_gets_the_task_at_once_and_a_wait_is_bounded(behind: Behind) -> None:
    async with behind(desk(), a2a_wait_seconds=0.2) as running:
        sent = await running.ida.send({"data": {"text": "boat", "amount": 700}}, wait=False)
        assert state_of(sent) in ("SUBMITTED", "WORKING", "INPUT_REQUIRED")
        await running.ida.comes_to(sent["id"], "INPUT_REQUIRED")
