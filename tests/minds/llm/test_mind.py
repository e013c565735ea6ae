"""The loop: context, prompt, AgentResponse, actions, observations, until stop or budget."""

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from apc_contracts.agent import ResponseConstraints
from apc_minds.actions import ActionContext, ToolRegistry
from apc_minds.context import ContextSession, InMemoryContextStore, SessionConfig, TurnRole
from apc_minds.llm import (
    AnswerInvalid,
    AnswerTooLong,
    LLMSettings,
    MessageExchange,
    Mind,
    ModelAway,
    Persona,
    Recording,
)

from .models import Answer, data_of, document, last_told, model_of, model_saying, silent_model, silent_named

ACTIONS = ActionContext(agent_id="helper-1", session_id="s-1")


async def talk(mind: Mind, message: str, session: ContextSession | None = None, **options: Any) -> MessageExchange:
    session = session or ContextSession("s-1")
    recording = options.pop("recording", None) or Recording(InMemoryContextStore(), "s-1", 0, "m-1")
    options.setdefault("usage", RunUsage())
    return await mind.answer(session, message, actions=ACTIONS, recording=recording, **options)


async def test_the_model_acts_sees_what_came_of_it_and_answers(tools: ToolRegistry) -> None:
    told: list[Any] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        told.append(last_told(messages))
        if len(told) == 1:
            add = {"action": "add", "type": "tool", "params": {"left": 2, "right": 3}, "action_id": "sum"}
            return document(actions=[add], stop=False)
        return document(f"It is {orjson.loads(data_of(told[-1]))[0]['result']}.")

    session = ContextSession("s-1")
    exchange = await talk(Mind(model_of(think), tools=tools), "2 + 3?", session)
    assert (exchange.response, exchange.steps, exchange.is_cut_short) == ("It is 5.", 2, False)
    assert [turn.role for turn in session.window.all_turns()] == [TurnRole.USER, TurnRole.TOOL, TurnRole.ASSISTANT]
    assert told[0] == "2 + 3?"


async def test_the_prompt_has_persona_constraints_tools_and_what_is_remembered(tools: ToolRegistry) -> None:
    prompts: list[str] = []
    data: list[str] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        prompts.append(str(info.instructions))
        data.append(str(messages[0].parts[0].content))
        return document("yes")

    mind = Mind(model_of(think), tools=tools, persona=Persona("assistant", {"warmth": 0.9}, ["Be brief."]))
    await talk(mind, "hi", required=ResponseConstraints(max_length=70), remembered={"name": "Ada"})
    (prompt,) = prompts
    for part in ("very high", "Be brief.", "at most 70 characters", '"name":"add"'):
        assert part in prompt
    assert data_of(data[0]) == '{"name":"Ada"}' and "Ada" not in prompt


async def test_the_document_as_plain_text_is_an_answer_too() -> None:
    exchange = await talk(Mind(model_saying('{"status": "SUCCESS", "stop": true, "response": "hi"}')), "hello")
    assert exchange.response == "hi"


async def test_prose_is_told_how_to_mend_itself() -> None:
    told: list[str] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        told.append(repr(messages[-1].parts[-1]))
        return document("hi") if len(told) == 2 else "Well, hello there!"

    exchange = await talk(Mind(model_of(think)), "hello")
    assert exchange.response == "hi"
    assert "MALFORMED" in told[1] and "one JSON document" in told[1]


async def test_endless_prose_is_one_error_and_its_cost_is_known() -> None:
    usage, session = RunUsage(), ContextSession("s-1")
    mind = Mind(model_of(lambda messages, info: "prose"), settings=LLMSettings(output_retries=2))
    with pytest.raises(AnswerInvalid, match="no AgentResponse"):
        await talk(mind, "hello", session, usage=usage)
    assert usage.requests == 3 and usage.total_tokens > 0


async def test_an_answer_of_a_megabyte_is_one_error() -> None:
    asked = 0

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        nonlocal asked
        asked += 1
        return "x" * 1_000_000

    with pytest.raises(AnswerTooLong, match="1000000 bytes, 65536 are read"):
        await talk(Mind(model_of(think)), "hello")
    assert asked == 1


async def test_a_response_longer_than_the_window_takes_is_sent_back() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200))
    exchange = await talk(Mind(model_saying(document("long " * 400), document("short"))), "hello", session)
    assert exchange.response == "short"


async def test_what_a_response_must_be_like_is_kept_to() -> None:
    required = ResponseConstraints(max_length=20, format="json")
    model = model_saying(document('{"city": "Rome", "more": "than twenty"}'), document("Rome"), document('["Rome"]'))
    assert (await talk(Mind(model), "Where?", required=required)).response == '["Rome"]'


