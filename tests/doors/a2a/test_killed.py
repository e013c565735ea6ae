"""Kill -9 of doors, gate and worker while tasks are begun, at work and asked: every task ends once, none is lost."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import httpx
import psutil
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import InternalError, InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from tests.doors.a2a.conftest import A2AClient, made, state_of
from tests.doors.a2a.test_push import Receiver, receiving
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.broker, pytest.mark.postgres, pytest.mark.timeout(400)]

TEAM = "tests.doors.a2a.desk_team:team"
TASKS = 8
SPOKEN = {"A2A-Version": "1.0", "A2A-Extensions": "urn:apc-bus:a2a:repeats:v1"}


@asynccontextmanager
async def started(environment: dict[str, str], word: str, *arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """A command that has written a line with this word to stderr, and the line; killed at the end."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apc_cli", *arguments, env=os.environ | environment, stderr=PIPE, stdout=PIPE
    )
    assert running.stderr is not None
    try:
        seen = []
        async for line in running.stderr:
            seen.append(line.decode())
            if word in seen[-1]:
                break
        else:
            raise AssertionError("".join(seen))
        reading = asyncio.create_task(running.stderr.read())
        yield running, seen[-1]
        reading.cancel()
    finally:
        children = psutil.Process(running.pid).children(recursive=True) if running.returncode is None else []
        for one in (psutil.Process(running.pid), *children) if running.returncode is None else ():
            one.kill()
        await running.wait()


def kill_child(system: Process, word: str) -> None:
    """Kill -9 the process of a supervised service or agent; its supervisor starts another one."""
    alive = [one for one in psutil.Process(system.pid).children() if one.status() != psutil.STATUS_ZOMBIE]
    (child,) = [one for one in alive if word in " ".join(one.cmdline())]
    os.kill(child.pid, signal.SIGKILL)


@asynccontextmanager
async def door(environment: dict[str, str], token: str) -> AsyncIterator[tuple[Process, A2AClient]]:
    """A door in another process, and a client."""
    async with started(environment, "A2A: ", "serve", "a2a", TEAM) as (running, line):
        url = line.split()[-1].removesuffix("/.well-known/agent-card.json")
        headers = {"Authorization": f"Bearer {token}", **SPOKEN}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            yield running, A2AClient(http)


async def patiently(client: A2AClient, method: str, **params: Any) -> Any:
    """Repeat a request until it is answered, as a client does that gets 503."""
    found: list[Any] = []

    async def is_answered() -> bool:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await client.http.post("/a2a/jsonrpc", json=body)
        if answer.status_code == 503:
            return False
        said = answer.json()
        if "result" not in said and said["error"]["code"] == -32603:
            return False
        found[:] = [said]
        return True

    await until(is_answered)
    return found[0]


