"""Models that answer what a test tells them to."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

Answer = dict[str, Any] | str
"""An AgentResponse as a document, or plain text."""


def document(response: str | None = None, *, actions: Sequence[dict[str, Any]] = (), stop: bool = True) -> Answer:
    """Return an AgentResponse."""
    return {"status": "SUCCESS", "thoughts": [], "actions": list(actions), "stop": stop, "response": response}


def model_of(think: Callable[[list[ModelMessage], AgentInfo], Answer]) -> FunctionModel:
    """Return a model that answers what `think` says."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = think(messages, info)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, said)])

    return FunctionModel(answer)


def model_saying(*answers: Answer) -> FunctionModel:
    """Return a model that gives these answers, one after the other; asked more often, it fails the test."""
    left: Iterator[Answer] = iter(answers)
    return model_of(lambda messages, info: next(left))


def silent_model() -> FunctionModel:
    """Return a model that must not be asked."""

    def refuse(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        raise AssertionError("the model was asked")

    return model_of(refuse)


def last_told(messages: list[ModelMessage]) -> str:
    """Return what the model was told last."""
    newest = messages[-1]
    assert isinstance(newest, ModelRequest)
    part = newest.parts[-1]
    assert isinstance(part, UserPromptPart)
    return str(part.content)


def data_of(told: str) -> str:
    """Return what stands between the lines of a fence."""
    first, *lines, last = told.splitlines()
    assert first.startswith("<<data ") and last.startswith("<<end "), told
    return "\n".join(lines)


def silent_named(model: Model) -> Model:
    """Return a model of the same name that must not be asked: the digest of a prompt has the model's name in it."""
    silent = silent_model()
    silent._model_name = model.model_name
    return silent
