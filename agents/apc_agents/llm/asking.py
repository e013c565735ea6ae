"""Asks a model for an AgentResponse, and tells it how to mend what is none."""

from collections.abc import Sequence
from typing import TypeVar

import orjson
from pydantic_ai import Agent as ModelAgent
from pydantic_ai import ModelRetry, TextOutput, ToolOutput
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage

from apc_agents.context import TokenCounter
from apc_agents.llm.errors import AnswerInvalid, LLMError, ModelAway, ModelRefused, ModelUnusable
from apc_agents.llm.provider import model_settings
from apc_agents.settings import LLMSettings
from apc_contracts.actions import AgentResponse, ResponseInvalid, parse_response
from apc_contracts.context import ResponseConstraints

OutputT = TypeVar("OutputT")

OUTPUT_TOOL = "answer"
"""The function that a model is told to call with its AgentResponse; the document as plain text is taken as well."""


async def ask_for_response(
    model: Model,
    instructions: str,
    messages: Sequence[ModelMessage],
    *,
    settings: LLMSettings,
    usage: RunUsage,
    counter: TokenCounter,
    response_limit: int,
    required: ResponseConstraints | None = None,
) -> AgentResponse:
    """One AgentResponse, whose `response` has at most response_limit tokens; `usage` grows even if it fails.

    A `response` that is not as `required` (longer than max_length characters; no JSON where the format is json) is sent
    back to the model like one that is too long.

    Raises:
        AnswerInvalid, AnswerTooLong: the model gave none. ModelAway, ModelRefused, ModelUnusable: it was not asked.
    """

    def fitting(answer: AgentResponse) -> AgentResponse:
        tokens = counter.count(answer.response or "")
        if tokens > response_limit:
            raise ModelRetry(f"response has {tokens} tokens and {response_limit} fit: shorten it")
        if required is not None and answer.response is not None:
            _check(answer.response, required)
        return answer

    asked: ModelAgent[None, AgentResponse] = ModelAgent(
        model,
        output_type=[ToolOutput(AgentResponse, name=OUTPUT_TOOL), TextOutput(_read)],
        instructions=instructions,
        retries=settings.output_retries,
        model_settings=model_settings(settings),
    )
    asked.output_validator(fitting)
    return await _run(asked, messages, usage)


async def ask_for_text(model: Model, instructions: str, text: str, *, settings: LLMSettings, usage: RunUsage) -> str:
    """Plain text. Raises as ask_for_response."""
    asked: ModelAgent[None, str] = ModelAgent(
        model, output_type=str, instructions=instructions, retries=1, model_settings=model_settings(settings)
    )
    return await _run(asked, text, usage)


async def _run(asked: ModelAgent[None, OutputT], prompt: str | Sequence[ModelMessage], usage: RunUsage) -> OutputT:
    try:
        if isinstance(prompt, str):
            return (await asked.run(prompt, usage=usage)).output
        return (await asked.run(None, message_history=prompt, usage=usage)).output
    except LLMError:
        raise
    except UnexpectedModelBehavior as error:
        why = error.__cause__ or error
        raise AnswerInvalid(f"the model gave no AgentResponse: {_told(why)}") from error
    except ModelRequestRejectedError as error:
        raise ModelRefused(f"{error.model_name} refuses the request{_status(error)}") from error
    except ModelAPIError as error:
        raise ModelAway(f"{error.model_name} does not answer{_status(error)}", error.retry_after) from error
    except (UserError, AgentRunError) as error:
        raise ModelUnusable(f"the model cannot be asked: {error}") from error


def _read(text: str) -> AgentResponse:
    try:
        return parse_response(text)
    except ResponseInvalid as invalid:
        raise ModelRetry(f"{invalid}. Answer with one JSON document, an AgentResponse, and nothing else") from invalid


def _check(response: str, required: ResponseConstraints) -> None:
    if required.max_length is not None and len(response) > required.max_length:
        raise ModelRetry(f"response has {len(response)} characters, {required.max_length} are allowed: shorten it")
    if required.format == "json":
        try:
            orjson.loads(response)
        except orjson.JSONDecodeError as error:
            raise ModelRetry(f"response is no JSON ({error}): write it as one JSON document") from error


def _status(error: ModelAPIError) -> str:
    """The provider's status; never its body, which may repeat what it was sent."""
    status = getattr(error, "status_code", None)
    code = error.provider_error_code
    return "".join([f", status {status}" if status else "", f", {code}" if code else ""])


def _told(error: BaseException) -> str:
    return " ".join(str(getattr(error, "message", error)).split())[:500]