async def test_every_task_ends_once_whatever_dies(amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> None:
    environment = {
        "APC_AMQP_URL": amqp_vhost_url,
        "APC_DATABASE_URL": postgres_url,
        "APC_DATA_DIR": str(tmp_path),
        "APC_A2A_LISTEN": "127.0.0.1:0",
    }
    async with started(environment, "ready after", "up", "--agent", TEAM) as (system, _):
        token = await caller_added(environment)
        assert token.startswith("apc_a2a_")
        async with door(environment, token) as (first, one), door(environment, token) as (_, two):
            messages = [made({"data": {"text": f"boat {n}", "amount": 700}}, message_id=f"m-{n}") for n in range(TASKS)]
            sending = [
                asyncio.create_task(
                    patiently(one, "SendMessage", message=message, configuration={"returnImmediately": True})
                )
                for message in messages
            ]
            kill_child(system, "orchestrator")  # some are begun, some are not judged yet
            tasks = [said["result"]["task"]["id"] for said in await asyncio.gather(*sending)]
            first.kill()
            kill_child(system, "clerk")
            again = [
                await patiently(two, "SendMessage", message=message, configuration={"returnImmediately": True})
                for message in messages
            ]
            assert [said["result"]["task"]["id"] for said in again] == tasks, "the same message is the same task"
            for task_id in tasks:
                await two.comes_to(task_id, "INPUT_REQUIRED")
            kill_child(system, "persister")
            answers = [
                asyncio.create_task(
                    patiently(
                        two, "SendMessage", message=made({"text": "yes"}, message_id=f"a-{task_id}", taskId=task_id)
                    )
                )
                for task_id in tasks
            ]
            kill_child(system, "orchestrator")
            await asyncio.gather(*answers)
            ended = [await two.comes_to(task_id, "COMPLETED") for task_id in tasks]
            assert [one["artifacts"][0]["parts"][0]["text"] for one in ended] == [
                f"paid for boat {n}" for n in range(TASKS)
            ]
            listed = await two.call("ListTasks")
            assert listed["totalSize"] == TASKS and {state_of(one) for one in listed["tasks"]} == {"COMPLETED"}


# The client of the protocol's own library, over both bindings, and a receiver of push.

Answered = TypeVar("Answered")
AWAY = (A2AClientError, InternalError, TaskNotFoundError)
"""What the library raises while a door is away, or answers 503, or is new and the gate has not judged the start yet."""
PAUSES = {"pause_seconds": 0.1}


class Doors:
    """One door after another at the same address."""

    def __init__(self, stack: AsyncExitStack, environment: dict[str, str]) -> None:
        self._stack = stack
        self._environment = environment
        self._running: Process | None = None

    async def replace(self) -> None:
        """Kill -9 the door, if one runs, and start another one."""
        if self._running is not None:
            self._running.kill()
            await self._running.wait()
        arguments = ("A2A: ", "serve", "a2a", TEAM)
        self._running, _ = await self._stack.enter_async_context(started(self._environment, *arguments))


class SdkCaller:
    """A caller with the library's client, who repeats what was not answered."""

    def __init__(self, client: Client, receiver: str) -> None:
        self._client = client
        self._receiver = receiver

    async def begin(self, number: int) -> str:
        """Begin a task, whose receiver is told; return its id."""
        part = Part(data=ParseDict({"text": f"boat {number}", "amount": 700}, Value()))
        configuration = SendMessageConfiguration(
            return_immediately=True, task_push_notification_config=TaskPushNotificationConfig(url=self._receiver)
        )
        sent = Message(message_id=f"m-{number}", role=Role.ROLE_USER, parts=[part])
        task = await self._sent(SendMessageRequest(message=sent, configuration=configuration))
        return task.id

    async def answer(self, task_id: str) -> None:
        """Say yes, also when an answer that nobody confirmed was taken."""
        sent = Message(message_id=f"a-{task_id}", role=Role.ROLE_USER, parts=[Part(text="yes")], task_id=task_id)
        configuration = SendMessageConfiguration(return_immediately=True)
        with suppress(UnsupportedOperationError, InvalidParamsError):  # it asks no more
            await self._sent(SendMessageRequest(message=sent, configuration=configuration))

    async def task(self, task_id: str) -> Task:
        """Return a task."""
        return await persistently(lambda: self._client.get_task(GetTaskRequest(id=task_id)))

    async def all_tasks(self) -> list[Task]:
        """Return every task of this caller."""
        listed = await persistently(lambda: self._client.list_tasks(ListTasksRequest(include_artifacts=True)))
        assert listed.total_size == len(listed.tasks)
        return list(listed.tasks)

    async def follow(self, task_id: str, seen: list[str]) -> None:
        """Note each state of a task up to its end, over as many streams as it takes."""

        async def has_ended() -> bool:
            try:
                async for one in self._client.subscribe(SubscribeToTaskRequest(id=task_id)):
                    if one.HasField("task") or one.HasField("status_update"):
                        status = one.task.status if one.HasField("task") else one.status_update.status
                        seen.append(TaskState.Name(status.state).removeprefix("TASK_STATE_"))
            except UnsupportedOperationError:
                seen.append(TaskState.Name((await self.task(task_id)).status.state).removeprefix("TASK_STATE_"))
            except AWAY:
                return False
            return seen[-1] == "COMPLETED"

        await until(has_ended, 200, **PAUSES)

    async def come_to(self, task_ids: Sequence[str], state: TaskState) -> None:
        """Wait until these tasks have a state."""

        async def have_come() -> bool:
            return all([(await self.task(one)).status.state == state for one in task_ids])

        await until(have_come, 200, **PAUSES)

    async def _sent(self, request: SendMessageRequest) -> Task:
        async def send() -> Task:
            async for one in self._client.send_message(request):
                return one.task
            raise AssertionError("no answer")

        return await persistently(send)


async def persistently(ask: Callable[[], Awaitable[Answered]]) -> Answered:
    """Ask until it is answered."""
    found: list[Answered] = []

    async def is_answered() -> bool:
        try:
            found[:] = [await ask()]
        except AWAY:
            return False
        return True

    await until(is_answered, 200, **PAUSES)
    return found[0]


@pytest.mark.parametrize("binding", [TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON])
async def test_the_librarys_client_loses_and_doubles_nothing_through_restarts(
    binding: TransportProtocol, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """Killed at SUBMITTED, WORKING, INPUT_REQUIRED, and while a receiver is told."""
    environment = {
        "APC_AMQP_URL": amqp_vhost_url,
        "APC_DATABASE_URL": postgres_url,
        "APC_DATA_DIR": str(tmp_path),
        "APC_A2A_LISTEN": f"127.0.0.1:{free_ports(1)[0]}",
        "APC_A2A_PUSH_HOSTS": '["127.0.0.1"]',
    }
    async with AsyncExitStack() as stack:
        system, _ = await stack.enter_async_context(started(environment, "ready after", "up", "--agent", TEAM))
        token = await caller_added(environment)
        receiver = await stack.enter_async_context(receiving())
        doors = Doors(stack, environment)
        await doors.replace()
        headers = {"Authorization": f"Bearer {token}", **SPOKEN}
        http = await stack.enter_async_context(httpx.AsyncClient(headers=headers, timeout=30))
        config = ClientConfig(httpx_client=http, streaming=True, supported_protocol_bindings=[binding])
        client = await ClientFactory(config).create_from_url(f"http://{environment['APC_A2A_LISTEN']}")
        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, supported_protocol_bindings=[binding]))
        following = SdkCaller(client, receiver.url)
        caller = SdkCaller(polling.create(await client_card(http, environment)), receiver.url)

        kill_child(system, "orchestrator")  # SUBMITTED: nothing is judged
        beginning = [asyncio.create_task(caller.begin(number)) for number in range(TASKS)]
        await doors.replace()
        tasks = await asyncio.gather(*beginning)
        assert [await caller.begin(number) for number in range(TASKS)] == tasks, "a message is one task"
        seen: list[list[str]] = [[] for _ in tasks]
        streams = [asyncio.create_task(following.follow(*one)) for one in zip(tasks, seen, strict=True)]
        kill_child(system, "clerk")  # WORKING
        await doors.replace()
        await caller.come_to(tasks, TaskState.TASK_STATE_INPUT_REQUIRED)
        kill_child(system, "orchestrator")  # INPUT_REQUIRED
        kill_child(system, "clerk")
        await doors.replace()
        receiver.status = 503  # what follows is told, and not confirmed
        answering = [asyncio.create_task(caller.answer(one)) for one in tasks]
        kill_child(system, "orchestrator")
        await doors.replace()
        await asyncio.gather(*answering)
        await caller.come_to(tasks, TaskState.TASK_STATE_COMPLETED)
        receiver.status = 200
        await doors.replace()  # while they are told
        await asyncio.gather(*streams)
        await all_told(postgres_url)
        assert all(states[-1] == "COMPLETED" for states in seen)
        doubled = await all_ended_once(caller, tasks, receiver, postgres_url)
        print(f"\n{binding.value}: {TASKS} tasks, {len(receiver.seen)} told, of them {doubled} again")
        assert doubled <= TASKS, "each door that died has left one message of a task unconfirmed at most"


