"""A graph of LangGraph whose node asks and pays: run as a process by test_joined_agents."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from tests.integration.agents.joined_messages import AS_RED, Ask, End, pay
from tests.support.account import note

from apc_minds.langgraph import AgentStateSaver, LangGraphAgent


class State(TypedDict, total=False):
    """What the nodes share."""

    text: str


async def look(state: State) -> State:
    """Ask a model, a line of a file here."""
    note("models", "look")
    return {"text": state["text"].upper()}


async def refund(state: State) -> State:
    """Pay what a person has approved."""
    answer = interrupt({"question": f"Pay {state['text']}?"})
    return {"text": str(await pay(state["text"])) if answer["approved"] else f"no: {answer['note']}"}


graph = StateGraph(State).add_node(look).add_node(refund)
graph.add_edge(START, "look").add_edge("look", "refund").add_edge("refund", END)
agent = LangGraphAgent("red-1", graph.compile(checkpointer=AgentStateSaver()), input=Ask, returns=End, **AS_RED)