async def test_a_model_that_never_answers_is_given_up() -> None:
    async def wait(messages: list[ModelMessage], info: AgentInfo) -> Any:
        await asyncio.Event().wait()

    mind = Mind(FunctionModel(wait), settings=LLMSettings(timeout=timedelta(milliseconds=20)))
    with pytest.raises(ModelAway, match="no answer within"):
        await talk(mind, "hello")


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ({"action": "fly", "type": "tool"}, "fly"),
        ({"action": "add", "type": "tool", "params": {"left": "two", "right": 3}}, "left"),
        ({"action": "add", "type": "tool", "params": {"left": "${{results.gone.x}}", "right": 3}}, "gone"),
    ],
)
async def test_actions_that_cannot_run_are_told_to_the_model(
    tools: ToolRegistry, action: dict[str, Any], complaint: str
) -> None:
    seen: list[str] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        seen.append(last_told(messages))
        return document(actions=[action]) if len(seen) == 1 else document("I cannot.")

    exchange = await talk(Mind(model_of(think), tools=tools), "do it")
    assert exchange.response == "I cannot."
    assert "nothing was run" in seen[1] and complaint in seen[1]


async def test_a_call_with_what_no_document_may_hold_is_sent_back(tools: ToolRegistry) -> None:
    remember = {"action": "remember", "type": "internal", "params": {"key": "n", "value": 2**70}}
    model = model_saying(document(actions=[remember], stop=False), document("I cannot."))
    exchange = await talk(Mind(model, tools=tools), "a large number")
    assert (exchange.response, exchange.steps) == ("I cannot.", 1)


async def test_what_only_the_model_is_told_is_not_shown(tools: ToolRegistry) -> None:
    session = ContextSession("s-1")
    fly = {"action": "fly", "type": "tool"}
    await talk(Mind(model_saying(document(actions=[fly]), document("I cannot.")), tools=tools), "fly", session)
    assert "long_page" in str([turn.content for turn in session.window.all_turns()])
    assert [message["role"] for message in session.render()["messages"]] == ["user", "assistant"]


async def test_the_budget_of_steps_ends_what_does_not_stop() -> None:
    add = {"action": "remember", "type": "internal", "params": {"key": "a", "value": 1}}
    mind = Mind(model_of(lambda messages, info: document(actions=[add], stop=False)), settings=LLMSettings(max_steps=3))
    exchange = await talk(mind, "loop")
    assert (exchange.steps, exchange.is_cut_short) == (3, True)
    assert "3 steps" in exchange.response


async def test_the_budget_of_tokens_ends_it_too() -> None:
    mind = Mind(model_of(lambda messages, info: document(stop=False)), settings=LLMSettings(message_tokens=100))
    exchange = await talk(mind, "loop")
    assert exchange.is_cut_short and "tokens" in exchange.response


async def test_observations_longer_than_the_window_are_cut(tools: ToolRegistry) -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=1_000))
    page = {"action": "long_page", "type": "tool"}
    exchange = await talk(
        Mind(model_saying(document(actions=[page], stop=False), document("read")), tools=tools), "?", session
    )
    assert exchange.response == "read"
    assert not session.window.overflow_tokens


async def test_what_was_asked_before_is_not_asked_again(tools: ToolRegistry) -> None:
    store = InMemoryContextStore()
    add = {"action": "add", "type": "tool", "params": {"left": 2, "right": 3}}
    thinking = model_saying("prose", document(actions=[add], stop=False), document("5"))
    usages = RunUsage(), RunUsage()
    first = await talk(
        Mind(thinking, tools=tools), "2 + 3?", recording=Recording(store, "s-1", 0, "m"), usage=usages[0]
    )
    again = Mind(silent_named(thinking), tools=tools)
    second = await talk(again, "2 + 3?", recording=Recording(store, "s-1", 0, "m"), usage=usages[1])
    assert (second.response, second.steps) == (first.response, first.steps)
    assert usages[0].total_tokens == usages[1].total_tokens > 0


async def test_another_question_is_asked() -> None:
    store = InMemoryContextStore()
    await talk(Mind(model_saying(document("a"))), "one", recording=Recording(store, "s-1", 0, "m"))
    with pytest.raises(AssertionError, match="was asked"):
        await talk(Mind(silent_model()), "two", recording=Recording(store, "s-1", 0, "m"))


async def test_pydantic_ais_own_test_model_drives_the_loop() -> None:
    model = TestModel(custom_output_args={"status": "SUCCESS", "stop": True, "response": "tested"})
    assert (await talk(Mind(model), "hi")).response == "tested"
