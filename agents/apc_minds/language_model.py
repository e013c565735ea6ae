"""A language model: how it is asked, and how its answers are kept.

Needs the extra `llm`; importing it takes a second.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from hashlib import sha256
from typing import Any, Final

import orjson

from apc_contracts.errors import ExtraMissing

try:
    import pydantic_ai  # noqa: F401 - the first that needs the extra
except ModuleNotFoundError as error:
    raise ExtraMissing(error) from error

from pydantic_ai import Agent as ModelAgent
from pydantic_ai import ModelRetry, RunContext, TextOutput, ToolOutput
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import Provider, infer_provider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, RunUsage
from pydantic_core import PydanticSerializationError

from apc_agents.errors import AgentError
from apc_bus.settings import LLMSettings
from apc_bus.telemetry import tracer_provider
from apc_contracts.agent import STATUS_SUCCESS, AgentResponse, ResponseConstraints, ResponseInvalid, parse_response
from apc_minds.context.conversation import ContextStore
from apc_minds.text import OnProgress, ResponseText, TokenCounter, response_of


class LLMError(AgentError):
    """Something went wrong between an agent and its model.

    AgentError
      LLMError
        ModelUnusable     the setting names no model that can be asked: says which setting to change
        ModelAway         (retry_after): the provider does not answer, or not now; asking again may help
        ModelRefused      the provider refuses the request; asking again does not help
        AnswerInvalid     the model gave no AgentResponse, however often it was told how to mend its answer
        AnswerTooLong     (size, limit): an answer of more bytes than may be read

    Whatever raises one of them leaves the conversation as it was.

    ```python
    from apc_minds.llm import AnswerInvalid, AnswerTooLong, LLMError, ModelAway, ModelRefused, ModelUnusable


    def said(error: LLMError) -> str:
        match error:
            case ModelUnusable() | ModelRefused():
                return f"change the settings: {error}"
            case ModelAway():
                return f"try again in {error.retry_after or 5} s"
            case AnswerInvalid() | AnswerTooLong():
                return "try another model"
        return str(error)


    assert said(ModelAway("busy", retry_after=3)) == "try again in 3 s"
    ```
    """


class ModelUnusable(LLMError):
    """The setting names no model that can be asked."""


class ModelAway(LLMError):
    """The provider does not answer, or not now; `message` says what it said.

    `retry_after` is in how many seconds the provider wants to be asked again; None if it did not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRefused(LLMError):
    """The provider refuses the request."""


class AnswerInvalid(LLMError):
    """The model gave no AgentResponse."""


class AnswerTooLong(LLMError):
    """An answer of `size` bytes, and `limit` may be read; `usage` is what it has cost all the same."""

    def __init__(self, size: int, limit: int, usage: RequestUsage) -> None:
        super().__init__(
            f"the model answered with {size} bytes, {limit} are read: raise APC_LLM_ANSWER_BYTES if need be"
        )
        self.size = size
        self.limit = limit
        self.usage = usage


# The model that the settings name.


def make_model(settings: LLMSettings) -> Model:
    """Return the model that `settings` name (APC_LLM_MODEL); with APC_LLM_BASE_URL one that speaks OpenAI's API.

    ```python
    from apc_minds.llm import LLMSettings, ModelUnusable, make_model

    try:
        make_model(LLMSettings(model=None))
    except ModelUnusable as error:
        assert "set APC_LLM_MODEL" in str(error)
    ```

    Raises:
        ModelUnusable: no model is named, pydantic-ai knows no such provider, or its key is missing.
    """
    if settings.model is None:
        raise ModelUnusable("no model: set APC_LLM_MODEL to provider:name, such as openai:gpt-5")
    if settings.base_url is not None:
        return _compatible_model(settings.model, settings.base_url, settings)
    try:
        return infer_model(settings.model, lambda name: _provider(name, settings))
    except (UserError, ValueError) as error:
        raise ModelUnusable(f"APC_LLM_MODEL={settings.model}: {error}") from error
    except ImportError as error:
        raise ModelUnusable(f"APC_LLM_MODEL={settings.model} needs a package that is not installed: {error}") from error


def model_settings(settings: LLMSettings) -> ModelSettings:
    """Return the options of every request to the provider: timeout, longest answer, temperature."""
    options = ModelSettings(timeout=settings.timeout.total_seconds())
    if settings.answer_tokens is not None:
        options["max_tokens"] = settings.answer_tokens
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    return options


