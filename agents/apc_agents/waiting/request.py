"""A request to another agent: typed data for its handler, whose result is the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from pydantic import BaseModel

from apc_agents.emitting.draft import Destination, Draft
from apc_agents.errors import AgentError, AskTimeout, RequestFailed
from apc_agents.typed.message import payload_of, schema_of
from apc_agents.waiting.inquiry import LONGEST_TTL, End, digest_of, names_of, outcome_of
from apc_contracts.admission.rules.routing import request_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import MessagePayload, Payload, SignalPayload
from apc_contracts.payloads.measurements import Result
from apc_contracts.payloads.questions import MAX_TEXT, AgentRequest, AnswerOutcome, AnswerSpec
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.parsing import payload_hash

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AgentAsked(Generic[ModelT]):
    """What a handler asks another agent, what it wants back, and for how long it waits."""

    content: BaseModel
    to: Destination
    returns: type[ModelT]
    timeout: timedelta
    op: str = "request"

    def subject(self) -> str:
        """Return the text by which the same request is recognised in another run."""
        said = payload_of(self.content).model_dump(mode="json")
        return digest_of(said, names_of(self.to), schema_of(self.returns), self.timeout.total_seconds())

    def draft(self, now: datetime) -> Draft:
        """Return the ASK. Raises AgentError for models without `@message`."""
        said, returns = payload_of(self.content), schema_of(self.returns)
        if not isinstance(said, MessagePayload) or returns is None:
            name = type(self.content).__name__ if returns is not None else self.returns.__name__
            raise AgentError(f'ctx.request takes models that are decorated with @message("name/1"), not {name}')
        request = AgentRequest(schema_id=said.schema_id, content=said.content, returns=returns)
        payload = SignalPayload(signal=Signal.ASK, request=request, expected_response_by=now + self.timeout)
        return Draft(payload, to=self.to, ttl=min(self.timeout, LONGEST_TTL))

    def outcome(self, end: End, ask: Packet) -> ModelT:
        """Return the answer. Raises AskTimeout, RequestFailed, and what the gate refused the ASK with."""
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
