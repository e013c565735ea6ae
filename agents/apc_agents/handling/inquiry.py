"""What a handler may wait for: an ASK, and how its ANSWER becomes the result of the call."""

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Generic, Protocol
from uuid import UUID
from warnings import warn

import orjson
from pydantic import BaseModel, JsonValue, ValidationError
from typing_extensions import TypeVar

from apc_agents.emission import Destination, Draft
from apc_agents.errors import AgentError, AnswerUnusable, AskTimeout, RequestFailed
from apc_agents.handling.journal import Asked, decode_error
from apc_agents.typed import answer_schema_of, payload_of, schema_of
from apc_contracts.answers import AnswerSchema
from apc_contracts.packet import MAX_TTL_MS, PACKET_PREFIX, Packet, Recipient, request_of
from apc_contracts.payloads.by_type import (
    MAX_TEXT,
    AgentRequest,
    AnswerOutcome,
    AnswerSpec,
    DecisionPayload,
    MessagePayload,
    OnTimeout,
    Payload,
    Question,
    Result,
    SignalPayload,
    words_beside,
)
from apc_contracts.payloads.session_signals import MAX_KEY, ROLE_PREFIX, WakeSpec
from apc_contracts.vocabulary import ORCHESTRATOR, Signal
from apc_contracts.wire.parsing import payload_hash

ResultT_co = TypeVar("ResultT_co", covariant=True)
End = dict[str, Any]
"""How an ASK ended, as the records keep it."""
LONGEST_TTL = timedelta(milliseconds=MAX_TTL_MS)


class Inquiry(Protocol[ResultT_co]):
    """One call of a wait."""

    @property
    def op(self) -> str:
        """The name of the call of `ctx`."""
        ...

    @property
    def count(self) -> int:
        """How many ASKs it makes."""
        ...

    def subject(self) -> str:
        """Return the text by which the same inquiry is recognised in another run."""
        ...

    def drafts(self, now: datetime) -> list[Draft]:
        """Return the ASKs."""
        ...

    def outcome(self, asked: Sequence[Asked]) -> ResultT_co:
        """Return, or raise, what the handler gets for the ASKs."""
        ...


def subject_of(inquiries: Sequence[Inquiry[Any]]) -> str:
    """Return the text by which a wait is recognised in another run of the handler."""
    if len(inquiries) == 1:
        return inquiries[0].subject()
    return " ".join(f"{one.op}({one.subject()})" for one in inquiries)