def _compatible_model(name: str, base_url: str, settings: LLMSettings) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    try:
        provider = OpenAICompatibleProvider("apc", base_url=base_url, api_key=_key(settings))
        return OpenAIChatModel(name.removeprefix("openai:"), provider=provider)
    except (UserError, ValueError) as error:
        raise ModelUnusable(f"APC_LLM_BASE_URL cannot be used: {error}") from error


def _provider(name: str, settings: LLMSettings) -> Provider[Any]:
    key = _key(settings)
    if key is None or not name.startswith("openai"):
        return infer_provider(name)
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIProvider(api_key=key)


def _key(settings: LLMSettings) -> str | None:
    return None if settings.api_key is None else settings.api_key.get_secret_value()


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What an answer must be like."""

    fitting: Callable[[AgentResponse], AgentResponse]
    """Returns the answer, if it is as it must be. Raises ModelRetry."""
    takes_prose: bool
    """Whether a text that is no JSON is taken as the response."""


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
    takes_prose: bool = False,
) -> AgentResponse:
    """Ask for one AgentResponse of at most response_limit tokens; `usage` grows even if it fails.

    A `response` that is not as `required` (longer than max_length characters; no JSON where the format is json) is sent
    back to the model like one that is too long. With `takes_prose` a text that is no JSON is the response.

    Raises:
        AnswerInvalid, AnswerTooLong: the model gave none. ModelAway, ModelRefused, ModelUnusable: it was not asked.
    """

    def fitting(answer: AgentResponse) -> AgentResponse:
        _check_strictly(answer)
        tokens = counter.count(answer.response or "")
        if tokens > response_limit:
            raise ModelRetry(f"response has {tokens} tokens and {response_limit} fit: shorten it")
        if required is not None and answer.response is not None:
            _check(answer.response, required)
        return answer

    with spending(usage):
        run = await _for_responses().run(
            None,
            message_history=messages,
            model=model,
            instructions=instructions,
            deps=AnswerRules(fitting, takes_prose),
            retries=settings.output_retries,
            model_settings=model_settings(settings),
            usage=usage,
        )
        return run.output


async def ask_for_text(model: Model, instructions: str, text: str, *, settings: LLMSettings, usage: RunUsage) -> str:
    """Ask for plain text. Raises as ask_for_response."""
    asked: ModelAgent[None, str] = ModelAgent(
        model, output_type=str, instructions=instructions, retries=1, model_settings=model_settings(settings)
    )
    with spending(usage):
        return (await asked.run(text, usage=usage)).output


@cache
def _for_responses() -> ModelAgent[AnswerRules, AgentResponse]:
    """Return the model agent for responses. It is cached: building its schemas takes three quarters of a step."""
    asked = ModelAgent[AnswerRules, AgentResponse](
        output_type=[ToolOutput(AgentResponse, name=OUTPUT_TOOL), TextOutput(_read)], name="apc"
    )

    @asked.output_validator
    def fitting(run: RunContext[AnswerRules], answer: AgentResponse) -> AgentResponse:
        return run.deps.fitting(answer)

    return asked


@contextmanager
def spending(usage: RunUsage, wanted: str = "AgentResponse") -> Iterator[None]:
    """Translate errors of pydantic-ai into ours. Raises LLMError."""
    try:
        yield
    except AnswerTooLong as answered:
        usage.incr(RunUsage(requests=1))
        usage.incr(answered.usage)
        raise
    except LLMError:
        raise
    except UnexpectedModelBehavior as error:
        why = error.__cause__ or error
        raise AnswerInvalid(f"the model gave no {wanted}: {_told(why)}") from error
    except ModelRequestRejectedError as error:
        raise ModelRefused(f"{error.model_name} refuses the request{_status(error)}") from error
    except ModelAPIError as error:
        raise ModelAway(f"{error.model_name} does not answer{_status(error)}", error.retry_after) from error
    except (UserError, AgentRunError) as error:
        raise ModelUnusable(f"the model cannot be asked: {error}") from error


def _read(run: RunContext[AnswerRules], text: str) -> AgentResponse:
    if run.deps.takes_prose and text.strip() and not text.lstrip().startswith(("{", "[", "`")):
        return AgentResponse(status=STATUS_SUCCESS, thoughts=(), actions=(), stop=True, response=text.strip())
    try:
        return parse_response(text)
    except ResponseInvalid as invalid:
        raise ModelRetry(f"{invalid}. Answer with one JSON document, an AgentResponse, and nothing else") from invalid


def _check_strictly(answer: AgentResponse) -> None:
    """Check an answer given as a call of the function as strictly as one given as text."""
    try:
        parse_response(answer.model_dump_json())
    except (ResponseInvalid, PydanticSerializationError) as invalid:
        raise ModelRetry(f"{invalid}. Mend it, and answer again") from invalid


def _check(response: str, required: ResponseConstraints) -> None:
    if required.max_length is not None and len(response) > required.max_length:
        raise ModelRetry(f"response has {len(response)} characters, {required.max_length} are allowed: shorten it")
    if required.format == "json":
        try:
            orjson.loads(response)
        except orjson.JSONDecodeError as error:
            raise ModelRetry(f"response is no JSON ({error}): write it as one JSON document") from error


def _status(error: ModelAPIError) -> str:
    """Return the provider's status; never its body, which may repeat what it was sent."""
    status = getattr(error, "status_code", None)
    code = error.provider_error_code
    return "".join([f", status {status}" if status else "", f", {code}" if code else ""])


