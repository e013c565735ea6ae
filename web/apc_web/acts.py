"""What an operator acts on and how: dead letters, effects, tasks, questions, sessions; models, acts and routes."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import Field

from apc_contracts.payloads.by_type import MAX_TEXT, AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId
from apc_web.access import AccountRole, caller
from apc_web.cursors import SessionName
from apc_web.errors import ApiError, invalid
from apc_web.models import NEXT, ApiModel, Shown
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Acts, Services, Serving
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


class DeadLetterDetail(ApiModel):
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
    """Why, one sentence."""
    died_at: Shown[datetime]
    expires_at: Shown[datetime]
    can_requeue: Shown[bool]
    """False once the packet has expired, and for work of a session that has halted."""
    attempts: Shown[list[DeliveryAttempt]]


class DeadLetterPage(ApiModel):
    """Dead letters in the order of the log, oldest first."""

    items: Shown[list[DeadLetterDetail]]
    next: Shown[str | None] = NEXT


class EffectSummary(ApiModel):
    """An act of a handler outside the bus."""

    packet_id: Shown[UUID]
    agent_id: Shown[str]
    key: Shown[str]
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
    asked_at: Shown[datetime]
    due_at: Shown[datetime]


class ApprovalList(ApiModel):
    """Open questions, the one that is due first first."""

    items: Shown[list[OpenApproval]]


class AnswerRequest(ApiModel):
    """Why a question is approved or denied."""

    note: str | None = Field(default=None, max_length=MAX_TEXT)
    """The reason, which the handler gets and the log keeps."""
    person: str | None = None
    """Who answers; null = the only one asked whom this server speaks for."""


class DeliveryName(ApiModel):
    """A delivery to act on."""

    packet_id: UUID
    session_id: str
    recipient: str


class SettleRequest(ApiModel):
    """Dead letters to requeue or to discard."""

    deliveries: list[DeliveryName]
    note: str | None = None


class SignalRequest(ApiModel):
    """Why a session is paused, resumed or stopped."""

    reason: str | None = None


MOST_DELIVERIES = 500
"""Dead letters of one request."""
_KINDS = {"requeue": ReceiptKind.REQUEUE, "discard": ReceiptKind.DISCARD}
_OUTCOMES = {"approve": AnswerOutcome.APPROVED, "deny": AnswerOutcome.DENIED}
_SIGNALS = {"pause": Signal.PAUSE, "resume": Signal.RESUME, "stop": Signal.STOP}


async def settle(services: Services, act: str, request: SettleRequest) -> ActOutcome:
    """Requeue or discard dead letters. Raises ApiError, InputUnusable, ServiceAway."""
    acts = await _operating(services)
    if not 0 < len(request.deliveries) <= MOST_DELIVERIES:
        raise invalid("deliveries", f"deliveries: name 1 to {MOST_DELIVERIES}")
    deliveries = [DeliveryId(one.session_id, one.packet_id, one.recipient) for one in request.deliveries]
    result = await acts.settle(_KINDS[act], deliveries, request.note, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def signal(services: Services, session_id: str, act: str, request: SignalRequest) -> ActOutcome:
    """Pause, resume or stop a session. Raises ApiError, InputUnusable, ServiceAway."""
    acts = await _operating(services)
    await place_of(services.pool, session_id)
    result = await acts.signal(session_id, _SIGNALS[act], request.reason, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def answer(services: Services, packet_id: UUID, act: str, request: AnswerRequest) -> ActOutcome:
    """Approve or deny what an agent asks people. Raises ApiError, InputUnusable, ServiceAway."""
    person = caller().person
    if person is not None and request.person not in (None, person):
        raise ApiError(403, "NOT_YOU", f"you answer as {person}: leave person out", "person")
    result = await _acts(services).answer(packet_id, _OUTCOMES[act], request.note, person or request.person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def _operating(services: Services) -> Acts:
    """Return the acts of somebody who may operate. Raises ApiError (403) for everybody else."""
    acts = _acts(services)
    reason = await acts.why_not(caller().person)
    if reason is not None:
        raise ApiError(403, "NO_ACTS", reason)
    return acts


def _acts(services: Services) -> Acts:
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
    return await settle(services, act, request)


@router.post("/approvals/{packet_id}/{act}", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def answer_question(
    services: Serving,
    packet_id: UUID,
    act: Annotated[Literal["approve", "deny"], Path()],
    request: AnswerRequest,
) -> ActOutcome:
    """Approve or deny what an agent asks people; wait for the gate's verdict."""
    return await answer(services, packet_id, act, request)


@router.post("/sessions/{session_id}/{act}", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def signal_session(
    services: Serving,
    session_id: SessionName,
    act: Annotated[Literal["pause", "resume", "stop"], Path()],
    request: SignalRequest,
) -> ActOutcome:
    """Pause, resume or stop a session; wait for the gate's verdict."""
    return await signal(services, session_id, act, request)
