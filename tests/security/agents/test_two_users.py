"""Two users of a chat under one session id: neither is shown the tasks of the other."""

from uuid import uuid4

from pydantic_ai.models.test import TestModel

from apc_agents.task_port import NewTask, TaskSpec
from apc_contracts.agent import ActionType, SecurityLevel
from apc_minds.llm import Dialogue, LLMAgent
from apc_minds.memory import InMemoryMemoryStore
from apc_minds.tasks.in_memory import InMemoryTaskStore

SESSION = "s-1"


async def test_a_user_is_shown_the_their_own_tasks() -> None:
    agent = LLMAgent("helper-1", role="helper", swarm="chat", model=TestModel())
    memory, tasks = InMemoryMemoryStore("ada"), InMemoryTaskStore()
    spec = TaskSpec(
        action_id="a-1",
        action="plan_route",
        type=ActionType.TOOL,
        security_level=SecurityLevel.PUBLIC,
        compartment="ada",
    )
    task = await tasks.add(NewTask(uuid4(), agent.agent_id, SESSION, spec))
    listed = await tasks.list(agent_id=agent.agent_id, session_id=SESSION)
    assert [one.task_id for one in listed] == [task.task_id], "without the owner the session alone gives it away"

    ada = Dialogue(agent, SESSION, memory, tasks=tasks)
    bob = Dialogue(agent, SESSION, memory.for_owner("bob"), tasks=tasks)

    assert [one.task_id for one in await ada.own_tasks()] == [task.task_id]
    assert await bob.own_tasks() == []
