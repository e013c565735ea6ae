"""A model of the OpenAI Agents SDK that says what a test tells it to, and counts how often it was asked."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

Think = Callable[[str | None, list[Any]], list[Any]]
"""Instructions and input items -> output items."""


def call(name: str, arguments: str, call_id: str) -> ResponseFunctionToolCall:
    """Return a call of a tool."""
    return ResponseFunctionToolCall(
        id=f"f-{call_id}", call_id=call_id, name=name, arguments=arguments, type="function_call"
    )


def said(text: str) -> ResponseOutputMessage:
    """Return an answer in words."""
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="m-1", role="assistant", status="completed", type="message", content=content)


def outputs(items: Sequence[Any]) -> list[str]:
    """Return what tools gave, in order."""
    return [str(one["output"]) for one in items if one.get("type") == "function_call_output"]


class FakeModel(Model):
    """Thinks with a function; each answer costs 7 tokens."""

    def __init__(self, think: Think) -> None:
        self.think = think
        self.asked: list[tuple[str | None, list[Any]]] = []

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *args: Any, **kwargs: Any
    ) -> ModelResponse:
        items = input if isinstance(input, list) else [{"role": "user", "content": input}]
        self.asked.append((system_instructions, items))
        usage = Usage(requests=1, input_tokens=5, output_tokens=2, total_tokens=7)
        return ModelResponse(output=self.think(system_instructions, items), usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
