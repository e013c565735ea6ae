"""Answers of a model are kept before they are used, so that what runs again asks no model.

Source: issue 5 item 5. The key of an answer is (revision of the conversation, origin, number of the request, digest
of the prompt): the origin is the packet, or the message, that the model is asked about. Records stand in the archive of
the conversation, beside its folded turns; those of old revisions go.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import orjson
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import PydanticSerializationError

from apc_agents.context.conversation import ContextStore
from apc_agents.llm.asking import AnswerInvalid, AnswerTooLong, ModelAway
from apc_agents.text import OnProgress, ResponseText, response_of
from apc_bus.settings import LLMSettings

VOLATILE: Final = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of a message that differ each time it is made."""
RECORDS: Final = "record/"
"""Every record's id in the archive begins so."""


@dataclass(slots=True)
class Recording:
    """The answers to what one packet, or one message, makes an agent ask."""

    store: ContextStore
    session_id: str
    revision: int
    """Of the conversation that they are asked in."""
    origin: str
    asked: int = 0

    @property
    def prefix(self) -> str:
        """Of the ids of these records."""
        return f"{RECORDS}{self.revision}/{self.origin}/"

    def next_key(self, digest: str) -> str:
        """Return the key of the next request."""
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
        """Return what this text of the prompt was the first time, since it may differ when all runs again."""
        key = f"{self.prefix}fact/{name}"
        kept = (await self.store.get_turns(self.session_id, [key])).get(key)
        if kept is not None:
            return str(orjson.loads(kept))
        await self.store.put_turns(self.session_id, {key: orjson.dumps(value)})
        return value

    async def keep(self, key: str, response: ModelResponse) -> None:
        """Keep an answer; durable when this returns. Raises AnswerInvalid: it has no form in UTF-8."""
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
    """A model whose answers are bounded in size and time, priced, kept, and found again."""

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

        Raises:
            AnswerTooLong: of more bytes than are read. ModelAway: it took longer than it may.
        """
        key = self._recording.next_key(prompt_digest(messages, self.model_name))
        found = await self._recording.find(key)
        if found is not None:
            return found
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
    told = getattr(part, "args", None) or getattr(part, "content", None) or ""
    return len(told.encode(errors="surrogatepass") if isinstance(told, str) else _written(told))


def _written(value: Any) -> bytes:
    """Return JSON of any answer; orjson refuses integers beyond 64 bits and lone surrogates."""
    return json.dumps(value, sort_keys=True, default=str).encode()
