"""The agent to talk to."""

from apc_agents.llm import LLMAgent
from apc_agents.team import load_agent
from apc_console.errors import ModuleUnusable


def chat_agent(name: str | None) -> LLMAgent:
    """Return the agent of `module:agent`; without a name, one without tools that uses the model of APC_LLM_MODEL.

    Raises:
        ModuleUnusable: it is not an LLM agent.
        AgentNotFound, AgentInvalid: there is no such agent.
        ModelUnusable: it has no model.
    """
    found = LLMAgent("assistant", role="assistant", swarm="chat") if name is None else load_agent(name)
    if not isinstance(found, LLMAgent):
        raise ModuleUnusable(f"{name} is no LLM agent: make it an apc_agents.llm.LLMAgent")
    _ = found.mind  # report what is wrong with the model before anybody types
    return found
