"""The model as the context's summarizer."""

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from apc_minds.context import ContextSession, SessionConfig
from apc_minds.llm import AnswerInvalid, LLMSettings
from apc_minds.llm.agent import ModelSummarizer

CONFIG = SessionConfig(max_tokens=400, auto_compress=False, summary_tokens=10)


def summarizer(text: str, usage: RunUsage) -> ModelSummarizer:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(text)])

    return ModelSummarizer(FunctionModel(answer), settings=LLMSettings(), usage=usage, fence="f" * 32)


async def session_of(kept: ModelSummarizer) -> ContextSession:
    session = ContextSession("s-1", config=CONFIG, summarizer=kept)
    await session.add_user_turn("hello")
    await session.add_system_turn("The build of the tower took forty years and many hands. " * 6)
    await session.add_user_turn("go on")
    await session.add_assistant_turn("yes")
    return session


async def test_required_turns_are_shortened_by_the_model_and_paid_for() -> None:
    usage = RunUsage()
    session = await session_of(summarizer("Forty years of building.", usage))
    await session.compress(0.1)
    assert "Forty years of building." in [turn.content for turn in session.window.all_turns()]
    assert usage.requests == 1 and usage.total_tokens > 0


async def test_a_model_that_says_nothing_leaves_the_window_as_it_was() -> None:
    session = await session_of(summarizer("", RunUsage()))
    before = session.window.digest
    with pytest.raises(AnswerInvalid):
        await session.compress(0.1)
    assert session.window.digest == before
