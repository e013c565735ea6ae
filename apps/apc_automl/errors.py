"""Errors of the reference swarm.

ApcError
  AgentError               apc_agents.errors
    TableInvalid           the user's table cannot be learned from; one sentence, how to mend it included
    ModelFileRefused       model bytes that contain something other than what our own models consist of,
                           or that cannot be read within bounds of time and memory
    TrainingUnavailable    the training processes keep dying
"""

from apc_agents.errors import AgentError


class TableInvalid(AgentError):
    """The table cannot be learned from."""


class ModelFileRefused(AgentError):
    """Model bytes that name a type which none of our models needs, or that cannot be read within bounds."""


class TrainingUnavailable(AgentError):
    """The training processes died again and again; the machine may be short of memory."""
