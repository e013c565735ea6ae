"""An agent of the OpenAI Agents SDK whose tool asks and pays: run as a process by test_joined_agents."""

import agents
from tests.integration.agents.joined_messages import AS_RED, Ask, End, pay
from tests.minds.joined.openai_fake import FakeModel, call, outputs, said
from tests.support.account import note

from apc_minds.openai_agents import OpenAIAgent


def think(instructions: str | None, items: list[object]) -> list[object]:
    """Call the tool, with another call id each time that it is asked; then say what it gave."""
    number = note("models", "asked")
    given = outputs(items)
    return [said(given[-1].splitlines()[1])] if given else [call("refund", '{"order": "O-7"}', f"call-{number}")]


@agents.function_tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return str(await pay(order))


joined = agents.Agent(name="desk", instructions="Refund.", model=FakeModel(think), tools=[refund])
agent = OpenAIAgent("red-1", joined, input=Ask, returns=End, **AS_RED)
