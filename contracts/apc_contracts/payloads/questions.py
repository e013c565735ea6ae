"""Payloads of SIGNAL ASK and ANSWER of apc/1.1: a question that a handler waits for (docs/how-to/approvals.md)."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from apc_contracts.model import Model, OpenMap, Sha256

MAX_TEXT = 8_192
"""Characters of a question, and of the note of its answer."""


class OnTimeout(StrEnum):
    """What becomes of a question that nobody has answered in time."""

    DENY = "deny"
    RAISE = "raise"


class AnswerOutcome(StrEnum):
    """How a question ended."""

    APPROVED = "approved"
    DENIED = "denied"
    TIMED_OUT = "timed_out"


OF_THE_GATE = frozenset({AnswerOutcome.TIMED_OUT})
"""Outcomes that only the orchestrator sends."""


class Question(Model):
    """What a handler asks people; it is due at `expected_response_by` of its SIGNAL. `content` is shown to them."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    content: OpenMap | None = None
    on_timeout: OnTimeout = OnTimeout.DENY


class AnswerSpec(Model):
    """The end of a question; the parent of its packet is the ASK. `seen` is the payload hash of the ASK."""

    outcome: AnswerOutcome
    note: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    seen: Sha256 | None = None
