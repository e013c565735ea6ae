"""What an operator acts on and how: dead letters, effects, tasks, questions, sessions; models, acts and routes."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import Field, JsonValue

from apc_agents.effects import EffectId
from apc_contracts.answers import check_answer_schema
from apc_contracts.contract_model import SHA256_PATTERN
from apc_contracts.payloads.by_type import MAX_TEXT, AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import MAX_EFFECT_KEY, ReceiptKind
from apc_log.queries import DeliveryId
from apc_log.queries.questions import list_questions
from apc_web.access import AccountRole, caller
from apc_web.contents import Spoken
from apc_web.cursors import SessionName
from apc_web.errors import ApiError, invalid
from apc_web.models import NEXT, ApiModel, Shown
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Acts, Reading, Services, Serving
from apc_web.runs import place_of


class DeliveryAttempt(ApiModel):
    """One hop of a delivery."""

    attempt: Shown[int]
    from_state: Shown[str]
    to_state: Shown[str]
    events: Shown[list[str]]
    at: Shown[datetime]
    actor: Shown[str]
    error: str | None


class DeadLetterDetail(Spoken):
    """A delivery that failed permanently."""

    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[str]
    recipient: Shown[str]
    attempt: Shown[int]
    reason: str | None
    words: str
    """What failed and why, one sentence."""
    exception: str | None
    """Type and text of what the handler raised."""
    handled: str
    """What the handler takes: the schema of typed data, else the packet's type."""
    died_at: Shown[datetime]
    expires_at: Shown[datetime]
    can_requeue: Shown[bool]
    """False once the packet has expired, and for work of a session that has halted."""
    attempts: Shown[list[DeliveryAttempt]]


class DeadLetterPage(ApiModel):
    """Dead letters in the order of the log, oldest first."""

    items: Shown[list[DeadLetterDetail]]
    next: Shown[str | None] = NEXT


class DeadMember(ApiModel):
    """A dead letter of a group, as it is now."""

    session_id: Shown[str]
    packet_id: Shown[UUID]
    recipient: Shown[str]
    attempt: Shown[int]
    died_at: Shown[datetime]
    expires_at: Shown[datetime]
    can_requeue: Shown[bool]


class DeadLetterGroup(ApiModel):
    """Dead letters of one agent that failed in the same way on the same kind of packet."""

    recipient: Shown[str]
    code: Shown[str]
    """The first word of the reason, such as handler_error."""
    exception_type: str | None
    handled: str
    """The schema of typed data, else the packet's type."""
    packet_type: Shown[str]
    words: str
    """Why the newest of them failed."""
    count: Shown[int]
    can_requeue: Shown[int]
    """How many of them can be delivered again."""
    first_at: Shown[datetime]
    last_at: Shown[datetime]
    expires_at: Shown[datetime | None]
    """When the next of them that can be delivered again expires."""
    members: Shown[list[DeadMember]]
    """Oldest first, at most as many as one request may name."""


class DeadLetterGroups(ApiModel):
    """Groups of dead letters, the largest first."""

    groups: Shown[list[DeadLetterGroup]]
    looked_at: Shown[int]
    is_complete: Shown[bool]
    """False when there are more dead letters than were looked at, oldest first."""


class EffectSummary(ApiModel):
    """An act of a handler outside the bus."""

    packet_id: Shown[UUID]
    agent_id: Shown[str]
    key: str
    """As the handler wrote it: it may name what a body names."""
    state: Shown[str]
    """RUNNING, UNKNOWN, RESULT_LOST or MADE."""
    session_id: Shown[str]
    worker: Shown[str]
    claimed_at: Shown[datetime]
    made_at: Shown[datetime | None]
    problem: str | None
    settled_by: Shown[str | None]


class EffectList(ApiModel):
    """Effects, newest first."""

    items: Shown[list[EffectSummary]]


class TaskSummary(ApiModel):
    """A durable task of an agent."""

    task_id: Shown[UUID]
    agent_id: Shown[str]
    session_id: Shown[str]
    action: Shown[str]
    status: Shown[str]
    progress: Shown[float]
    note: str | None
    error: str | None
    attempt: Shown[int]
    created_at: Shown[datetime]
    started_at: Shown[datetime | None]
    finished_at: Shown[datetime | None]


class TaskList(ApiModel):
    """Tasks, newest first."""

    items: Shown[list[TaskSummary]]


class ActOutcome(ApiModel):
    """What became of an act."""

    verdict: str
    """What the gate said, or the state that followed."""
    detail: dict[str, Any]


class OpenApproval(ApiModel):
    """A question of an agent that waits for a person."""

    packet_id: Shown[UUID]
    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    asker: Shown[str]
    may_answer: Shown[list[str]]
    """Who was asked."""
    answer_as: Shown[list[str]]
    """Those in whose names you may answer here; empty = not."""
    role: Shown[str | None]
    """The role whose people were asked; null when they were named."""
    text: str | None
    """The question; null when the body is sealed or was erased."""
    content: dict[str, Any] | None
    """What the agent shows beside it."""
    payload_hash: Shown[str]
    """SHA-256 of what is answered: the answer names it."""
    answer_schema: dict[str, Any] | None
    """JSON Schema of the fields that who approves fills in; null = there are none, or the body is sealed."""
    denied_by: Shown[list[str]]
    """Who denied the same before in this session: the same content, or without one the same text."""
    asked_at: Shown[datetime]
    due_at: Shown[datetime]


