"""Errors of the reference swarm.

ApcError
  AgentError               apc_agents.errors
    TableInvalid           the user's table cannot be learned from; one sentence, how to mend it included
    ModelFileRefused       model bytes that contain something other than what our own models consist of,
                           or that cannot be read within bounds of time and memory
    TrainingUnavailable    the training processes keep dying
  NothingPassed            a run that ended without a promoted model (exit 3)
  Interrupted              a run that was told to stop before its end (exit 130)
"""

from typing import ClassVar

from apc_agents.errors import AgentError
from apc_contracts.errors import ApcError


class TableInvalid(AgentError):
    """The table cannot be learned from."""


class ModelFileRefused(AgentError):
    """Model bytes that name a type which none of our models needs, or that cannot be read within bounds."""


class TrainingUnavailable(AgentError):
    """The training processes died again and again; the machine may be short of memory."""


class NothingPassed(ApcError):
    """A run that ended without a promoted model: a result, not an error of the input."""

    exit_code: ClassVar[int] = 3


class Interrupted(ApcError):
    """A run that was told to stop before its end."""

    exit_code: ClassVar[int] = 130
