"""Errors of LLM agents.

AgentError
  LLMError
    ModelUnusable     the setting names no model that can be asked: says which setting to change
    ModelAway         (retry_after): the provider does not answer, or not now; asking again may help
    ModelRefused      the provider refuses the request; asking again does not help
    AnswerInvalid     the model gave no AgentResponse, however often it was told how to mend its answer
    AnswerTooLong     (size, limit): an answer of more bytes than may be read

Whatever raises one of them leaves the conversation as it was.
"""

from pydantic_ai.usage import RequestUsage

from apc_agents.errors import AgentError


class LLMError(AgentError):
    """Something went wrong between an agent and its model."""


class ModelUnusable(LLMError):
    """The setting names no model that can be asked."""


class ModelAway(LLMError):
    """The provider does not answer, or not now."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the provider wants to be asked again, if it said."""


class ModelRefused(LLMError):
    """The provider refuses the request."""


class AnswerInvalid(LLMError):
    """The model gave no AgentResponse."""


class AnswerTooLong(LLMError):
    """An answer of more bytes than may be read; `usage` is what it has cost all the same."""

    def __init__(self, size: int, limit: int, usage: RequestUsage) -> None:
        super().__init__(
            f"the model answered with {size} bytes, {limit} are read: raise APC_LLM_ANSWER_BYTES if need be"
        )
        self.size = size
        self.limit = limit
        self.usage = usage
