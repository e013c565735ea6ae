"""What a client of the chat must not get: others' conversations, unlimited answers, secrets of the provider."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.web.chat_services import services_with
from tests.web.test_chat import ChatBench

from apc_web import chats as limits
from apc_web.access import LOCAL_USER
from apc_web.app import make_app
from apc_web.chat_models import MOST_CHARACTERS
from apc_web.errors import ApiError

OTHER = "somebody-else"


@pytest.fixture
async def chat() -> AsyncIterator[ChatBench]:
    bench = ChatBench()
    yield bench
    await bench.chats.close()
    await bench.client.aclose()


async def test_another_users_conversation_is_not_there(chat: ChatBench) -> None:
    name = (await chat.chats.begin(OTHER)).session_id
    assert (await chat.chats.state(OTHER, name)).session_id == name, "its owner has it"
    problems = []
    for path in (name, "not-there"):
        for method, tail in (("GET", ""), ("GET", "/history"), ("GET", "/events"), ("POST", "/stop"), ("DELETE", "")):
            problems.append(await chat.ask(method, f"/{path}{tail}", 404))
        problems.append(await chat.ask("POST", f"/{path}/messages", 404, json={"content": "hello"}))
    assert all(one == problems[0] for one in problems)
    assert (await chat.ask("GET", "", 200))["items"] == []


async def test_messages_and_names_have_limits(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    for body in (
        {},
        {"content": ""},
        {"content": "x" * (MOST_CHARACTERS + 1)},
        {"content": 7},
        {"content": "a", "b": 1},
    ):
        assert (await chat.ask("POST", f"/{name}/messages", 422, json=body))["code"] == "INVALID"
    await chat.ask("POST", f"/{name}/messages", 202, json={"content": "x" * MOST_CHARACTERS})  # within them it is taken
    for path in ("a" * 129, "%00", "a%20b", "%2e%2e%2fx"):
        assert (await chat.client.get(f"/api/v1/chat/sessions/{path}")).status_code in (404, 422)


async def test_only_some_answers_are_made_at_the_same_time(chat: ChatBench, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.model.gate.clear()
    names = [(await chat.ask("POST", "", 201))["session_id"] for _ in range(limits.MOST_ANSWERS + 1)]
    for name in names[:-1]:
        await chat.ask("POST", f"/{name}/messages", 202, json={"content": "hello"})
    refused = await chat.ask("POST", f"/{names[-1]}/messages", 429, json={"content": "hello"})
    assert refused["code"] == "TOO_MANY"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(limits, "MOST_ANSWERS", len(names))
        await chat.ask("POST", f"/{names[-1]}/messages", 202, json={"content": "hello"})
    one_more = (await chat.ask("POST", "", 201))["session_id"]
    await chat.ask("POST", f"/{names[0]}/stop", 200)
    await chat.ask("POST", f"/{names[1]}/stop", 200)
    await chat.ask("POST", f"/{one_more}/messages", 202, json={"content": "hello"})


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_idle_conversations_leave_the_memory_and_running_ones_stay(
    chat: ChatBench, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    monkeypatch.setattr(limits, "MOST_CHATS", 3 if is_guarded else 1 << 40)
    chat.model.gate.clear()
    running = (await chat.ask("POST", "", 201))["session_id"]
    await chat.ask("POST", f"/{running}/messages", 202, json={"content": "hello"})
    for _ in range(6):
        await chat.ask("POST", "", 201)
    assert (len(chat.chats._dialogues) <= 3 + 1) is is_guarded
    answer = chat.chats.answer_of(LOCAL_USER, running)
    assert answer is not None and answer.task is not None and answer.state == "thinking"
    chat.model.gate.set()
    await asyncio.wait([answer.task])
    assert answer.state == "done"


async def test_a_server_without_an_agent_says_why(chat: ChatBench) -> None:
    app = make_app(services_with(None, "there is no agent"))
    chat.client._transport.app._app = app  # type: ignore[attr-defined]
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/x"), ("GET", "/x/events"), ("POST", "/x/stop")):
        problem = await chat.ask(method, path, 403)
        assert (problem["code"], problem["detail"]) == ("NO_CHAT", "there is no agent")


async def test_a_conversation_of_nobody_cannot_be_stopped(chat: ChatBench) -> None:
    with pytest.raises(ApiError):
        await chat.chats.stop(OTHER, "not-there")
