"""The model that the settings name, and a service that speaks OpenAI's API."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from apc_agents.actions import ActionContext
from apc_agents.context import ContextSession, InMemoryContextStore
from apc_agents.llm import LLMSettings, Mind, ModelAway, ModelRefused, ModelUnusable, Recording, make_model

KEY = "sk-secret-1"


class Service:
    """A service on this machine that answers as OpenAI's does, and remembers what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
                service.requests.append((self.path, self.headers["authorization"], body))
                answer = orjson.dumps(service.completion() if service.status == 200 else {"error": {"message": KEY}})
                self.send_response(service.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def completion(self) -> dict[str, Any]:
        answer = orjson.dumps({"status": "SUCCESS", "stop": True, "response": "from the service"}).decode()
        message = {"role": "assistant", "content": answer}
        return {
            "id": "c-1",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 12, "total_tokens": 62},
        }


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    thread = threading.Thread(target=running.server.serve_forever)
    thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    thread.join()


async def talk(settings: LLMSettings, usage: RunUsage) -> str:
    mind = Mind(make_model(settings), settings=settings)
    recording = Recording(InMemoryContextStore(), "s-1", 0, "m-1")
    actions = ActionContext(agent_id="a", session_id="s-1")
    async with mind.model:
        exchange = await mind.answer(ContextSession("s-1"), "hello", actions=actions, recording=recording, usage=usage)
    return exchange.response


async def test_a_service_that_speaks_openais_api(service: Service) -> None:
    settings = LLMSettings(model="small", base_url=service.url, api_key=SecretStr(KEY), answer_tokens=300)
    usage = RunUsage()
    assert await talk(settings, usage) == "from the service"
    assert usage.total_tokens == 62
    ((path, authorization, body),) = service.requests
    assert (path, authorization, body["model"]) == ("/v1/chat/completions", f"Bearer {KEY}", "small")


@pytest.mark.parametrize(("status", "error"), [(401, ModelRefused), (400, ModelRefused), (503, ModelAway)])
async def test_what_the_service_refuses_is_one_error_without_its_words(
    service: Service, status: int, error: type[Exception]
) -> None:
    service.status = status
    settings = LLMSettings(model="small", base_url=service.url, api_key=SecretStr(KEY))
    with pytest.raises(error, match=f"status {status}") as raised:
        await talk(settings, RunUsage())
    assert KEY not in str(raised.value)


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
