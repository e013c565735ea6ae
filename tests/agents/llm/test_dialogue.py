"""A user's conversation with an LLM agent: stored as a whole or not at all, and the same after a restart."""

import asyncio
from typing import Any

import asyncpg
import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from apc_agents.context import (
    ContextStale,
    EstimatedTokens,
    InvalidTransition,
    MessageTooLong,
    ResourceClass,
    SessionConfig,
    Turn,
    TurnInvalid,
)
from apc_agents.llm import AnswerInvalid, Dialogue, DialogueBusy, LLMAgent, LLMSettings
from apc_agents.memory import BaseMemoryStore, DatabaseMemoryStore, InMemoryMemoryStore, UnknownSession

from .models import Answer, document, last_told, model_of, model_saying, silent_model

REMEMBER = {"action": "remember", "type": "internal", "params": {"key": "name", "value": "Ada"}}
FORGET = {"action": "forget", "type": "internal", "params": {"key": "name"}}


def agent_with(model: Model, **options: Any) -> LLMAgent:
    options.setdefault("settings", LLMSettings(output_retries=1))
    return LLMAgent("helper-1", role="helper", swarm="chat", model=model, **options)


def dialogue(model: Model, memory: BaseMemoryStore | None = None, **options: Any) -> Dialogue:
    return Dialogue(agent_with(model, **options), "s-1", memory or InMemoryMemoryStore())


async def test_an_answer_comes_with_the_props_of_the_frontend() -> None:
    output = await dialogue(model_saying(document("Hi!"))).say("Hello")
    assert output.response == "Hi!"
    assert set(output.props.document) == {"messages", "pressure", "status", "canSend"}
    assert [message["content"] for message in output.props.document["messages"]] == ["Hello", "Hi!"]
    assert output.props.revision == 1


async def test_another_process_goes_on_where_this_one_stopped() -> None:
    memory = InMemoryMemoryStore()
    first = await dialogue(model_saying(document("one", actions=[REMEMBER])), memory).say("first")
    told: list[str] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        told.extend([str(info.instructions), *(str(message) for message in messages)])
        return document("two")

    second = await dialogue(model_of(think), memory).say("second", revision=first.props.revision)
    contents = [message["content"] for message in second.props.document["messages"]]
    assert contents[0] == "first" and contents[-1] == "two"
    assert '{"name":"Ada"}' in told[0] and "first" in told[1]


@pytest.mark.parametrize("prose", ["prose", "x" * 1_000_000])
async def test_a_model_that_gives_no_answer_changes_nothing(prose: str) -> None:
    memory = InMemoryMemoryStore()
    said = await dialogue(model_saying(document("one")), memory).say("first")
    failing = dialogue(model_saying(document(actions=[REMEMBER], stop=False), prose, prose), memory)
    with pytest.raises(Exception, match=r"no AgentResponse|bytes"):
        await failing.say("second")
    assert (await failing.props()) == said.props
    assert not [key for key in await memory.get_all_agent_states("helper-1", "s-1") if key.startswith("remembered")]


async def test_a_message_said_again_finds_the_answers_that_were_paid_for() -> None:
    """The first process dies after the model has answered and before the conversation was stored."""
    memory, model = InMemoryMemoryStore(), model_saying(document(actions=[REMEMBER], stop=False), document("Hi Ada"))
    stored = memory.save_agent_state

    async def die(*arguments: Any) -> int:
        raise ConnectionError

    memory.save_agent_state = die  # type: ignore[assignment, method-assign]
    with pytest.raises(ConnectionError):
        await dialogue(model, memory).say("I am Ada")
    memory.save_agent_state = stored  # type: ignore[method-assign]
    silent = silent_model()
    silent._model_name = model.model_name
    assert (await dialogue(silent, memory).say("I am Ada")).response == "Hi Ada"


async def test_another_message_after_one_that_failed_sees_its_own_actions() -> None:
    def keeping(value: str) -> Answer:
        keep = {"action": "remember", "type": "internal", "params": {"key": "colour", "value": value}}
        return document(actions=[keep], stop=False)

    talk = dialogue(model_saying(keeping("red"), "prose", "prose", keeping("blue"), document("blue it is")))
    with pytest.raises(AnswerInvalid):
        await talk.say("red please")
    output = await talk.say("blue please")
    observed = next(one["content"] for one in output.props.document["messages"] if one["role"] == "tool")
    assert "blue" in observed and "red" not in observed


async def test_forgotten_is_forgotten_and_clear_forgets_all() -> None:
    memory = InMemoryMemoryStore()
    talk = dialogue(model_saying(*(document("ok", actions=[one]) for one in (REMEMBER, FORGET, REMEMBER))), memory)
    await talk.say("remember")
    await talk.say("forget")
    assert "remembered/name" not in await memory.get_all_agent_states("helper-1", "s-1")
    await talk.say("remember")
    props = await talk.clear()
    assert props.document["messages"] == []
    assert list(await memory.get_all_agent_states("helper-1", "s-1")) == ["context"]


async def test_it_is_listed_and_erased_with_its_user() -> None:
    memory = InMemoryMemoryStore("alice")
    talk = dialogue(model_saying(document("one", actions=[REMEMBER])), memory)
    await talk.say("first")
    (listed,) = await memory.list_conversations_for_user("alice")
    assert listed["session_id"] == "s-1"
    await memory.erase_user("alice")
    assert not await memory.get_all_agent_states("helper-1", "s-1")
    assert not await talk.exists()


async def test_a_revision_that_has_passed_is_refused() -> None:
    talk = dialogue(model_saying(document("one")))
    await talk.begin()
    await talk.say("first", revision=1)
    with pytest.raises(ContextStale):
        await talk.say("second", revision=1)


