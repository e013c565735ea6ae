"""Agents of pydantic-ai on the bus, as they are. Needs the extra `llm`."""

from apc_agents.pydantic_ai.approving import Approvers
from apc_agents.pydantic_ai.joining import PydanticAgent
from apc_agents.pydantic_ai.permitting import ToolRule

__all__ = ["Approvers", "PydanticAgent", "ToolRule"]