class ApprovalList(ApiModel):
    """Open questions, the one that is due first first."""

    items: Shown[list[OpenApproval]]


class FollowingPacket(Spoken):
    """A packet that rests on an answer."""

    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[str]
    verdict: Shown[str]
    refusal_code: Shown[str | None]
    at: Shown[datetime]


class FollowingEffect(ApiModel):
    """An act outside the bus that came after an answer."""

    packet_id: Shown[UUID]
    agent_id: Shown[str]
    key: str
    """As the handler wrote it: it may name what a body names."""
    state: Shown[str]
    """claimed, made, unknown or settled."""


class AnsweredApproval(ApiModel):
    """A question that was answered, or whose time is over, and what followed."""

    packet_id: Shown[UUID]
    """The question."""
    answer_id: Shown[UUID]
    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    asker: Shown[str]
    may_answer: Shown[list[str]]
    text: str | None
    content: dict[str, Any] | None
    asked_at: Shown[datetime]
    outcome: Shown[str]
    """approved, denied or timed_out."""
    answered_by: Shown[str]
    """The orchestrator when the time was over."""
    answered_at: Shown[datetime]
    note: str | None
    answer_schema: dict[str, Any] | None
    """JSON Schema of `answer`."""
    answer: dict[str, Any] | None
    """The fields that the person filled in who approved."""
    followed: Shown[list[FollowingPacket]]
    """The first packets that rest on the answer."""
    effects: Shown[list[FollowingEffect]]


class AnsweredPage(ApiModel):
    """Questions that have ended, the newest answer first."""

    items: Shown[list[AnsweredApproval]]
    next: Shown[str | None] = NEXT


class AnswerRequest(ApiModel):
    """Why a question is approved or denied."""

    note: str | None = Field(default=None, max_length=MAX_TEXT)
    """The reason, which the handler gets and the log keeps."""
    person: str | None = None
    """Who answers; null = the only one asked whom this server speaks for."""
    seen: str | None = Field(default=None, pattern=SHA256_PATTERN)
    """The `payload_hash` of the question whose whole text and data were on the screen; needed to approve."""
    answer: dict[str, JsonValue] | None = None
    """The fields of a question with `answer_schema`, which they fit; needed to approve it."""


class DeliveryName(ApiModel):
    """A delivery to act on."""

    packet_id: UUID
    session_id: str
    recipient: str
    attempt: int | None = None
    """The attempt that died, as it was on the screen: one that has failed again since is left as it is."""


class SettleRequest(ApiModel):
    """Dead letters to requeue or to discard."""

    deliveries: list[DeliveryName]
    note: str | None = None
    """The reason, which the log keeps; needed to discard."""


class SettleEffectRequest(ApiModel):
    """What became of an effect whose outcome is unknown."""

    packet_id: UUID
    agent_id: str = Field(min_length=1, max_length=256)
    key: str = Field(min_length=1, max_length=MAX_EFFECT_KEY)
    is_made: bool
    """True = it has happened; false = it has not, so that the next attempt makes it."""
    result: JsonValue = None
    """What `ctx.once` returns for it from now on."""


class SignalRequest(ApiModel):
    """Why a session is paused, resumed or stopped."""

    reason: str | None = None


MOST_DELIVERIES = 500
"""Dead letters of one request."""
_KINDS = {"requeue": ReceiptKind.REQUEUE, "discard": ReceiptKind.DISCARD}
_OUTCOMES = {"approve": AnswerOutcome.APPROVED, "deny": AnswerOutcome.DENIED}
_SIGNALS = {"pause": Signal.PAUSE, "resume": Signal.RESUME, "stop": Signal.STOP}


