"""Payloads of SIGNAL ASK and ANSWER of apc/1.1: what a handler waits for (docs/how-to/approvals.md)."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from apc_contracts.contract_model import Model, OpenMap, SchemaId, Sha256, broken
from apc_contracts.payloads.measurements import Result

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
    ANSWERED = "answered"
    FAILED = "failed"


OF_THE_GATE = frozenset({AnswerOutcome.TIMED_OUT})
"""Outcomes that only the orchestrator sends."""
OF_AGENTS = frozenset({AnswerOutcome.ANSWERED, AnswerOutcome.FAILED})
"""Outcomes of a request; people approve or deny."""


class Question(Model):
    """What a handler asks people; it is due at `expected_response_by` of its SIGNAL. `content` is shown to them."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    content: OpenMap | None = None
    on_timeout: OnTimeout = OnTimeout.DENY


class AgentRequest(Model):
    """What a handler asks another agent: typed data for its handler, which answers with a result of `returns`.

    In JSON, `schema_id` is the field `schema`.
    """

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
    returns: SchemaId


class AnswerSpec(Model):
    """The end of a question or request; the parent of its packet is the ASK. `seen` is the payload hash of the ASK.

    A request that was `answered` has a `result`; of one that `failed`, `note` says why.
    """

    outcome: AnswerOutcome
    note: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    seen: Sha256 | None = None
    result: Result | None = None

    @model_validator(mode="after")
    def _result_fits_outcome(self) -> Self:
        if (self.result is not None) != (self.outcome is AnswerOutcome.ANSWERED):
            raise broken("result", "result goes with answered, and with no other outcome")
        return self
