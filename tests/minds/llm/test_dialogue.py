"""A user's conversation with an LLM agent: stored as a whole or not at all, and the same after a restart."""

import asyncio
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from apc_minds.actions import ToolRegistry
from apc_minds.context import ContextStale, InvalidTransition, MessageTooLong, SessionConfig, TurnInvalid
from apc_minds.llm import AnswerInvalid, Dialogue, DialogueBusy, LLMAgent, LLMSettings
from apc_minds.llm.dialogue import DIALOGUE
from apc_minds.memory import BaseMemoryStore, InMemoryMemoryStore, UnknownSession

from .models import Answer, document, last_told, model_of, model_saying, silent_model, silent_named

REMEMBER = {"action": "remember", "type": "internal", "params": {"key": "name", "value": "Ada"}}
FORGET = {"action": "forget", "type": "internal", "params": {"key": "name"}}


def agent_with(model: Model, **options: Any) -> LLMAgent:
    options.setdefault("settings", LLMSettings(output_retries=1))
    return LLMAgent("helper-1", role="helper", swarm="chat", model=model, **options)


def dialogue(model: Model, memory: BaseMemoryStore | None = None, **options: Any) -> Dialogue:
    return Dialogue(agent_with(model, **options), "s-1", memory or InMemoryMemoryStore())


async def kept_of(memory: BaseMemoryStore) -> Any:
    return await memory.retrieve_agent_state("helper-1", "s-1", DIALOGUE)


async def test_an_answer_comes_with_the_props_of_the_frontend() -> None:
    output = await dialogue(model_saying(document("Hi!"))).say("Hello")
    assert output.response == "Hi!"
    assert set(output.props.document) == {"messages", "pressure", "status", "canSend", "canCompress", "canClear"}
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
    assert '{"name":"Ada"}' in told[1] and "first" in told[1]


@pytest.mark.parametrize("prose", ["prose", "x" * 1_000_000])
async def test_a_model_that_gives_no_answer_changes_nothing(prose: str) -> None:
    memory = InMemoryMemoryStore()
    said = await dialogue(model_saying(document("one")), memory).say("first")
    failing = dialogue(model_saying(document(actions=[REMEMBER], stop=False), prose, prose), memory)
    with pytest.raises(Exception, match=r"no AgentResponse|bytes"):
        await failing.say("second")
    assert (await failing.props()) == said.props
    assert "Ada" not in str(await kept_of(memory))


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
    assert not (await kept_of(memory))["remembered"]
    await talk.say("remember")
    props = await talk.clear()
    assert props.document["messages"] == []
    assert list(await memory.get_all_agent_states("helper-1", "s-1")) == [DIALOGUE]
    assert "Ada" not in str(await kept_of(memory))


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


async def test_the_paths_of_the_stream_are_available_and_compress_is_refused_when_there_is_nothing() -> None:
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
        opened = await talk._open(RunUsage())
        await opened.session.add_system_turn(f"Note {number}: " + "the tide turns at noon. " * 20)
        await talk._save(opened)
    await talk.compress(0.1)
    assert shortened and all("the tide turns at noon" in text for text in shortened)


async def test_a_failed_answer_is_told_to_who_watches() -> None:
    talk = dialogue(model_saying("prose", "prose"))
    await talk.begin()
    with pytest.raises(AnswerInvalid):
        await talk.say("Hello")
    assert (await talk.props()).document == {
        "messages": [],
        "pressure": 0.0,
        "status": "ready",
        "canSend": True,
        "canCompress": False,
        "canClear": False,
    }


async def test_what_an_agent_remembers_is_kept_with_its_answer_or_not_at_all() -> None:
    """A process that dies before, or after, the one write that both are in."""
    memory = InMemoryMemoryStore()
    stored, writes = memory.save_agent_state, []

    async def die_at_the_second(*arguments: Any) -> int:
        writes.append(arguments)
        if len(writes) == 2:
            raise ConnectionError
        return await stored(*arguments)

    memory.save_agent_state = die_at_the_second  # type: ignore[assignment, method-assign]
    talk = dialogue(model_saying(document("Hi Ada", actions=[REMEMBER]), document("Bye", actions=[FORGET])), memory)
    await talk.say("I am Ada")
    with pytest.raises(ConnectionError):
        await talk.say("Forget me")
    kept = await kept_of(memory)
    assert kept["remembered"] == {"name": "Ada"}
    assert "Hi Ada" in kept["conversation"]["document"] and "Bye" not in kept["conversation"]["document"]


async def test_a_message_that_got_no_answer_may_be_said_again() -> None:
    talk = dialogue(model_saying("prose", "prose", document("Hello to you")))
    with pytest.raises(AnswerInvalid):
        await talk.say("Hello")
    assert (await talk.say("Hello")).response == "Hello to you"


async def test_records_of_old_answers_go() -> None:
    memory = InMemoryMemoryStore()
    answers = [document(f"answer {number}") for number in range(6)]
    talk = dialogue(model_saying(*answers), memory, settings=LLMSettings(records=2))
    for number in range(6):
        await talk.say(f"message {number}")
    records = [key for key in await memory.get_all_agent_states("helper-1", "s-1") if "/record/" in key]
    assert {key.split("/")[2] for key in records} == {"4", "5"}


async def test_a_whole_conversation_plays_again_without_a_model(tools: ToolRegistry) -> None:
    """The same messages, from the beginning, with the records alone: the same turns, folds and memories."""
    memory, played = InMemoryMemoryStore(), []
    add = {"action": "add", "type": "tool", "params": {"left": 2, "right": 3}}

    def think(messages: list[ModelMessage], info: AgentInfo) -> Answer:
        said = last_told(messages)
        if said.startswith("<<data "):
            return document("That is 5. " + "And so on and so on. " * 5)
        return document(actions=[add, REMEMBER], stop=False)

    thinking = model_of(think)
    for model in (thinking, silent_named(thinking)):
        await memory.delete_agent_state("helper-1", "s-1", DIALOGUE)
        talk = dialogue(model, memory, tools=tools, config=SessionConfig(max_tokens=600))
        usages = [(await talk.say(f"{number}: what is 2 + 3?")).exchange.usage for number in range(12)]
        opened = await talk._open(RunUsage())
        turns = [(turn.resource_id, turn.role, turn.content) for turn in opened.session.window.all_turns()]
        folds = {key: fold.how for key, fold in opened.session.window.folded.items()}
        played.append((turns, folds, opened.kept.state["remembered"], [usage.total_tokens for usage in usages]))
    assert played[0] == played[1]
    assert played[0][1] and all(played[0][3])


async def test_a_conversation_is_listed_by_its_newest_message() -> None:
    memory = InMemoryMemoryStore("alice")
    agent = agent_with(model_saying(*[document("ok")] * 3))
    for session_id in ("s-1", "s-2", "s-1"):
        await Dialogue(agent, session_id, memory).say("Hello")
    listed = await memory.list_conversations_for_user("alice")
    assert [one["session_id"] for one in listed] == ["s-1", "s-2"]