async def all_ended_once(caller: SdkCaller, tasks: Sequence[str], receiver: Receiver, postgres_url: str) -> int:
    """Fail unless each task has ended once and its receiver knows it; return how many messages it was told again."""
    ended = {one.id: one for one in await caller.all_tasks()}
    assert sorted(ended) == sorted(tasks), "lost 0, doubled 0"
    for number, task_id in enumerate(tasks):
        (artifact,) = ended[task_id].artifacts
        assert artifact.parts[0].text == f"paid for boat {number}"
        told = [one for one in receiver.seen if task_id in json.dumps(one)]
        assert [one for one in told if "artifactUpdate" in one] and "COMPLETED" in states_told(told)
    assert await acts_of(postgres_url) == {task_id: (1, 1) for task_id in tasks}, "answered once, ended once"
    return len(receiver.seen) - len({json.dumps(one, sort_keys=True) for one in receiver.seen})


async def caller_added(environment: dict[str, str]) -> str:
    """Register a caller; return its token."""
    adding = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apc_cli", "caller", "add", "ida", env=os.environ | environment, stdout=PIPE
    )
    return (await adding.communicate())[0].decode().strip()


async def client_card(http: httpx.AsyncClient, environment: dict[str, str]) -> AgentCard:
    """Return the card of the door."""
    return await A2ACardResolver(http, f"http://{environment['APC_A2A_LISTEN']}").get_agent_card()


async def all_told(postgres_url: str) -> None:
    """Wait until every receiver was told everything; a door that died holds its lease for a minute."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await until(lambda: _is_told(connection), 200, **PAUSES)
    finally:
        await connection.close()


async def _is_told(connection: asyncpg.Connection) -> bool:
    rows = await connection.fetch("SELECT ended_at IS NOT NULL AS is_ended FROM apc_app.a2a_push")
    return len(rows) == TASKS and all(row["is_ended"] for row in rows)


def states_told(told: Sequence[Any]) -> set[str]:
    """Return the states that a receiver was told of."""
    return {state_of(one["statusUpdate"]) for one in told if "statusUpdate" in one}


async def acts_of(postgres_url: str) -> dict[str, tuple[int, int]]:
    """Return session -> accepted answers of the caller and accepted decisions of the team, of every session."""
    connection = await asyncpg.connect(postgres_url)
    try:
        rows = await connection.fetch(
            "SELECT session_id, count(*) FILTER (WHERE sender_agent_id = 'ida') AS answers, "
            "count(*) FILTER (WHERE packet_type = 'DECISION') AS ends FROM apc_log.agent_packets "
            "WHERE verdict = 'accepted' AND session_id IN (SELECT session_id FROM apc_log.sessions "
            "WHERE document ->> 'opener' = 'client-ida') GROUP BY session_id"
        )
    finally:
        await connection.close()
    return {row["session_id"]: (row["answers"], row["ends"]) for row in rows}
