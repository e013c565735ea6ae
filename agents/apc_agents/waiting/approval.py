"""A question to people, and its end as the handler gets it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson
from pydantic import JsonValue

from apc_agents.emitting.draft import Destination, Draft
from apc_agents.errors import AskTimeout
from apc_agents.waiting.values import decode_error
from apc_contracts.envelope.packet import Packet, Recipient
from apc_contracts.envelope.parts import MAX_TTL_MS
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.questions import AnswerOutcome, AnswerSpec, OnTimeout, Question
from apc_contracts.vocabulary import Signal

_LONGEST_TTL = timedelta(milliseconds=MAX_TTL_MS)


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
class Inquiry:
    """What a handler asks whom, and for how long it waits."""

    text: str
    to: Destination
    timeout: timedelta
    on_timeout: OnTimeout
    content: dict[str, JsonValue] | None = None

    def subject(self) -> str:
        """Return the text by which the same question is recognised in another run."""
        listed = (self.to,) if isinstance(self.to, str | Recipient) else self.to
        names = [one.agent_id if isinstance(one, Recipient) else str(one) for one in listed]
        said = [self.text, names, self.timeout.total_seconds(), self.on_timeout, self.content]
        return sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    def draft(self, now: datetime) -> Draft:
        """Return the ASK."""
        question = Question(text=self.text, content=self.content, on_timeout=self.on_timeout)
        payload = SignalPayload(signal=Signal.ASK, question=question, expected_response_by=now + self.timeout)
        return Draft(payload, to=self.to, ttl=min(self.timeout, _LONGEST_TTL))


def end_of(answer: Packet, said: AnswerSpec) -> dict[str, Any]:
    """Return an ANSWER as the records keep it."""
    return {
        "outcome": said.outcome.value,
        "by": answer.sender.agent_id,
        "note": said.note,
        "at": answer.created_at.isoformat(),
        "id": str(answer.packet_id),
    }


def approval_of(end: dict[str, Any], ask: Packet) -> Approval:
    """Return the end of a question. Raises what the gate refused the ASK with, and AskTimeout."""
    if "raised" in end:
        raise decode_error("ask", end["raised"])
    outcome, question = AnswerOutcome(end["outcome"]), ask.payload_as(SignalPayload).question
    if outcome is AnswerOutcome.TIMED_OUT and question is not None and question.on_timeout is OnTimeout.RAISE:
        raise AskTimeout(ask.packet_id)
    return Approval(
        approved=outcome is AnswerOutcome.APPROVED,
        outcome=outcome,
        by=end["by"],
        note=end["note"],
        answered_at=datetime.fromisoformat(end["at"]),
        packet_id=UUID(end["id"]),
    )
