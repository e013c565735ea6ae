"""The chat: answers come word by word, survive a lost connection, and can be stopped and asked for again."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from tests.web.conftest import SERVER, TOKEN

from apc_minds.actions import ToolRegistry
from apc_minds.context import SessionConfig
from apc_minds.llm import LLMAgent
from apc_minds.memory import InMemoryMemoryStore
from apc_minds.tasks.in_memory import InMemoryTaskStore
from apc_minds.text import response_of
from apc_web.access import LOCAL_USER
from apc_web.app import make_app
from apc_web.chat_routes import chat_stream
from apc_web.chats import Chats
from apc_web.guard import AccessGuard

WORDS = ["One ", "word ", "after ", "the ", "other."]
PATIENCE = 20


class Scripted:
    """A model that streams, waits at its third word while `gate` is closed, and fails when told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[DeltaToolCalls | str]:
        self.asked += 1
        told = str(messages[-1].parts[-1].content)
        if told.startswith("fail"):
            raise RuntimeError("secret of the provider")
        if told.startswith("prose"):
            for word in WORDS:
                yield word
            return
        tool = info.output_tools[0].name
        if told.startswith("spell"):
            action = {"action": "spell", "type": "tool", "params": {"word": "sea"}}
            document = {"status": "EXECUTING", "thoughts": [], "actions": [action], "stop": False, "response": None}
            yield {0: DeltaToolCall(tool, json.dumps(document))}
            return
        yield {0: DeltaToolCall(tool, '{"status":"SUCCESS","thoughts":[],"actions":[],"stop":true,"response":"')}
        for number, word in enumerate(WORDS):
            if number == 2:
                await self.gate.wait()
            yield {0: DeltaToolCall(json_args=word)}
        yield {0: DeltaToolCall(json_args='"}')}


def make_agent(model: Scripted) -> LLMAgent:
    tools = ToolRegistry()

    @tools.tool()
    async def spell(word: str) -> list[str]:
        return list(word)

    return LLMAgent(
        "helper-1",
        role="helper",
        swarm="chat",
        model=FunctionModel(stream_function=model.answer),
        tools=tools,
        config=SessionConfig(max_tokens=600),
    )


