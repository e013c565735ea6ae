"""What a model's answer shows before it is finished: its `response` as it grows, and the actions that run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json


@dataclass(frozen=True, slots=True)
class ResponseText:
    """The whole `response` so far; '' withdraws what was shown, because the model is asked again."""

    text: str


@dataclass(frozen=True, slots=True)
class ActionProgress:
    """An action by its place among those of the message, and its status: RUNNING, or that of its observation."""

    number: int
    name: str
    status: str


RUNNING = "RUNNING"
OnProgress = Callable[[ResponseText | ActionProgress], None]


def response_of(given: Any) -> str | None:
    """Return the `response` in the beginning of an AgentResponse; prose is the response itself. None: there is none.

    Args:
        given: the arguments of the call, as far as they have come: a text, or the document itself.
    """
    if isinstance(given, str):
        text = given.lstrip()
        if not text:
            return None
        if not text.startswith(("{", "`")):
            return given
        try:
            given = from_json(text, allow_partial="trailing-strings")
        except ValueError:
            return None
    found = given.get("response") if isinstance(given, dict) else None
    return found if isinstance(found, str) else None