async def settle(acts: Acts, act: str, request: SettleRequest) -> ActOutcome:
    """Requeue or discard dead letters. Raises ApiError, InputUnusable, ServiceAway."""
    await require_operator(acts)
    if not 0 < len(request.deliveries) <= MOST_DELIVERIES:
        raise invalid("deliveries", f"deliveries: name 1 to {MOST_DELIVERIES}")
    if act == "discard" and not (request.note or "").strip():
        raise invalid("note", "note: say why they are discarded; the log keeps it")
    deliveries = [DeliveryId(one.session_id, one.packet_id, one.recipient) for one in request.deliveries]
    attempts = {
        id_: one.attempt for id_, one in zip(deliveries, request.deliveries, strict=True) if one.attempt is not None
    }
    result = await acts.settle(_KINDS[act], deliveries, request.note, caller().person, attempts)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def settle_effect(acts: Acts, request: SettleEffectRequest) -> ActOutcome:
    """Settle an effect whose outcome is unknown. Raises ApiError, InputUnusable, ServiceAway."""
    await require_operator(acts)
    if not request.is_made and request.result is not None:
        raise invalid("result", "result: an effect that was not made has none")
    effect = EffectId(request.packet_id, request.agent_id, request.key)
    result = await acts.settle_effect(effect, request.result, caller().person, is_made=request.is_made)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def signal(acts: Acts, reading: Reading, session_id: str, act: str, request: SignalRequest) -> ActOutcome:
    """Pause, resume or stop a session. Raises ApiError, InputUnusable, ServiceAway."""
    await require_operator(acts)
    await place_of(reading.pool, session_id)
    result = await acts.signal(session_id, _SIGNALS[act], request.reason, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def answer(acts: Acts, reading: Reading, packet_id: UUID, act: str, request: AnswerRequest) -> ActOutcome:
    """Approve or deny what an agent asks people. Raises ApiError, InputUnusable, ServiceAway."""
    person = caller().person
    if person is not None and request.person not in (None, person):
        raise ApiError(403, "NOT_YOU", f"you answer as {person}: leave person out", "person")
    if act == "approve":
        await require_seen(reading, packet_id, request.seen)
    await _require_fitting(reading, packet_id, act, request.answer)
    answerer, outcome = person or request.person, _OUTCOMES[act]
    result = await acts.answer(packet_id, outcome, request.note, answerer, request.seen, request.answer)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def _require_fitting(reading: Reading, packet_id: UUID, act: str, given: dict[str, JsonValue] | None) -> None:
    """Raise ApiError at the field that the gate would refuse: it decides, and says it in the words of packets."""
    if act != "approve":
        if given is not None:
            raise invalid("answer", "answer: a denial has no fields; say why in note")
        return
    for question in await list_questions(reading.pool, packet_id=packet_id, limit=1):
        if question.answer_schema is None:
            if given is not None:
                raise invalid("answer", "answer: this question asks for no fields: leave it out")
        elif given is None:
            raise invalid("answer", "answer: this question is answered with fields: give them")
        elif fault := check_answer_schema(question.answer_schema).fault(given, "answer"):
            raise invalid(fault.path, f"{fault.path}: {fault.message}")


async def require_seen(reading: Reading, packet_id: UUID, seen: str | None) -> None:
    """Raise ApiError unless an approval names what was on the screen, and this server could show it."""
    if seen is None:
        detail = "seen: show the whole question and its data, then approve with its payload_hash; deny needs none"
        raise ApiError(422, "NOT_SEEN", detail, "seen")
    for question in await list_questions(reading.pool, packet_id=packet_id, limit=1):
        if question.text is None:
            detail = "the question is encrypted or erased, so nobody has read it here: it can be denied, or approved "
            raise ApiError(409, "SEALED", detail + "with `apc approval approve` by a person who knows what it says")
        if question.payload_hash != seen:
            raise ApiError(409, "NOT_SEEN", "seen: the question has another payload_hash: read it again", "seen")


async def require_operator(acts: Acts) -> None:
    """Raise ApiError (403) for a caller who may not operate now."""
    reason = await acts.why_not(caller().person)
    if reason is not None:
        raise ApiError(403, "NO_ACTS", reason)


def acts_of(services: Services) -> Acts:
    """Return the acts of a server. Raises ApiError (403) when it has none."""
    if services.acts is None:
        raise ApiError(403, "NO_ACTS", services.why_no_acts or "this server has no acts")
    return services.acts


# Routes of acts: what an operator does; each answers with the gate's verdict.

router = APIRouter(tags=["acts"], route_class=RoleRoute)


@router.post("/dead/{act}", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def settle_dead(
    services: Serving, act: Annotated[Literal["requeue", "discard"], Path()], request: SettleRequest
) -> ActOutcome:
    """Deliver dead letters again, or archive them; wait until the log shows it."""
    return await settle(acts_of(services), act, request)


@router.post("/effects/settle", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def settle_unknown_effect(services: Serving, request: SettleEffectRequest) -> ActOutcome:
    """Settle an effect whose outcome is unknown: it was made, with a result, or it was not."""
    return await settle_effect(acts_of(services), request)


@router.post("/approvals/{packet_id}/{act}", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def answer_question(
    services: Serving,
    packet_id: UUID,
    act: Annotated[Literal["approve", "deny"], Path()],
    request: AnswerRequest,
) -> ActOutcome:
    """Approve or deny what an agent asks people; wait for the gate's verdict."""
    return await answer(acts_of(services), services, packet_id, act, request)


@router.post("/sessions/{session_id}/{act}", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def signal_session(
    services: Serving,
    session_id: SessionName,
    act: Annotated[Literal["pause", "resume", "stop"], Path()],
    request: SignalRequest,
) -> ActOutcome:
    """Pause, resume or stop a session; wait for the gate's verdict."""
    return await signal(acts_of(services), services, session_id, act, request)