class Pending(Generic[ResultT_co]):
    """Something to wait for: await it, or give several to `ctx.gather`. Nothing is asked before that."""

    def __init__(
        self, inquiry: Inquiry[ResultT_co], begin: Callable[[Sequence[Inquiry[Any]]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._inquiry = inquiry
        self._begin = begin
        self._is_used = False

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        """Ask, and wait; in the run that follows the answer, return or raise what it came to."""
        (result,) = yield from self._begin([self.take()]).__await__()
        return result  # type: ignore[no-any-return]

    def take(self) -> Inquiry[ResultT_co]:
        """Return what is to be asked."""
        self._is_used = True
        return self._inquiry

    def __del__(self) -> None:
        """Warn of a wait that nobody awaited, as Python does of a coroutine."""
        if not self._is_used:
            warn(f"ctx.{self._inquiry.op} was never awaited: nothing was asked", RuntimeWarning, stacklevel=2)


def question_digest(*said: Any) -> str:
    """Return a short digest of JSON values."""
    return sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def names_of(to: Destination) -> list[str]:
    """Return the ids of a destination."""
    listed = (to,) if isinstance(to, str | Recipient) else to
    return [one.agent_id if isinstance(one, Recipient) else str(one) for one in listed]


def end_of(answer: Packet, said: AnswerSpec) -> End:
    """Return an ANSWER as the records keep it."""
    return {
        "outcome": said.outcome.value,
        "by": answer.sender.agent_id,
        "note": said.note,
        "at": answer.created_at.isoformat(),
        "id": str(answer.packet_id),
        "result": None if said.result is None else dict(said.result.content),
        "content": None if said.content is None else dict(said.content),
    }


def outcome_of(op: str, end: End) -> AnswerOutcome:
    """Return how an ASK ended. Raises what the gate refused it with."""
    if "raised" in end:
        raise decode_error(op, end["raised"])
    return AnswerOutcome(end["outcome"])


def evidence_of(asked: Sequence[Asked]) -> tuple[str, ...]:
    """Return the references to the ANSWERs of a wait."""
    return tuple(f"{PACKET_PREFIX}{one.end['id']}" for one in asked if one.end is not None and "id" in one.end)


def drafts_of(inquiries: Sequence[Inquiry[Any]]) -> list[tuple[int, Draft]]:
    """Return the ASKs of a wait, each with the place of its call among the others."""
    now = datetime.now(UTC)
    return [(group, draft) for group, one in enumerate(inquiries) for draft in one.drafts(now)]


def outcomes_of(inquiries: Sequence[Inquiry[Any]], asked: Sequence[Asked]) -> list[Any]:
    """Return what the handler gets for the calls of a wait, in their order. Raises how the first that failed ended."""
    groups = [[one for one in asked if one.group == number] for number in range(len(inquiries))]
    return [inquiry.outcome(group) for inquiry, group in zip(inquiries, groups, strict=True)]


# A question to people, and its end as the handler gets it.

MAX_APPROVALS: Final = 16
"""People whose approval one `ctx.ask` may need."""


AnswerT = TypeVar("AnswerT", bound=BaseModel | None, default=None)
"""What people fill in beside their yes; None when the question asks for nothing."""


@dataclass(frozen=True, slots=True)
class Approval(Generic[AnswerT]):
    """How a question ended.

    With `approvals=n` these are of the first answer that is no approval, else of the last one.

    ```python
    @desk.on(Question)
    async def ask_lead(question: Question, ctx: HandlerContext) -> Answer:
        approval: Approval = await ctx.ask(question.text, to=Role("lead"), timeout=timedelta(hours=8))
        return Answer(text=f"{approval.by} said {approval.outcome}: {approval.note or 'no note'}")
    ```

    With `ctx.ask(..., returns=Refund)` it is an `Approval[Refund]`: its `answer` is a Refund if it is approved.

    Attributes:
        approved: whether n different people approved.
        outcome: APPROVED, DENIED or TIMED_OUT.
        by: who answered; the orchestrator when the time was over.
        note: what the person wrote beside the answer; None without one.
        answered_at: when, in UTC.
        packet_id: the ANSWER in the log.
        answer: what the person filled in, with `returns=`; None when the question was not approved, or erased.
        several: the answer of each person with `approvals=n`; read `approvals`, which has that of one person too.
    """

    approved: bool
    outcome: AnswerOutcome
    by: str
    note: str | None
    answered_at: datetime
    packet_id: UUID
    answer: AnswerT | None = None
    several: tuple["Approval[AnswerT]", ...] = ()

    @property
    def approvals(self) -> tuple["Approval[AnswerT]", ...]:
        """What each person answered, in the order of the answers."""
        return self.several or (self,)


def shown_of(about: BaseModel) -> dict[str, JsonValue]:
    """Return what people see of the message that they are asked about, as its packet will have it.

    Raises:
        AgentError: it has no schema and content.
    """
    payload = payload_of(about)
    said: Payload | Result | None = payload.result if isinstance(payload, DecisionPayload) else payload
    if not isinstance(said, MessagePayload | Result):
        raise AgentError(
            f"ctx.ask(about={type(about).__name__}(...)) has no schema and content: give a model with "
            '@message("name/1"), a MessagePayload, or a DecisionPayload with a result'
        )
    return {"schema": said.schema_id, "content": dict(said.content), **words_beside(payload)}


@dataclass(frozen=True, slots=True)
class PeopleAsked:
    """What a handler asks people, how many of them, and for how long it waits."""

    text: str
    to: Destination
    timeout: timedelta
    on_timeout: OnTimeout
    content: dict[str, JsonValue] | None = None
    count: int = 1
    returns: type[BaseModel] | None = None
    op: str = "ask"

    def __post_init__(self) -> None:
        """Raise AgentError for a number of people that cannot answer, and a model that they cannot fill in."""
        if not 1 <= self.count <= MAX_APPROVALS:
            raise AgentError(f"ctx.ask(approvals={self.count}): give a number of people from 1 to {MAX_APPROVALS}")
        names = set(names_of(self.to))
        if len(names) < self.count and not any(name.startswith(ROLE_PREFIX) for name in names):
            raise AgentError(f"ctx.ask(approvals={self.count}): to= names {len(names)}: name as many people, or a role")
        _ = self._schema

    @property
    def _schema(self) -> AnswerSchema | None:
        return None if self.returns is None else answer_schema_of(self.returns)

    def subject(self) -> str:
        """Return the text by which the same question is recognised in another run.

        The schema of the answer is part of it, titles and descriptions aside: who goes on with another model would read
        fields that nobody was asked for.
        """
        said = [self.text, names_of(self.to), self.timeout.total_seconds(), self.on_timeout, self.content]
        schema = self._schema
        typed = [] if schema is None else [schema.hash.hex()]
        return question_digest(*said, *([self.count] if self.count > 1 else []), *typed)

    def drafts(self, now: datetime) -> list[Draft]:
        """Return an ASK for each person whose approval is needed."""
        return [self._draft(number, now) for number in range(1, self.count + 1)]

    def _draft(self, number: int, now: datetime) -> Draft:
        of_several = f" ({number} of {self.count}, each by another person)" if self.count > 1 else ""
        schema = self._schema
        question = Question(
            text=f"{self.text}{of_several}",
            content=self.content,
            on_timeout=self.on_timeout,
            answer_schema=None if schema is None else schema.document,
        )
        payload = SignalPayload(signal=Signal.ASK, question=question, expected_response_by=now + self.timeout)
        return Draft(payload, to=self.to, ttl=min(self.timeout, LONGEST_TTL))

    def outcome(self, asked: Sequence[Asked]) -> Approval[Any]:
        """Return the end of the question. Raises what the gate refused the ASK with, AskTimeout, AnswerUnusable."""
        ends = [(self._approval(one.end, one.packet), one.packet) for one in asked if one.end is not None]
        ends.sort(key=lambda end: end[0].answered_at)
        last, ask = next((end for end in ends if not end[0].approved), ends[-1])
        if last.outcome is AnswerOutcome.TIMED_OUT and self.on_timeout is OnTimeout.RAISE:
            raise AskTimeout(ask.packet_id)
        if self.count == 1:
            return last
        given = tuple(one for one, _ in ends)
        if last.approved and len({one.by for one in given}) < self.count:
            note = f"{last.by} has approved more than once: {self.count} different people are needed"
            return replace(last, approved=False, outcome=AnswerOutcome.DENIED, note=note, several=given)
        return replace(last, several=given)

    def _approval(self, end: End, ask: Packet) -> Approval[Any]:
        outcome = outcome_of(self.op, end)
        return Approval(
            approved=outcome is AnswerOutcome.APPROVED,
            outcome=outcome,
            by=end["by"],
            note=end["note"],
            answered_at=datetime.fromisoformat(end["at"]),
            packet_id=UUID(end["id"]),
            answer=self._answer(end, ask),
        )

    def _answer(self, end: End, ask: Packet) -> BaseModel | None:
        """Return what a person filled in; the gate has checked it by the schema that the model had then."""
        if self.returns is None or end.get("content") is None:
            return None
        try:
            return self.returns.model_validate_json(orjson.dumps(end["content"]), by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or self.returns.__name__
            raise AnswerUnusable(ask.packet_id, end["by"], f"{place}: {first['msg']}") from error


# A request to another agent: typed data for its handler, whose result is the answer.

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AgentAsked(Generic[ModelT]):
    """What a handler asks another agent, what it wants back, and for how long it waits."""

    content: BaseModel
    to: Destination
    returns: type[ModelT]
    timeout: timedelta
    count: int = 1
    op: str = "request"

    def subject(self) -> str:
        """Return the text by which the same request is recognised in another run."""
        said = payload_of(self.content).model_dump(mode="json")
        return question_digest(said, names_of(self.to), schema_of(self.returns), self.timeout.total_seconds())

    def drafts(self, now: datetime) -> list[Draft]:
        """Return the ASK. Raises AgentError for models without `@message`."""
        said, returns = payload_of(self.content), schema_of(self.returns)
        if not isinstance(said, MessagePayload) or returns is None:
            name = type(self.content).__name__ if returns is not None else self.returns.__name__
            raise AgentError(f'ctx.request takes models that are decorated with @message("name/1"), not {name}')
        request = AgentRequest(schema_id=said.schema_id, content=said.content, returns=returns)
        payload = SignalPayload(signal=Signal.ASK, request=request, expected_response_by=now + self.timeout)
        return [Draft(payload, to=self.to, ttl=min(self.timeout, LONGEST_TTL))]

    def outcome(self, asked: Sequence[Asked]) -> ModelT:
        """Return the answer. Raises AskTimeout, RequestFailed, and what the gate refused the ASK with."""
        (one,) = asked
        end, ask = one.end or {}, one.packet
        outcome = outcome_of(self.op, end)
        if outcome is AnswerOutcome.TIMED_OUT:
            raise AskTimeout(ask.packet_id)
        if outcome is not AnswerOutcome.ANSWERED:
            raise RequestFailed(ask.packet_id, end["by"], end["note"] or "no reason given")
        return self.returns.model_validate(end["result"], by_alias=True, by_name=False)


def with_answer(packet: Packet, published: Packet, agent_id: str, payloads: Sequence[Payload]) -> Iterator[Payload]:
    """Yield what a handler returned; for a request, its first result of the requested schema is the ANSWER."""
    request = request_of(packet)
    if request is None:
        yield from payloads
        return
    fitting = (one for one in payloads if isinstance(one, MessagePayload) and one.schema_id == request.returns)
    result = next(fitting, None)
    if result is None:
        yield failed(published, f"{agent_id} returned no {request.returns}")
    else:
        given = Result(schema_id=result.schema_id, content=result.content)
        seen = payload_hash(published.payload)
        answer = AnswerSpec(outcome=AnswerOutcome.ANSWERED, seen=seen, result=given)
        yield SignalPayload(signal=Signal.ANSWER, answer=answer)
    yield from (one for one in payloads if one is not result)


def failed(published: Packet, why: str) -> SignalPayload:
    """Return the ANSWER that ends a request without a result."""
    seen = payload_hash(published.payload)
    return SignalPayload(
        signal=Signal.ANSWER, answer=AnswerSpec(outcome=AnswerOutcome.FAILED, note=why[:MAX_TEXT], seen=seen)
    )


# Timers that an agent sets: the WAKE that asks the orchestrator for one.

_MILLISECOND = timedelta(milliseconds=1)


def wake_draft(key: str, after: timedelta | None, at: datetime | None) -> Draft:
    """Return the WAKE that sets a timer. Raises AgentError for a key or a time that is none."""
    if not 1 <= len(key) <= MAX_KEY:
        raise AgentError(f"ctx.wake: the key has {len(key)} characters: give 1 to {MAX_KEY}")
    if (after is None) == (at is None):
        raise AgentError("ctx.wake takes one time: after= or at=")
    if at is not None and at.tzinfo is None:
        raise AgentError("ctx.wake: at has no time zone: give one, as in datetime.now(UTC)")
    if after is not None and after < _MILLISECOND:
        raise AgentError(f"ctx.wake: after={after} is less than a millisecond: give a time to wait")
    spec = WakeSpec(key=key, at=at, after_ms=None if after is None else round(after / _MILLISECOND))
    return Draft(SignalPayload(signal=Signal.WAKE, wake=spec), to=ORCHESTRATOR, ttl=LONGEST_TTL)
