"""What waits for a person, in lists: dead letters, questions, effects, tasks; readings and routes."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

import asyncpg
from fastapi import APIRouter, Query

from apc_agents.effects import EffectState, PostgresEffectStore
from apc_agents.task_port import TaskStatus
from apc_contracts.explanation.failure import Failure
from apc_log.queries import DeadDelivery, LoggedEffect, delivery_history, effects_of
from apc_log.queries import list_dead as logged_dead
from apc_log.queries.dead import DeliveryHop, packet_places
from apc_log.queries.failures import failures_of
from apc_log.queries.packets import Position
from apc_log.queries.questions import (
    AnsweredFilters,
    AnsweredRow,
    FollowedRow,
    followed_of,
    list_answered,
    list_questions,
)
from apc_minds.tasks.postgres import PostgresTaskStore
from apc_web.access import AccountRole, caller
from apc_web.acts import (
    MOST_DELIVERIES,
    AnsweredApproval,
    AnsweredPage,
    ApprovalList,
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    DeadMember,
    DeliveryAttempt,
    EffectList,
    EffectSummary,
    FollowingEffect,
    FollowingPacket,
    OpenApproval,
    TaskList,
    TaskSummary,
)
from apc_web.contents import Said, said_at, spoken
from apc_web.cursors import (
    LARGEST_SHARD,
    After,
    Limit,
    OfAgent,
    OfSession,
    Since,
    Until,
    microseconds,
    read_cursor,
    time_of,
    write_cursor,
)
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Acts, Reading, Serving


async def dead_page(
    reading: Reading, session_id: str | None, agent_id: str | None, after: str | None, limit: int
) -> DeadLetterPage:
    """Return dead letters with every attempt. Raises ApiError for a bad cursor."""
    filters = {"session_id": session_id, "agent_id": agent_id}
    last = read_cursor(after, "dead", filters, int, int)
    place = None if last is None else Position(max(min(last[0], LARGEST_SHARD), -1), last[1])
    rows = await logged_dead(reading.pool, session_id=session_id, recipient=agent_id, after=place, limit=limit + 1)
    shown = rows[:limit]
    cursor = write_cursor("dead", filters, shown[-1].shard, shown[-1].seq) if len(rows) > limit else None
    failures = await failures_of(reading.pool, shown)
    places = await packet_places(reading.pool, [row.id for row in shown])
    said = await said_at(reading.pool, reading.schemas, places.values())
    items = [
        _dead(row, failure, said.get(places[row.id], Said()), await delivery_history(reading.pool, row.id))
        for row, failure in zip(shown, failures, strict=True)
    ]
    return DeadLetterPage(items=items, next=cursor)


async def dead_groups(reading: Reading, session_id: str | None, agent_id: str | None) -> DeadLetterGroups:
    """Return dead letters in groups: same agent, exception and kind of packet; a viewer sees no exceptions."""
    rows = await logged_dead(reading.pool, session_id=session_id, recipient=agent_id, limit=_MOST_GROUPED + 1)
    looked = rows[:_MOST_GROUPED]
    is_viewer = caller().role is AccountRole.VIEWER
    groups: dict[tuple[str, ...], list[tuple[DeadDelivery, Failure]]] = {}
    for row, failure in zip(looked, await failures_of(reading.pool, looked), strict=True):
        code = _first_word(row.reason)
        told = ("", row.packet_type) if is_viewer else (failure.exception_type or "", failure.handled)
        groups.setdefault((row.recipient, code, *told), []).append((row, failure))
    found = sorted(groups.values(), key=lambda one: (-len(one), one[0][0].shard, one[0][0].seq))
    return DeadLetterGroups(
        groups=[_dead_group(one, datetime.now(UTC)) for one in found],
        looked_at=len(looked),
        is_complete=len(rows) == len(looked),
    )


_MOST_GROUPED = 2_000
"""Dead letters that are looked at for groups."""


def _first_word(reason: str | None) -> str:
    return (reason or "unknown").replace(":", " ").split()[0]


def _dead_group(found: list[tuple[DeadDelivery, Failure]], now: datetime) -> DeadLetterGroup:
    row, failure = found[-1]
    usable = [one for one, _ in found if _can_requeue(one, now)]
    return DeadLetterGroup.of(
        row,
        code=_first_word(row.reason),
        exception_type=failure.exception_type,
        handled=failure.handled,
        words=failure.why,
        count=len(found),
        can_requeue=len(usable),
        first_at=found[0][0].died_at,
        last_at=row.died_at,
        expires_at=min((one.expires_at for one in usable), default=None),
        members=[DeadMember.of(one, can_requeue=_can_requeue(one, now)) for one, _ in found[:MOST_DELIVERIES]],
    )


async def approval_list(
    reading: Reading, session_id: str | None, limit: int, voices: frozenset[str] = frozenset()
) -> ApprovalList:
    """Return open questions to people, the one that is due first first.

    Args:
        voices: the people in whose names the caller may answer (`voices_of`).
    """
    rows = await list_questions(reading.pool, session_id=session_id, limit=limit)
    return ApprovalList(
        items=[
            OpenApproval.of(row, answer_as=[one for one in row.may_answer if one in voices], role=row.role or None)
            for row in rows
        ]
    )


async def answered_page(reading: Reading, filters: AnsweredFilters, after: str | None, limit: int) -> AnsweredPage:
    """Return questions that have ended, with what followed. Raises ApiError for a bad cursor."""
    last = read_cursor(after, "answered", filters, int, int, int)
    place = None if last is None else (time_of(last[0]), max(min(last[1], LARGEST_SHARD), -1), last[2])
    pool = reading.pool
    rows = await list_answered(pool, **filters, after=place, limit=limit + 1)
    shown = rows[:limit]
    followed = await followed_of(pool, shown)
    said = await said_at(pool, reading.schemas, [one for found in followed.values() for one in found])
    handled = {(row.session_id, one) for row in shown for one in _handled(row, followed[row.answer_id])}
    effects = await effects_of(pool, handled)
    cursor = None
    if len(rows) > limit:
        cursor = write_cursor("answered", filters, microseconds(shown[-1].answered_at), shown[-1].shard, shown[-1].seq)
    return AnsweredPage(
        items=[
            AnsweredApproval.of(
                row,
                packet_id=row.question_id,
                followed=spoken(FollowingPacket, followed[row.answer_id], said),
                effects=_effects_after(row, followed[row.answer_id], effects),
            )
            for row in shown
        ],
        next=cursor,
    )


def _handled(row: AnsweredRow, followed: list[FollowedRow]) -> list[UUID]:
    """Return the packets for which effects may follow: the one whose handler asked, and those that it sent."""
    return [one for one in (row.handled_id, *(sent.packet_id for sent in followed)) if one is not None]


def _effects_after(
    row: AnsweredRow, followed: list[FollowedRow], effects: Mapping[tuple[str, UUID], list[LoggedEffect]]
) -> list[FollowingEffect]:
    found = [one for packet in _handled(row, followed) for one in effects.get((row.session_id, packet), [])]
    return [FollowingEffect.of(one) for one in found if one.entries[-1].at >= row.answered_at]


async def voices_of(acts: Acts | None) -> frozenset[str]:
    """Return the people in whose names the caller may answer."""
    if acts is None or not caller().role.includes(AccountRole.OPERATOR):
        return frozenset()
    return await acts.voices(caller().person)


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


def _can_requeue(row: DeadDelivery, now: datetime) -> bool:
    return row.expires_at > now and not row.is_in_halted_session


def _dead(row: DeadDelivery, failure: Failure, said: Said, hops: list[DeliveryHop]) -> DeadLetterDetail:
    return DeadLetterDetail.of(
        said,
        row,
        words=failure.sentence,
        exception=failure.exception,
        handled=failure.handled,
        can_requeue=_can_requeue(row, datetime.now(UTC)),
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
    return await dead_page(services, session_id, agent_id, after, limit)


@router.get("/dead/groups", response_model=DeadLetterGroups)
@needs(AccountRole.VIEWER)
async def list_dead_groups(
    services: Serving, session_id: OfSession = None, agent_id: OfAgent = None
) -> DeadLetterGroups:
    """Return dead letters in groups: same agent, exception and kind of packet; the largest first."""
    return await dead_groups(services, session_id, agent_id)


@router.get("/approvals", response_model=ApprovalList)
@needs(AccountRole.VIEWER)
async def list_approvals(services: Serving, session_id: OfSession = None, limit: Limit = 100) -> ApprovalList:
    """Return open questions to people, the one that is due first first."""
    return await approval_list(services, session_id, limit, await voices_of(services.acts))


@router.get("/approvals/answered", response_model=AnsweredPage)
@needs(AccountRole.VIEWER)
async def list_answered_approvals(
    services: Serving,
    session_id: OfSession = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> AnsweredPage:
    """Return questions that were answered, or whose time is over: who, when, and what followed; newest first."""
    filters = AnsweredFilters(session_id=session_id, since=since, until=until)
    return await answered_page(services, filters, after, limit)


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