def _told(error: BaseException) -> str:
    return " ".join(str(getattr(error, "message", error)).split())[:500]


# Recording: the answers of a model are kept before they are used, so that what runs again asks no model.
#
# The key of an answer is (revision of the conversation, origin, number of the request, digest of the prompt): the
# origin is the packet, or the message, that the model is asked about. Records stand in the archive of the
# conversation, beside its folded turns; those of old revisions go.

VOLATILE: Final = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of a message that differ each time it is made."""
RECORDS: Final = "record/"
"""Every record's id in the archive begins so."""


@dataclass(slots=True)
class Recording:
    """The answers to what one packet, or one message, makes an agent ask.

    Attributes:
        store: where they are kept.
        session_id: of the conversation that they are asked in.
        revision: of that conversation.
        origin: the packet's id, or a digest of the message.
        asked: how many requests were made so far.
    """

    store: ContextStore
    session_id: str
    revision: int
    origin: str
    asked: int = 0

    @property
    def prefix(self) -> str:
        """The beginning of the ids of these records."""
        return f"{RECORDS}{self.revision}/{self.origin}/"

    def next_key(self, digest: str) -> str:
        """Return the key of the next request; `digest` is that of its prompt."""
        self.asked += 1
        return f"{self.prefix}answer/{self.asked}/{digest}"

    async def find(self, key: str) -> ModelResponse | None:
        """Return the answer that was kept under a key."""
        kept = (await self.store.get_turns(self.session_id, [key])).get(key)
        if kept is None:
            return None
        (response,) = ModelMessagesTypeAdapter.validate_json(kept)
        assert isinstance(response, ModelResponse)
        return response

    async def fact(self, name: str, value: str) -> str:
        """Return what the text `name` of the prompt was the first time, else `value`; it may differ later."""
        key = f"{self.prefix}fact/{name}"
        kept = (await self.store.get_turns(self.session_id, [key])).get(key)
        if kept is not None:
            return str(orjson.loads(kept))
        await self.store.put_turns(self.session_id, {key: orjson.dumps(value)})
        return value

    async def keep(self, key: str, response: ModelResponse) -> None:
        """Keep `response` under `key`; durable when this returns. Raises AnswerInvalid: it has no form in UTF-8."""
        try:
            document = ModelMessagesTypeAdapter.dump_json([response])
        except PydanticSerializationError as error:
            raise AnswerInvalid(f"the model gave no text in UTF-8: {error}") from error
        await self.store.put_turns(self.session_id, {key: document})

    async def forget(self) -> None:
        """Forget all of it: a repeated question needs a new answer."""
        await self.store.delete_turns(self.session_id, self.prefix)

    async def forget_older(self, kept: int) -> None:
        """Forget what is `kept` revisions old: called at each revision, it bounds what is kept."""
        if self.revision >= kept:
            await self.store.delete_turns(self.session_id, f"{RECORDS}{self.revision - kept}/")