class ChatBench:
    """The chat over a scripted model."""

    def __init__(self) -> None:
        from tests.web.chat_services import services_with

        self.model = Scripted()
        memory = InMemoryMemoryStore(LOCAL_USER)
        self.chats = Chats(make_agent(self.model), memory.for_owner, InMemoryTaskStore(), is_kept=False)
        transport = httpx.ASGITransport(AccessGuard(make_app(services_with(self.chats)), TOKEN))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.AsyncClient(transport=transport, base_url=SERVER, headers=headers)

    async def ask(self, method: str, path: str, status: int, **options: Any) -> Any:
        response = await self.client.request(method, f"/api/v1/chat/sessions{path}", **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def events(self, chat: str) -> AsyncGenerator[tuple[str, Any]]:
        response = await chat_stream(self.chats, LOCAL_USER, chat)
        async for event in response.body_iterator:  # type: ignore[attr-defined]
            yield event.event, json.loads(event.data)

    async def answered(self, chat: str, content: str) -> Any:
        """Send a message and wait for what becomes of it."""
        await self.ask("POST", f"/{chat}/messages", 202, json={"content": content})
        answer = self.chats.answer_of(LOCAL_USER, chat)
        assert answer is not None and answer.task is not None
        await asyncio.wait([answer.task], timeout=PATIENCE)
        return await self.ask("GET", f"/{chat}", 200)


@pytest.fixture
async def chat() -> AsyncIterator[ChatBench]:
    bench = ChatBench()
    yield bench
    await bench.chats.close()
    await bench.client.aclose()


async def test_an_answer_comes_word_by_word_and_a_second_reader_sees_the_same(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    chat.model.gate.clear()
    events = chat.events(name)
    assert (await anext(events))[1]["answer"] is None
    await chat.ask("POST", f"/{name}/messages", 202, json={"content": "hello"})
    text = ""
    states: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while text != "".join(WORDS[:2]):
            kind, data = await anext(events)
            text = data["answer"]["text"] if kind == "state" else text + data["delta"]
        late = chat.events(name)
        kind, data = await anext(late)
        assert kind == "state" and data["answer"]["text"] == text and data["answer"]["state"] == "thinking"
        busy = await chat.ask("POST", f"/{name}/messages", 409, json={"content": "again"})
        assert busy["code"] == "BUSY"
        chat.model.gate.set()
        while not states or states[-1] != "done":
            kind, data = await anext(events)
            if kind == "state":
                states.append(data["answer"]["state"])
    assert data["answer"]["text"] == "".join(WORDS)
    assert [one["role"] for one in data["props"]["messages"]] == ["user", "assistant"]
    await events.aclose()
    await late.aclose()


async def test_a_stopped_answer_leaves_the_conversation_as_it_was(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    chat.model.gate.clear()
    await chat.ask("POST", f"/{name}/messages", 202, json={"content": "hello"})
    answer = chat.chats.answer_of(LOCAL_USER, name)
    assert answer is not None
    async with asyncio.timeout(PATIENCE):
        while not answer.text:
            await answer.changed.wait()
    stopped = await chat.ask("POST", f"/{name}/stop", 200)
    assert stopped["answer"]["state"] == "stopped" and stopped["answer"]["message"] == "hello"
    assert stopped["props"]["messages"] == [] and stopped["props"]["canSend"]
    chat.model.gate.set()
    again = await chat.answered(name, "hello")
    assert again["answer"]["state"] == "done" and len(again["props"]["messages"]) == 2


async def test_actions_show_name_and_status_alone(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    shown = await chat.answered(name, "spell sea")
    assert shown["answer"]["actions"] == [{"name": "spell", "status": "SUCCESS"}]
    assert shown["answer"]["text"] == "".join(WORDS)


async def test_prose_is_an_answer_and_a_failure_tells_no_secret(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    assert (await chat.answered(name, "prose, please"))["answer"]["text"] == "".join(WORDS)
    assert chat.model.asked == 1, "it is not asked again for JSON"
    failed = await chat.answered(name, "fail")
    assert failed["answer"]["state"] == "failed" and "secret" not in json.dumps(failed)
    assert len(failed["props"]["messages"]) == 2


async def test_conversations_are_listed_exported_and_deleted(chat: ChatBench) -> None:
    name = (await chat.ask("POST", "", 201))["session_id"]
    for number in range(12):
        await chat.answered(name, f"{number} " + "word " * 40)
    state = await chat.ask("GET", f"/{name}", 200)
    history = await chat.ask("GET", f"/{name}/history", 200)
    assert len(history["messages"]) == 24 > len(state["props"]["messages"]), "folded parts are in the export"
    held = {one["id"] for one in state["props"]["messages"]}
    hidden = [one for one in history["messages"] if one["id"] not in held]
    assert (state["hidden"], state["shortened"]) == (len(hidden), 0), "the page says so"
    [listed] = (await chat.ask("GET", "", 200))["items"]
    assert listed["title"].startswith("0 word") and listed["messages"] == 24
    assert (await chat.ask("GET", f"/{name}/tasks", 200))["items"] == []
    await chat.ask("DELETE", f"/{name}", 204)
    assert (await chat.ask("GET", "", 200))["items"] == []
    assert (await chat.ask("GET", "/not-there", 404))["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("given", "response"),
    [
        ("", None),
        ('{"status": "SUCCESS", "respo', None),
        ('{"response": "Hel', "Hel"),
        ('{"response": "a\\nb\\u00', "a\nb"),
        ('{"response": null', None),
        ("Hello", "Hello"),
        ({"response": "whole"}, "whole"),
        ("{]", None),
        ("[1]", "[1]"),
    ],
)
def test_the_response_of_an_unfinished_answer(given: Any, response: str | None) -> None:
    assert response_of(given) == response