@pytest.mark.parametrize(("message", "error"), [("x" * 40_000, MessageTooLong), ("a\0b", TurnInvalid)])
async def test_a_message_that_cannot_be_taken_asks_no_model(message: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await dialogue(silent_model(), config=SessionConfig(max_tokens=1_000)).say(message)


async def test_only_one_message_at_a_time_and_who_watches_sees_it_think() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.set()
        await may_answer.wait()
        return ModelResponse(parts=[TextPart('{"status": "SUCCESS", "stop": true, "response": "Hi!"}')])

    talk = dialogue(FunctionModel(think))
    await talk.begin()
    changes = talk.changes()
    assert (await anext(changes)).document["status"] == "ready"
    answering = asyncio.create_task(talk.say("Hello"))
    await asked.wait()
    assert (await anext(changes)).document["status"] == "thinking"
    with pytest.raises(DialogueBusy):
        await talk.say("Are you there?")
    may_answer.set()
    await answering
    while (seen := (await anext(changes)).document)["status"] != "ready":
        pass
    assert seen["messages"][-1]["content"] == "Hi!"


async def test_nobody_sees_a_session_that_nobody_began_or_that_is_anothers() -> None:
    memory = InMemoryMemoryStore("alice")
    agent = agent_with(model_saying(document("one")))
    await Dialogue(agent, "s-1", memory).say("first")
    for other in (Dialogue(agent, "s-2", memory), Dialogue(agent, "s-1", memory.for_owner("bob"))):
        with pytest.raises(UnknownSession):
            await other.props()


async def test_the_paths_of_the_stream_are_at_hand_and_compress_is_refused_when_there_is_nothing() -> None:
    talk = dialogue(model_saying(document("one")))
    with pytest.raises(InvalidTransition):
        await talk.compress()
    await talk.say("first")
    assert (await talk.resolve("self.stream.linearity.stats"))["preserved"] == 1
    assert (await talk.compress()).document["status"] == "compressed"


async def test_the_model_may_shorten_what_is_folded() -> None:
    shortened: list[str] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        if info.output_tools:
            return document("ok " * 40)
        shortened.append(last_told(messages))
        return "The tide turns at noon."

    talk = dialogue(model_of(think), config=SessionConfig(max_tokens=4_000), summarizes=True)
    for number in range(8):
        await talk.say(f"Message {number}")
        session = await talk._opened(RunUsage())
        await session.add_system_turn(f"Note {number}: " + "the tide turns at noon. " * 20)
        await session.save()
    await talk.compress(0.1)
    assert shortened and all("the tide turns at noon" in text for text in shortened)


async def test_a_failed_answer_is_told_to_who_watches() -> None:
    talk = dialogue(model_saying("prose", "prose"))
    await talk.begin()
    with pytest.raises(AnswerInvalid):
        await talk.say("Hello")
    assert (await talk.props()).document == {"messages": [], "pressure": 0.0, "status": "ready", "canSend": True}


TURNS = 200
MAX_TOKENS = 2_000


def message_of(number: int) -> str:
    """About 40 tokens."""
    return f"Message {number:03}: " + "the ships leave at dawn and carry grain to the north " * 3


def scripted(asked: list[int]) -> FunctionModel:
    """Answers 40 tokens, and notes what the window held whenever it was asked."""

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        told = [part.content for message in messages for part in message.parts if hasattr(part, "content")]
        asked.append(sum(EstimatedTokens().count(str(text)) for text in told))
        assert isinstance(messages[-1], ModelRequest)
        return document(
            f"Answer to {last_told(messages)[:11]}: " + "they come back with salt and tin in the autumn " * 3
        )

    return model_of(think)


async def test_a_scripted_chat_of_200_turns_through_the_real_loop() -> None:
    """Must show: 200 turns of 40 tokens under 2,000 tokens; a new process for every ten messages."""
    await scripted_chat(InMemoryMemoryStore())


@pytest.mark.postgres
async def test_a_scripted_chat_of_200_turns_survives_restarts_in_postgres(postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2) as pool:
        await scripted_chat(DatabaseMemoryStore(pool, "alice"))


async def scripted_chat(memory: BaseMemoryStore) -> None:
    asked: list[int] = []
    config = SessionConfig(max_tokens=MAX_TOKENS)
    said: dict[str, Turn] = {}
    for start in range(0, TURNS // 2, 10):
        process = Dialogue(agent_with(scripted(asked), config=config), "s-1", memory)
        for number in range(start, start + 10):
            exchange = (await process.say(message_of(number))).exchange
            window = (await process._opened(exchange.usage)).window
            said |= {turn.resource_id: turn for turn in window.all_turns() if turn.content == message_of(number)}
        before = await process.props()
        after = await Dialogue(agent_with(silent_model(), config=config), "s-1", memory).props()
        assert after == before
    assert len(said) == TURNS // 2 == len(asked)
    assert max(asked) <= MAX_TOKENS
    await check_that_nothing_is_lost(process, said)


async def check_that_nothing_is_lost(process: Dialogue, said: dict[str, Turn]) -> None:
    """Every preserved turn is in the window as it came, or comes back byte for byte."""
    session = await process._opened(RunUsage())
    folded = session.window.folded
    assert folded and session.compressions > 5
    for resource_id, turn in said.items():
        assert session.window.linearity.get_class(resource_id) is ResourceClass.PRESERVED
        if resource_id not in folded:
            assert turn.to_bytes() in [one.to_bytes() for one in session.window.all_turns()]
    restored = await session.expand(list(said))
    assert not restored.missing
    kept = {one.resource_id: one.to_bytes() for one in session.window.all_turns()}
    assert all(kept[resource_id] == turn.to_bytes() for resource_id, turn in said.items())
