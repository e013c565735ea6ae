"""The adaptive threshold is told how the task of a mind goes."""

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.usage import RunUsage

from apc_contracts.agent import AgentResponse
from apc_minds.actions import ActionContext, ActionReport, ToolRegistry
from apc_minds.context import AdaptiveThreshold, ContextSession, InMemoryContextStore, SessionConfig
from apc_minds.llm import LLMSettings, Mind, Recording
from apc_minds.llm.mind import RECENT_STEPS, TaskSignals

from .models import Answer, document, model_of


def add(left: int, right: Any = 1) -> dict[str, Any]:
    return {"action": "add", "type": "tool", "params": {"left": left, "right": right}}


def step(left: int) -> AgentResponse:
    return AgentResponse.model_validate({"status": "SUCCESS", "actions": [add(left)], "stop": False})


async def _seen(session: ContextSession, tools: ToolRegistry, *asked: dict[str, Any]) -> list[AdaptiveThreshold]:
    """Return the thresholds that a model is asked under, step by step, and the one that is left."""
    seen: list[AdaptiveThreshold] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        seen.append(session.threshold)
        done = len(seen) > len(asked)
        return document("done") if done else document(actions=[asked[len(seen) - 1]], stop=False)

    await Mind(model_of(think), tools=tools, settings=LLMSettings(max_steps=8)).answer(
        session,
        "go",
        actions=ActionContext(agent_id="helper-1", session_id="s-1"),
        recording=Recording(InMemoryContextStore(), "s-1", 0, "m-1"),
        usage=RunUsage(),
    )
    return [*seen, session.threshold]


async def test_a_mind_feeds_the_threshold_of_its_session(tools: ToolRegistry) -> None:
    session = ContextSession("s-1")
    await session.update_threshold(base_threshold=0.65)
    *seen, left = await _seen(session, tools, add(1), add(2, "no number"), add(3), add(1))
    assert [one.task_progress for one in seen] == [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8]
    assert [one.error_rate for one in seen] == [0, 0, 1 / 2, 1 / 3, 1 / 4]
    assert [one.loop_detected for one in seen] == [False, False, False, False, True]
    assert {one.base_threshold for one in seen} == {0.65}
    assert left == AdaptiveThreshold(base_threshold=0.65)


@pytest.mark.parametrize("auto_compress", [True, False])
async def test_an_answer_leaves_the_session_below_the_threshold_that_it_had(
    auto_compress: bool, tools: ToolRegistry
) -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, auto_compress=auto_compress))
    await session.add_user_turn("hello")
    for _ in range(3):
        await session.add_assistant_turn("x" * 180)
    await session.update_threshold(base_threshold=0.69)
    compressed = session.compressions
    await _seen(session, tools)
    assert (session.pressure <= 0.69) is (session.pressure <= session.threshold.effective_threshold)
    assert (session.pressure <= 0.69) is auto_compress
    assert (session.compressions > compressed) is auto_compress


def test_old_steps_do_not_count() -> None:
    signals = TaskSignals()
    signals.add(step(0), None)
    for number in range(1, RECENT_STEPS + 1):
        signals.add(step(number), None if number == 1 else _report())
    signals.add(step(0), _report())
    told = signals.told(0.5, 2.0)
    assert told == {"task_progress": 1.0, "error_rate": 0.0, "loop_detected": False}
    signals.add(step(0), None)
    assert signals.told()["loop_detected"]


def _report() -> ActionReport:
    return ActionReport(step(0), (), stop=False)
