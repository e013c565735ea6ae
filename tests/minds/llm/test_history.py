"""Every turn is in conversation_history, in the transaction that saves the state."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from pydantic_ai.usage import RunUsage
from tests.agents.conftest import MakeIdea

from apc_agents import AgentTestClient, InMemoryStateStore, PostgresStateStore, StateStore
from apc_bus.database import open_pool
from apc_minds.actions import ToolRegistry
from apc_minds.context import ContextStale
from apc_minds.llm import Dialogue, LLMAgent, LLMSettings
from apc_minds.memory import BaseMemoryStore, InMemoryMemoryStore, PostgresMemoryStore

from .models import document, model_saying

ADD = {"action": "add", "type": "tool", "params": {"left": 2, "right": 3}}


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(postgres_url)
    yield pool
    await pool.close()


def agent_saying(tools: ToolRegistry, *answers: Any) -> LLMAgent:
    model = model_saying(*answers)
    return LLMAgent("helper-1", role="helper", swarm="tests", model=model, tools=tools, settings=LLMSettings())


@pytest.fixture(params=["memory", "postgres"])
def memory(request: pytest.FixtureRequest) -> BaseMemoryStore:
    if request.param == "memory":
        return InMemoryMemoryStore("alice")
    return PostgresMemoryStore(request.getfixturevalue("pool"), "alice")


async def said_in(memory: BaseMemoryStore, session_id: str) -> list[tuple[str, str]]:
    kept = await memory.retrieve_conversation(session_id)
    return [] if kept is None else [(one.role, one.content) for one in kept.messages]


async def test_every_turn_of_a_chat_is_kept_found_and_cleared(memory: BaseMemoryStore, tools: ToolRegistry) -> None:
    agent = agent_saying(tools, document(actions=[ADD], stop=False), document("It is five."), document("Gladly."))
    talk = Dialogue(agent, "s-1", memory)
    await talk.say("What are two and three?")
    await talk.say("Thank you")
    said = await said_in(memory, "s-1")
    assert [role for role, _ in said] == ["user", "tool", "assistant", "user", "assistant"]
    assert said[0][1] == "What are two and three?" and said[2][1] == "It is five."
    (listed,) = await memory.list_conversations_for_user("alice")
    assert listed["message_count"] == 5
    (found,) = await memory.search_conversations("alice", "thank")
    assert found["session_id"] == "s-1"
    await talk.clear()
    assert await said_in(memory, "s-1") == []


async def test_what_loses_its_race_is_not_in_the_history(memory: BaseMemoryStore, tools: ToolRegistry) -> None:
    first = Dialogue(agent_saying(tools, document("one")), "s-1", memory)
    await first.begin()
    slow = Dialogue(agent_saying(tools, document("two")), "s-1", memory)
    opened = await slow._open(RunUsage())
    await first.say("first")
    turn = await opened.session.add_user_turn("second")
    with pytest.raises(ContextStale):
        await slow._save(opened, [turn])
    assert await said_in(memory, "s-1") == [("user", "first"), ("assistant", "one")]


async def test_tenants_with_the_same_session_see_their_own(memory: BaseMemoryStore, tools: ToolRegistry) -> None:
    await Dialogue(agent_saying(tools, document("one")), "s-1", memory).say("mine")
    assert await said_in(memory.for_owner("bob"), "s-1") == []


@pytest.fixture
def states(memory: BaseMemoryStore, request: pytest.FixtureRequest) -> StateStore:
    if isinstance(memory, InMemoryMemoryStore):
        return InMemoryStateStore(memory)
    return PostgresStateStore(request.getfixturevalue("pool"), "alice")


async def test_an_agent_on_the_bus_keeps_its_turns(
    memory: BaseMemoryStore, states: StateStore, tools: ToolRegistry, idea: MakeIdea
) -> None:
    agent = agent_saying(tools, document("Noted."), "prose", "prose", "prose")
    async with AgentTestClient(agent, memory=memory, states=states) as client:
        await client.send(idea("m-1"))
        await client.send(idea("m-2"))  # ends in an error: as if it had not been said
    said = await said_in(memory, "session-1")
    assert [role for role, _ in said] == ["user", "assistant"]
    assert "m-1" in said[0][1] and said[1][1] == "Noted."
