"""The model that the settings name, and a service that speaks OpenAI's API."""

import asyncio
import json
import socket
from typing import Any

import pytest
from pydantic import SecretStr
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage
from starlette.responses import JSONResponse, Response

from apc_minds.actions import ActionContext, ToolRegistry
from apc_minds.context import ContextSession, InMemoryContextStore
from apc_minds.llm import (
    AnswerInvalid,
    AnswerTooLong,
    LLMError,
    LLMSettings,
    Mind,
    ModelAway,
    ModelRefused,
    ModelUnusable,
    Recording,
    make_model,
)

from .model_service import COMPLETION_TOKENS, PROMPT_TOKENS, Reply, completion, model_service, written

KEY = "sk-secret-1"
NOT_PATIENT = {"retry-after-ms": "1"}
"""How long the client waits before its own further attempts."""
TOKENS = PROMPT_TOKENS + COMPLETION_TOKENS


def settings_for(url: str, **more: Any) -> LLMSettings:
    return LLMSettings(model="small", base_url=url, api_key=SecretStr(KEY), **more)


async def talk(settings: LLMSettings, usage: RunUsage, tools: ToolRegistry | None = None) -> str:
    mind = Mind(make_model(settings), settings=settings, tools=tools)
    recording = Recording(InMemoryContextStore(), "s-1", 0, "m-1")
    actions = ActionContext(agent_id="a", session_id="s-1")
    async with mind.model:
        exchange = await mind.answer(ContextSession("s-1"), "hello", actions=actions, recording=recording, usage=usage)
    return exchange.response


async def failed(reply: Reply, error: type[LLMError], **more: Any) -> tuple[LLMError, RunUsage, int]:
    """Return the error of a service that answers so, what it has cost, and how often it was asked."""
    usage = RunUsage()
    async with model_service(reply) as service:
        with pytest.raises(error) as raised:
            await talk(settings_for(service.url, **more), usage)
        assert KEY not in str(raised.value)
        return raised.value, usage, len(service.requests)


async def test_a_service_that_speaks_openais_api() -> None:
    async def reply(body: dict[str, Any]) -> str:
        return written(response="from the service")

    usage = RunUsage()
    async with model_service(reply) as service:
        assert await talk(settings_for(service.url, answer_tokens=300, temperature=0.5), usage) == "from the service"
    ((body,), (authorization,)) = service.requests, service.authorizations
    assert (authorization, body["model"], body["temperature"]) == (f"Bearer {KEY}", "small", 0.5)
    assert 300 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert (usage.total_tokens, usage.cost) == (TOKENS, None)


async def test_it_acts_by_calls_of_the_answering_function(tools: ToolRegistry) -> None:
    async def reply(body: dict[str, Any]) -> Response:
        (function,) = (tool["function"]["name"] for tool in body["tools"])
        add = {"action": "add", "type": "tool", "params": {"left": 2, "right": 3}}
        told = str(body["messages"][-1]["content"])
        document = written(response="It is 5.") if '"result":5' in told else written(actions=[add], stop=False)
        call = {"id": "call-1", "type": "function", "function": {"name": function, "arguments": document}}
        return JSONResponse(completion({"content": None, "tool_calls": [call]}, "tool_calls"))

    usage = RunUsage()
    async with model_service(reply) as service:
        assert await talk(settings_for(service.url), usage, tools) == "It is 5."
    assert (len(service.requests), usage.total_tokens) == (2, 2 * TOKENS)


async def test_prices_of_the_settings_make_the_cost() -> None:
    async def reply(body: dict[str, Any]) -> str:
        return written(response="yes")

    usage = RunUsage()
    async with model_service(reply) as service:
        await talk(settings_for(service.url, input_price=2, output_price=8), usage)
    assert float(usage.cost or 0) == (2 * PROMPT_TOKENS + 8 * COMPLETION_TOKENS) / 1_000_000


async def test_endless_prose_is_one_error_and_is_paid_for() -> None:
    async def reply(body: dict[str, Any]) -> str:
        return "Well, let me think about that."

    error, usage, asked = await failed(reply, AnswerInvalid, output_retries=2)
    assert "no AgentResponse" in str(error)
    assert (asked, usage.requests, usage.total_tokens) == (3, 3, 3 * TOKENS)


async def test_an_answer_of_a_megabyte_is_one_error_and_is_paid_for() -> None:
    async def reply(body: dict[str, Any]) -> str:
        return written(response="x" * 1_000_000)

    error, usage, asked = await failed(reply, AnswerTooLong)
    assert "65536 are read" in str(error)
    assert (asked, usage.requests, usage.total_tokens) == (1, 1, TOKENS)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ModelRefused),
        (401, ModelRefused),
        (403, ModelRefused),
        (404, ModelRefused),
        (422, ModelRefused),
        (429, ModelAway),
        (500, ModelAway),
        (503, ModelAway),
    ],
)
async def test_what_the_service_refuses_is_one_error_without_its_words(status: int, error: type[LLMError]) -> None:
    async def reply(body: dict[str, Any]) -> Response:
        return JSONResponse({"error": {"message": f"the key {KEY} is bad"}}, status, NOT_PATIENT)

    raised, _, _ = await failed(reply, error)
    assert f"status {status}" in str(raised)
    if isinstance(raised, ModelAway) and status in (429, 503):
        assert raised.retry_after == 0.001


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0}]}',
        b'{"choices": "\xff"}',
        *[json.dumps(completion({"content": text})).encode() for text in ("\ud800", "\0", "", "null", "[]")],
        json.dumps(completion({"content": None})).encode(),
        json.dumps(completion({"content": written(response="a\0b")})).encode(),
        json.dumps(completion({"content": None, "tool_calls": [{"id": "1", "type": "function"}]})).encode(),
    ],
)
async def test_a_body_that_is_no_completion_is_one_error(body: bytes) -> None:
    async def reply(asked: dict[str, Any]) -> Response:
        return Response(body, 200, NOT_PATIENT, media_type="application/json")

    await failed(reply, LLMError, output_retries=1)


async def test_a_service_that_hangs_is_away() -> None:
    async def reply(body: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    await failed(reply, ModelAway, timeout=0.2)


async def test_a_service_that_is_not_there_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    with pytest.raises(ModelAway):
        await talk(settings_for(url, timeout=5), RunUsage())


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(LLMSettings(api_key=SecretStr(KEY)))


@pytest.mark.parametrize("name", [None, "nonsense", "nobody:model"])
def test_a_name_that_leads_to_no_model_is_refused(name: str | None) -> None:
    with pytest.raises(ModelUnusable, match="APC_LLM_MODEL"):
        make_model(LLMSettings(model=name))


def test_a_provider_without_its_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelUnusable, match="OPENAI_API_KEY"):
        make_model(LLMSettings(model="openai:gpt-5"))


def test_pydantic_ais_test_model_is_a_name_too() -> None:
    assert isinstance(make_model(LLMSettings(model="test")), TestModel)
