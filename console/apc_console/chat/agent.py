"""The agent that one talks to."""

from apc_agents.llm import LLMAgent
from apc_agents.loading import load_agent
from apc_console.errors import ModuleUnusable


def chat_agent(name: str | None) -> LLMAgent:
    """Return the agent of `module:agent`; without a name, one without tools whose model APC_LLM_MODEL names.

    Raises:
        ModuleUnusable: it is an agent without a mind.
        AgentNotFound, AgentInvalid: there is no such agent. ModelUnusable: it has no model.
    """
    found = LLMAgent("assistant", role="assistant", swarm="chat") if name is None else load_agent(name)
    if not isinstance(found, LLMAgent):
        raise ModuleUnusable(f"{name} has no mind to talk to: make it an apc_agents.llm.LLMAgent")
    _ = found.mind  # what is wrong with the model is said before anybody types
    return found
