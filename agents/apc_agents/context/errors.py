"""Errors of the engineered context.

AgentError
  ContextError
    ContextPressureError   a turn for a context that is pressured: compress or clear first
    InvalidTransition      (state, kind): an input that the state does not list
    TurnInvalid            a turn that cannot be stored as it stands
      MessageTooLong       (tokens, limit): a turn that the window cannot hold beside what must stay
    ArgumentInvalid        (place): an argument outside its range or of the wrong type
    UnknownPath            (path): no operation has this path
    UnknownResource        (resource_id): no turn of this window has this id
    LinearityError         (resource_id): a class that would sink, or a drop of what may not be dropped
    CompositionRefused     (step): a composition of operations that cannot run
    PromptInvalid          (place): a template, or what is asked of it, does not fit
    ContextStoreError
      ArchiveCorrupted     (resource_id): the store gave back other bytes than it got
      ContextStale         (session_id, revision): another process has saved this session since it was read

Whatever raises one of them leaves the context as it was.
"""

from apc_agents.errors import AgentError


class ContextError(AgentError):
    """Something went wrong in a context."""


class ContextPressureError(ContextError):
    """Context pressured. Compress or clear first."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind} refused: context pressured. Compress or clear first.")
        self.kind = kind


class InvalidTransition(ContextError):
    """An input that the state does not list."""

    def __init__(self, state: str, kind: str, valid: list[str]) -> None:
        super().__init__(f"{kind} refused in state {state}: it takes {', '.join(valid)}")
        self.state = state
        self.kind = kind


class TurnInvalid(ContextError):
    """A turn that cannot be stored as it stands; `place` names the field."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"turn refused at {place}: {message}")
        self.place = place


class MessageTooLong(TurnInvalid):
    """A turn that the window cannot hold beside what must stay."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__("content", f"it has {tokens} tokens and {limit} fit: shorten it, or send it in parts")
        self.tokens = tokens
        self.limit = limit


class ArgumentInvalid(ContextError):
    """An argument outside its range or of the wrong type; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class UnknownPath(ContextError):
    """No operation has this path."""

    def __init__(self, path: str, known: list[str]) -> None:
        super().__init__(f"unknown path {path!r}: known are {', '.join(known)}")
        self.path = path


class UnknownResource(ContextError):
    """No turn of this window has this id."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(f"unknown resource_id {resource_id!r}: linearity.stats and map.transform list those there are")
        self.resource_id = resource_id


class LinearityError(ContextError):
    """A class that would sink, or a drop of what may not be dropped."""

    def __init__(self, resource_id: str, message: str) -> None:
        super().__init__(f"{resource_id}: {message}")
        self.resource_id = resource_id


class CompositionRefused(ContextError):
    """A composition of operations that cannot run; `step` counts its operations from 0."""

    def __init__(self, step: int, operation: str, message: str) -> None:
        super().__init__(f"step {step} ({operation}) refused: {message}")
        self.step = step
        self.operation = operation


class PromptInvalid(ContextError):
    """A template, or what is asked of it, does not fit; `place` names the template or the field."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"prompt refused at {place}: {message}")
        self.place = place


class ContextStoreError(ContextError):
    """What a context keeps in a memory store cannot be used."""


class ArchiveCorrupted(ContextStoreError):
    """The store gave back other bytes than it got."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(f"the archived turn {resource_id} is not what was put away: its digest differs")
        self.resource_id = resource_id


class ContextStale(ContextStoreError):
    """Another process has saved this session since it was read."""

    def __init__(self, session_id: str, revision: int) -> None:
        super().__init__(f"the context of session {session_id} has left revision {revision}: open it again")
        self.session_id = session_id
        self.revision = revision
