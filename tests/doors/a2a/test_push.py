"""Push: at least once, from the table; receivers that fail, doors that die, credentials that nobody reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from cryptography.exceptions import InvalidTag
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.doors.a2a.conftest import Behind, RpcError, Running, desk, door_at, made, place_of, state_of, teller
from tests.support.waiting import until

from apc_a2a.push import Push, PushHosts, read_push_key
from apc_contracts.errors import InputUnusable
from apc_web.http import make_server, open_listeners

OPEN = "SELECT count(*) FROM apc_app.a2a_push WHERE ended_at IS NULL"


@dataclass
class Receiver:
    """Takes what it is told; `status` is what it answers."""

    url: str = ""
    status: int = 200
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: Request) -> Response:
        """Note what came."""
        if self.status == 200:
            self.seen.append(await request.json())
            self.headers.append(dict(request.headers))
        return Response(status_code=self.status, headers={"Location": "http://127.0.0.1:1/"})

    @property
    def states(self) -> list[str]:
        """The states that it was told."""
        return [state_of(one["statusUpdate"]) for one in self.seen if "statusUpdate" in one]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = Starlette(routes=[Route("/hook", receiver.take, methods=["POST"])])
    with open_listeners("127.0.0.1", 0) as listeners:
        port = listeners[0].getsockname()[1]
        server = make_server(app, "127.0.0.1", port, media_type=None, takes_signals=False)
        serving = asyncio.create_task(server.serve(listeners))
        receiver.url = f"http://127.0.0.1:{port}/hook"
        try:
            yield receiver
        finally:
            server.should_exit = True
            await serving


def config(receiver: Receiver) -> dict[str, Any]:
    return {
        "url": receiver.url,
        "token": "token-of-the-receiver",
        "authentication": {"scheme": "Bearer", "credentials": "secret-of-the-receiver"},
    }


async def ended(running: Running) -> bool:
    return bool(await running.system.pool.fetchval(OPEN) == 0)


async def test_a_receiver_is_told_up_to_the_end_with_its_credentials(behind: Behind, receiver: Receiver) -> None:
    async with behind(desk(), a2a_push_hosts=("127.0.0.1",)) as running:
        ida = running.ida
        asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
        kept = await ida.call("CreateTaskPushNotificationConfig", taskId=asked["id"], **config(receiver))
        await until(lambda: _has(receiver, "INPUT_REQUIRED"))
        sealed = await running.system.pool.fetchval("SELECT sealed FROM apc_app.a2a_push")
        assert b"secret" not in sealed and b"token" not in sealed
        got = await ida.call("GetTaskPushNotificationConfig", taskId=asked["id"], id=kept["id"])
        assert got["authentication"]["credentials"] == "secret-of-the-receiver"
        await ida.send({"text": "yes"}, taskId=asked["id"])
        await until(lambda: ended(running))
        assert await running.system.pool.fetchval("SELECT sealed FROM apc_app.a2a_push") == b""
    assert receiver.states[-1] == "COMPLETED" and any("artifactUpdate" in one for one in receiver.seen)
    assert receiver.headers[0]["content-type"] == "application/a2a+json"
    assert receiver.headers[0]["x-a2a-notification-token"] == "token-of-the-receiver"
    assert receiver.headers[0]["authorization"] == "Bearer secret-of-the-receiver"


async def test_a_message_that_is_sent_again_adds_no_second_receiver(behind: Behind, receiver: Receiver) -> None:
    """A client that was not answered sends it again, also when the task has ended; the receiver is told once."""
    async with behind(desk(), a2a_push_hosts=("127.0.0.1",)) as running:
        wanted = {"taskPushNotificationConfig": config(receiver)}
        params = {"message": made({"text": "apples"}), "configuration": wanted}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        repeats = {"A2A-Extensions": "urn:apc-bus:a2a:repeats:v1"}
        for _ in range(3):
            sent = (await running.ida.http.post("/a2a/jsonrpc", json=body, headers=repeats)).json()["result"]["task"]
            await until(lambda: ended(running))
            kept = await running.ida.call("ListTaskPushNotificationConfigs", taskId=sent["id"])
            assert len(kept["configs"]) == 1
        assert await running.system.pool.fetchval("SELECT sealed FROM apc_app.a2a_push") == b"", "erased again"
    assert receiver.states.count("COMPLETED") == 1 and receiver.states[-1] == "COMPLETED"
    assert len([one for one in receiver.seen if "artifactUpdate" in one]) == 1


async def _has(receiver: Receiver, state: str) -> bool:
    return state in receiver.states


async def test_a_receiver_that_fails_is_told_later_and_redirects_are_not_followed(
    behind: Behind, receiver: Receiver
) -> None:
    async with receiving() as elsewhere, behind(teller(), a2a_push_hosts=("127.0.0.1",)) as running:
        receiver.status = 307
        message, wanted = made({"text": "a story"}), {"taskPushNotificationConfig": config(receiver)}
        sent = (await running.ida.call("SendMessage", message=message, configuration=wanted))["task"]
        attempts = "SELECT attempts FROM apc_app.a2a_push"

        async def has_failed() -> bool:
            return bool(await running.system.pool.fetchval(attempts) > 0)

        await until(has_failed)
        receiver.status = 200
        await until(lambda: ended(running))
        assert state_of(await running.ida.task(sent["id"])) == receiver.states[-1] == "COMPLETED"
        assert elsewhere.seen == []


async def test_what_a_dead_door_did_not_tell_another_one_tells(
    behind: Behind, receiver: Receiver, tmp_path: Path
) -> None:
    """A lease of one that died before its receiver confirmed ends, and the other door tells it."""
    async with behind(desk(), a2a_push_hosts=("127.0.0.1",)) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        receiver.status = 503
        await running.ida.call("CreateTaskPushNotificationConfig", taskId=asked["id"], **config(receiver))
        with place_of(tmp_path, a2a_push_hosts=("127.0.0.1",)) as place:
            async with door_at(running.served, place, {}):
                pool = running.system.pool
                await until(lambda: _is_leased(pool))  # by nobody who tells it just now
                receiver.status = 200
                await running.ida.send({"text": "yes"}, taskId=asked["id"])
                assert receiver.seen == []
                await pool.execute("UPDATE apc_app.a2a_push SET leased_until = now(), due_at = now()")
                await until(lambda: ended(running))
    assert receiver.states == ["COMPLETED"], "told once, the last of the states"


async def _is_leased(pool: asyncpg.Pool) -> bool:
    lease = "UPDATE apc_app.a2a_push SET leased_until = now() + interval '1 hour' WHERE leased_until IS NULL"
    return bool(await pool.execute(lease) == "UPDATE 1")


async def test_receivers_are_the_callers_own_and_are_few(behind: Behind, receiver: Receiver) -> None:
    async with behind(desk(), a2a_push_hosts=("127.0.0.1",)) as running:
        ida, bob = running.ida, running.bob
        asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
        kept = [
            await ida.call("CreateTaskPushNotificationConfig", taskId=asked["id"], id=f"c-{n}", url=receiver.url)
            for n in range(10)
        ]
        with pytest.raises(RpcError, match="at most 10 push configurations"):
            await ida.call("CreateTaskPushNotificationConfig", taskId=asked["id"], url=receiver.url)
        for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
            with pytest.raises(RpcError) as foreign:
                await bob.call(method, taskId=asked["id"], id=kept[0]["id"])
            assert foreign.value.code == -32001
        for one in kept[1:]:
            await ida.call("DeleteTaskPushNotificationConfig", taskId=asked["id"], id=one["id"])
        left = await ida.call("ListTaskPushNotificationConfigs", taskId=asked["id"])
        assert [one["id"] for one in left["configs"]] == ["c-0"]


def test_the_key_is_made_once_for_its_owner_and_a_bad_one_is_told(tmp_path: Path) -> None:
    file = tmp_path / "data" / "push.key"
    assert read_push_key(file) == read_push_key(file) and file.stat().st_mode & 0o077 == 0
    file.write_text("c2hvcnQ=\n")
    with pytest.raises(InputUnusable, match="the key for push is 32 bytes in Base64, this one has 5"):
        read_push_key(file)


async def test_a_configuration_that_was_moved_to_another_task_cannot_be_read(postgres_url: str) -> None:
    """Credentials are bound to their caller and task: a writer of the table gives nobody those of others."""
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=2)
    try:
        push = Push(pool, b"k" * 32, PushHosts())
        await push.put("ida", "t-1", TaskPushNotificationConfig(id="c", url="https://example.com", token="secret"))
        assert [one.token for one in await push.list("ida", "t-1")] == ["secret"]
        await pool.execute("UPDATE apc_app.a2a_push SET caller = 'bob', task_id = 't-2'")
        with pytest.raises(InvalidTag):
            await push.list("bob", "t-2")
    finally:
        await pool.close()
