"""Routes of what waits for a person."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from apc_web.access.route_roles import RoleRoute
from apc_web.models.inbox import ApprovalList, DeadLetterPage, EffectList, TaskList
from apc_web.parameters import After, Limit, OfAgent, OfSession
from apc_web.reading import inbox
from apc_web.route_services import Serving

router = APIRouter(tags=["inbox"], route_class=RoleRoute)


@router.get("/dead", response_model=DeadLetterPage)
async def list_dead(
    services: Serving, session_id: OfSession = None, agent_id: OfAgent = None, after: After = None, limit: Limit = 50
) -> DeadLetterPage:
    """Return dead letters with every attempt, in the order of the log."""
    return await inbox.dead_page(services.pool, session_id, agent_id, after, limit)


@router.get("/approvals", response_model=ApprovalList)
async def list_approvals(services: Serving, session_id: OfSession = None, limit: Limit = 100) -> ApprovalList:
    """Return open questions to people, the one that is due first first."""
    return await inbox.approval_list(services, session_id, limit)


@router.get("/effects", response_model=EffectList)
async def list_effects(
    services: Serving,
    agent_id: OfAgent = None,
    state: Annotated[Literal["RUNNING", "UNKNOWN", "RESULT_LOST", "MADE"] | None, Query()] = None,
    limit: Limit = 100,
) -> EffectList:
    """Return effects of handlers outside the bus, newest first."""
    return await inbox.effect_list(services.state, agent_id, state, limit)


@router.get("/tasks", response_model=TaskList)
async def list_tasks(
    services: Serving,
    agent_id: OfAgent = None,
    session_id: OfSession = None,
    status: Annotated[Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"] | None, Query()] = None,
    limit: Limit = 100,
) -> TaskList:
    """Return durable tasks, newest first."""
    return await inbox.task_list(services.state, agent_id, session_id, status, limit)