class RecordedModel(WrapperModel):
    """A model whose answers are bounded in size and time, priced, kept, and found again.

    ```python
    from pydantic_ai import Agent as ModelAgent
    from pydantic_ai.models.test import TestModel

    from apc_minds.context import InMemoryContextStore
    from apc_minds.llm import LLMSettings, RecordedModel, Recording

    kept, asked = InMemoryContextStore(), TestModel(custom_output_text="At seven.")
    for _ in range(2):  # the second run finds the answer of the first
        recorded = RecordedModel(asked, Recording(kept, "chat-1", 0, "m-1"), LLMSettings())
        answer = await ModelAgent(recorded).run("When do you open?")
        assert answer.output == "At seven."
    ```

    Args:
        wrapped: the model that is asked.
        recording: where the answers are kept.
        settings: the bounds and the prices.
        on_progress: told of the response as it comes, if the model can stream.
    """

    def __init__(
        self, wrapped: Model, recording: Recording, settings: LLMSettings, on_progress: OnProgress | None = None
    ) -> None:
        super().__init__(wrapped)
        self._recording = recording
        self._llm_settings = settings
        self._on_progress = on_progress

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask, unless this was asked before.

        `messages`, `model_settings` and `model_request_parameters` are those of pydantic-ai.

        Raises:
            AnswerTooLong: of more bytes than are read. ModelAway: it took longer than it may.
        """
        key = self._recording.next_key(prompt_digest(messages, self.model_name))
        answer = await self._recording.find(key)
        if answer is not None:
            return answer
        seconds, limit = self._llm_settings.timeout.total_seconds(), self._llm_settings.answer_bytes
        try:
            async with asyncio.timeout(seconds):
                response = await self._ask(messages, model_settings, model_request_parameters)
        except TimeoutError as error:
            raise ModelAway(f"{self.model_name} gave no answer within {seconds:g} s") from error
        fill_price(response.usage, self._llm_settings)
        size = sum(map(_size, response.parts))
        if size > limit:
            raise AnswerTooLong(size, limit, response.usage)
        await self._recording.keep(key, response)
        return response

    async def _ask(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the model; listeners hear the response as it comes, if the model can stream."""
        if self._on_progress is None or not can_stream(self.wrapped):
            return await super().request(messages, model_settings, model_request_parameters)
        self._on_progress(ResponseText(""))
        limit = self._llm_settings.answer_bytes
        async with super().request_stream(messages, model_settings, model_request_parameters) as stream:
            shown = ""
            async for _ in stream:
                parts = stream.get().parts
                if (size := sum(map(_size, parts))) > limit:
                    raise AnswerTooLong(size, limit, stream.usage)
                text = next(filter(None, (response_of(_given(part)) for part in parts)), "")
                if text != shown:
                    self._on_progress(ResponseText(text))
                    shown = text
            return stream.get()


def traced(model: Model) -> Model:
    """Return a model whose requests make spans (model, tokens; never what is said), where this process makes any."""
    provider = tracer_provider()
    if provider is None or isinstance(model, InstrumentedModel):
        return model
    return InstrumentedModel(model, InstrumentationSettings(tracer_provider=provider, include_content=False))


def can_stream(model: Model) -> bool:
    """Return whether a model sends its answer as it is made."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return type(model).request_stream is not Model.request_stream


def fill_price(usage: RequestUsage, settings: LLMSettings) -> None:
    """Fill in what an answer costs by the prices of the settings, if any, where the service does not say it itself."""
    if usage.cost is None and (settings.input_price, settings.output_price) != (None, None):
        spent = usage.input_tokens * (settings.input_price or 0) + usage.output_tokens * (settings.output_price or 0)
        usage.cost = Decimal(str(spent)) / 1_000_000


def prompt_digest(messages: Sequence[ModelMessage], model_name: str) -> str:
    """Return the SHA-256 of a prompt in hex; equal prompts have equal digests."""
    document = [model_name, _stable(ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))]
    return sha256(_written(document)).hexdigest()


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(inner) for key, inner in value.items() if key not in VOLATILE}
    return [_stable(inner) for inner in value] if isinstance(value, list) else value


def _given(part: Any) -> Any:
    return getattr(part, "args", None) or (part.content if isinstance(part, TextPart) else None) or ""


def _size(part: Any) -> int:
    content = getattr(part, "args", None) or getattr(part, "content", None) or ""
    return len(content.encode(errors="surrogatepass") if isinstance(content, str) else _written(content))


def _written(value: Any) -> bytes:
    """Return JSON of any answer; orjson refuses integers beyond 64 bits and lone surrogates."""
    return json.dumps(value, sort_keys=True, default=str).encode()
