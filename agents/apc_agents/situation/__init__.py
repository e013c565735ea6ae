"""The situation of an agent: its context object, and how much a message concerns it.

Source: docs/reference/agent-context.md.
"""

from apc_agents.agent_context.assembler import ContextAssembler, given_context, system_load
from apc_agents.agent_context.messages import context_message, message_of
from apc_agents.agent_context.relevance import Resonance, resonance
from apc_agents.situation.base_agent import BaseAgent
from apc_agents.situation.sessions import SessionManager
from apc_bus.settings import RelevanceSettings, SituationSettings

__all__ = [
    "BaseAgent",
    "ContextAssembler",
    "RelevanceSettings",
    "Resonance",
    "SessionManager",
    "SituationSettings",
    "context_message",
    "given_context",
    "message_of",
    "resonance",
    "system_load",
]
