"""Routes of acts: what an operator does; each answers with the gate's verdict."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path

from apc_web.access.route_roles import RoleRoute
from apc_web.acts.act_requests import answer, settle, signal
from apc_web.models.inbox import ActOutcome, AnswerRequest, SettleRequest, SignalRequest
from apc_web.parameters import SessionName
from apc_web.route_services import Serving

router = APIRouter(tags=["acts"], route_class=RoleRoute)


@router.post("/dead/{act}", response_model=ActOutcome)
async def settle_dead(
    services: Serving, act: Annotated[Literal["requeue", "discard"], Path()], request: SettleRequest
) -> ActOutcome:
    """Deliver dead letters again, or archive them; wait until the log shows it."""
    return await settle(services, act, request)


@router.post("/approvals/{packet_id}/{act}", response_model=ActOutcome)
async def answer_question(
    services: Serving,
    packet_id: UUID,
    act: Annotated[Literal["approve", "deny"], Path()],
    request: AnswerRequest,
) -> ActOutcome:
    """Approve or deny what an agent asks people; wait for the gate's verdict."""
    return await answer(services, packet_id, act, request)


@router.post("/sessions/{session_id}/{act}", response_model=ActOutcome)
async def signal_session(
    services: Serving,
    session_id: SessionName,
    act: Annotated[Literal["pause", "resume", "stop"], Path()],
    request: SignalRequest,
) -> ActOutcome:
    """Pause, resume or stop a session; wait for the gate's verdict."""
    return await signal(services, session_id, act, request)
