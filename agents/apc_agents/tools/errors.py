"""Errors of actions.

AgentError
  ActionError
    ToolInvalid        a function that cannot be a tool; found when it is registered
    ActionsRefused     (problems): a response whose actions cannot run; nothing of it has run
    ReferenceUnknown   (reference): a `${{…}}` that points nowhere
    ValueUnserialisable  (place): a value that JSON does not know
    ToolFailed         a tool that raised, took too long, or gave what JSON does not know
    KnowledgeOutOfScope    (knowledge_id): knowledge that the response does not list
    TaskUnknown        (task_id): no such task
    TaskLost           (task_id): another worker has taken the task over, or it was cancelled
"""

from collections.abc import Sequence
from dataclasses import dataclass

from apc_agents.errors import AgentError

_MOST_SHOWN = 10


class ActionError(AgentError):
    """Something went wrong with an action."""


class ToolInvalid(ActionError):
    """A function that cannot be a tool; found when it is registered."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an action cannot run: a place in the response (dotted with [i]) and how to mend it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ActionsRefused(ActionError):
    """A response whose actions cannot run; nothing of it has run. `problems` has at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = "; ".join(str(problem) for problem in problems[:_MOST_SHOWN])
        more = f" (and {len(problems) - _MOST_SHOWN} more)" if len(problems) > _MOST_SHOWN else ""
        super().__init__(f"nothing was run: {shown}{more}")
        self.problems = tuple(problems)


class ReferenceUnknown(ActionError):
    """A `${{…}}` that points nowhere."""

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(f"${{{{{reference}}}}} points nowhere: {message}")
        self.reference = reference


class ValueUnserialisable(ActionError):
    """A value that JSON does not know; `place` leads to it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class ToolFailed(ActionError):
    """A tool that raised, took too long, or gave what JSON does not know; `__cause__` is what it raised."""


class KnowledgeOutOfScope(ActionError):
    """Knowledge that the response does not list."""

    def __init__(self, knowledge_id: str, listed: Sequence[str]) -> None:
        known = ", ".join(listed) or "nothing"
        super().__init__(f"knowledge {knowledge_id!r} is out of scope: context.knowledge_relics lists {known}")
        self.knowledge_id = knowledge_id


class TaskUnknown(ActionError):
    """No such task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}: `apc task list` shows those there are")
        self.task_id = task_id


class TaskLost(ActionError):
    """Another worker has taken the task over, or it was cancelled: this attempt ends here."""

    def __init__(self, task_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of task {task_id} has lost it: another one runs it, or it was cancelled")
        self.task_id = task_id
