"""What waits for a person, in lists: dead letters, questions, effects, tasks; readings and routes."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import asyncpg
from fastapi import APIRouter, Query

from apc_agents.effects import EffectState, PostgresEffectStore
from apc_agents.tasks.postgres import PostgresTaskStore
from apc_agents.tasks.store import TaskStatus
from apc_log.queries import DeadDelivery, delivery_history
from apc_log.queries import list_dead as logged_dead
from apc_log.queries.dead import DeliveryHop
from apc_log.queries.packets import Position
from apc_log.queries.questions import list_questions
from apc_web.access import AccountRole, caller
from apc_web.acts import (
    ApprovalList,
    DeadLetterDetail,
    DeadLetterPage,
    DeliveryAttempt,
    EffectList,
    EffectSummary,
    OpenApproval,
    TaskList,
    TaskSummary,
)
from apc_web.cursors import LARGEST_SHARD, After, Limit, OfAgent, OfSession, read_cursor, write_cursor
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving
from apc_web.verdict_words import dead_words


async def dead_page(
    pool: asyncpg.Pool, session_id: str | None, agent_id: str | None, after: str | None, limit: int
) -> DeadLetterPage:
    """Return dead letters with every attempt. Raises ApiError for a bad cursor."""
    filters = {"session_id": session_id, "agent_id": agent_id}
    last = read_cursor(after, "dead", filters, int, int)
    place = None if last is None else Position(max(min(last[0], LARGEST_SHARD), -1), last[1])
    rows = await logged_dead(pool, session_id=session_id, recipient=agent_id, after=place, limit=limit + 1)
    shown = rows[:limit]
    cursor = write_cursor("dead", filters, shown[-1].shard, shown[-1].seq) if len(rows) > limit else None
    now = datetime.now(UTC)
    return DeadLetterPage(items=[_dead(row, await delivery_history(pool, row.id), now) for row in shown], next=cursor)


async def approval_list(services: Services, session_id: str | None, limit: int) -> ApprovalList:
    """Return open questions to people, the one that is due first first."""
    rows = await list_questions(services.pool, session_id=session_id, limit=limit)
    voices = await _voices(services) if rows else frozenset()
    return ApprovalList(
        items=[
            OpenApproval.of(row, answer_as=[one for one in row.may_answer if one in voices], role=row.role or None)
            for row in rows
        ]
    )


async def _voices(services: Services) -> frozenset[str]:
    """Return the people in whose names the caller may answer."""
    if services.acts is None or not caller().role.includes(AccountRole.OPERATOR):
        return frozenset()
    return await services.acts.voices(caller().person)


async def effect_list(pool: asyncpg.Pool, agent_id: str | None, state: str | None, limit: int) -> EffectList:
    """Return effects, newest first."""
    states = None if state is None else [EffectState(state)]
    records = await PostgresEffectStore(pool, is_patient=False).list(agent_id=agent_id, states=states, limit=limit)
    return EffectList(items=[EffectSummary.of(one.effect_id, one) for one in records])


async def task_list(
    pool: asyncpg.Pool, agent_id: str | None, session_id: str | None, status: str | None, limit: int
) -> TaskList:
    """Return durable tasks, newest first."""
    statuses = None if status is None else [TaskStatus(status)]
    store = PostgresTaskStore(pool, is_patient=False)
    tasks = await store.list(agent_id=agent_id, session_id=session_id, statuses=statuses, limit=limit)
    return TaskList(items=[TaskSummary.of(one, one.spec) for one in tasks])


def _dead(row: DeadDelivery, hops: list[DeliveryHop], now: datetime) -> DeadLetterDetail:
    return DeadLetterDetail.of(
        row,
        words=dead_words(row.reason),
        can_requeue=row.expires_at > now and not row.is_in_halted_session,
        attempts=[_attempt(hop) for hop in hops],
    )


def _attempt(hop: DeliveryHop) -> DeliveryAttempt:
    error = hop.metadata.get("error")
    return DeliveryAttempt.of(hop, at=hop.occurred_at[-1], error=error if isinstance(error, str) else None)


router = APIRouter(tags=["inbox"], route_class=RoleRoute)


@router.get("/dead", response_model=DeadLetterPage)
@needs(AccountRole.VIEWER)
async def list_dead(
    services: Serving, session_id: OfSession = None, agent_id: OfAgent = None, after: After = None, limit: Limit = 50
) -> DeadLetterPage:
    """Return dead letters with every attempt, in the order of the log."""
    return await dead_page(services.pool, session_id, agent_id, after, limit)


@router.get("/approvals", response_model=ApprovalList)
@needs(AccountRole.VIEWER)
async def list_approvals(services: Serving, session_id: OfSession = None, limit: Limit = 100) -> ApprovalList:
    """Return open questions to people, the one that is due first first."""
    return await approval_list(services, session_id, limit)


@router.get("/effects", response_model=EffectList)
@needs(AccountRole.VIEWER)
async def list_effects(
    services: Serving,
    agent_id: OfAgent = None,
    state: Annotated[Literal["RUNNING", "UNKNOWN", "RESULT_LOST", "MADE"] | None, Query()] = None,
    limit: Limit = 100,
) -> EffectList:
    """Return effects of handlers outside the bus, newest first."""
    return await effect_list(services.state, agent_id, state, limit)


@router.get("/tasks", response_model=TaskList)
@needs(AccountRole.VIEWER)
async def list_tasks(
    services: Serving,
    agent_id: OfAgent = None,
    session_id: OfSession = None,
    status: Annotated[Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"] | None, Query()] = None,
    limit: Limit = 100,
) -> TaskList:
    """Return durable tasks, newest first."""
    return await task_list(services.state, agent_id, session_id, status, limit)
