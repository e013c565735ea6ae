"""A question to people, and its end as the handler gets it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pydantic import JsonValue

from apc_agents.emitting.draft import Destination, Draft
from apc_agents.errors import AskTimeout
from apc_agents.waiting.inquiry import LONGEST_TTL, End, digest_of, names_of, outcome_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.questions import AnswerOutcome, OnTimeout, Question
from apc_contracts.vocabulary import Signal


@dataclass(frozen=True, slots=True)
class Approval:
    """How a question ended. `by` is who answered, `packet_id` the ANSWER in the log."""

    approved: bool
    outcome: AnswerOutcome
    by: str
    note: str | None
    answered_at: datetime
    packet_id: UUID


@dataclass(frozen=True, slots=True)
class PeopleAsked:
    """What a handler asks people, and for how long it waits."""

    text: str
    to: Destination
    timeout: timedelta
    on_timeout: OnTimeout
    content: dict[str, JsonValue] | None = None
    op: str = "ask"

    def subject(self) -> str:
        """Return the text by which the same question is recognised in another run."""
        return digest_of(self.text, names_of(self.to), self.timeout.total_seconds(), self.on_timeout, self.content)

    def draft(self, now: datetime) -> Draft:
        """Return the ASK."""
        question = Question(text=self.text, content=self.content, on_timeout=self.on_timeout)
        payload = SignalPayload(signal=Signal.ASK, question=question, expected_response_by=now + self.timeout)
        return Draft(payload, to=self.to, ttl=min(self.timeout, LONGEST_TTL))

    def outcome(self, end: End, ask: Packet) -> Approval:
        """Return the end of the question. Raises what the gate refused the ASK with, and AskTimeout."""
        outcome = outcome_of(self.op, end)
        if outcome is AnswerOutcome.TIMED_OUT and self.on_timeout is OnTimeout.RAISE:
            raise AskTimeout(ask.packet_id)
        return Approval(
            approved=outcome is AnswerOutcome.APPROVED,
            outcome=outcome,
            by=end["by"],
            note=end["note"],
            answered_at=datetime.fromisoformat(end["at"]),
            packet_id=UUID(end["id"]),
        )
