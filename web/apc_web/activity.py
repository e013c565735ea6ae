"""How busy the log and its agents are: packets by time, what agents did and spent by day; one agent in full."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from apc_log.queries.activity import (
    PacketCount,
    count_minutes,
    count_recent,
    entries_behind,
    first_minute,
    latest_packets,
    list_agent_days,
    read_latencies,
)
from apc_web.access import AccountRole
from apc_web.cursors import OfAgent, Since, Until
from apc_web.errors import not_found
from apc_web.health import agents_with_queues
from apc_web.models import AgentSummary, ApiModel, NamedCount, Shown
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving

_MINUTE = timedelta(minutes=1)
_LIVE = timedelta(minutes=5)
"""Spans of at most this length up to now are counted in the log itself, by parts of a minute."""
_PARTS = 30
_STEPS = tuple(timedelta(minutes=count) for count in (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1440, 10_080))
_MOST_STEPS = 90
_DAYS = timedelta(days=30)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_MOST_DAYS = 5_000
_LATEST = 20


class RatePoint(ApiModel):
    """Packets of a span of time."""

    at: Shown[datetime]
    """Where the span begins."""
    packets: Shown[int]
    refused: Shown[int]


class Rates(ApiModel):
    """Packets by time, without HEARTBEATs; spans without a packet are left out."""

    since: Shown[datetime]
    until: Shown[datetime]
    step_seconds: Shown[float]
    """Length of a span."""
    points: Shown[list[RatePoint]]
    packets: Shown[int]
    refused: Shown[int]
    refusals: Shown[list[NamedCount]]
    """Refused packets by code, the most frequent first; only of the last 5 minutes, else empty: see `/issues`."""
    behind: Shown[int]
    """Entries of the log that are not counted yet; 0 of the last 5 minutes."""


class AgentDay(ApiModel):
    """What an agent did on a day in UTC."""

    agent_id: Shown[str]
    day: Shown[date]
    packets: Shown[int]
    """Sent, without HEARTBEATs."""
    refused: Shown[int]
    """Of these, on arrival or after it was held."""
    handled: Shown[int]
    """Attempts of its handlers that ended with an outcome."""
    failed: Shown[int]
    """Attempts that ended without one."""
    tokens: Shown[float]
    cost: Shown[float]
    """As its handlers reported it, in the operator's unit; what sessions did not charge is among it."""


class AgentDays(ApiModel):
    """Days, the newest first; of a day the dearest agent first."""

    items: Shown[list[AgentDay]]
    is_complete: Shown[bool]
    """False: these are the first 5,000."""
    behind: Shown[int]
    """Entries of the log that are not counted yet."""


class AgentPacket(ApiModel):
    """A packet that an agent sent or was sent."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    session_id: Shown[str]
    run_id: Shown[str]
    packet_type: Shown[str]
    sender: Shown[str]
    recipients: Shown[list[str]]
    verdict: Shown[str]
    refusal_code: Shown[str | None]
    at: Shown[datetime]


class AgentDetail(ApiModel):
    """One agent in full."""

    agent: Shown[AgentSummary]
    is_complete: Shown[bool]
    """False: nobody knows its queues; `words` says why."""
    words: Shown[str | None]
    days: Shown[list[AgentDay]]
    """Of the range, the newest first."""
    p50_ms: Shown[float | None]
    """Half of its deliveries of the range had their outcome within so long after the verdict on the packet; ±9 %."""
    p95_ms: Shown[float | None]
    latest: Shown[list[AgentPacket]]
    """The newest packets that it sent or was sent, at most 20."""
    behind: Shown[int]
    """Entries of the log that are not counted yet."""


async def rates(services: Services, since: datetime | None, until: datetime | None) -> Rates:
    """Return how many packets there were: of the last minute by default, from the log; else by minutes."""
    now = datetime.now(UTC)
    begin, end = _within(since or now - _MINUTE), _within(until or now)
    if now - end < _MINUTE and timedelta(0) < end - begin <= _LIVE:
        step = (end - begin) / _PARTS
        rows = await count_recent(services.pool, begin, step)
        return _rates(begin, end, step, rows, 0)
    first = await first_minute(services.pool)
    begin = min(max(begin, first or begin), end)  # of an empty time before the log nothing is drawn
    step = next((one for one in _STEPS if end - begin <= _MOST_STEPS * one), _STEPS[-1])
    is_empty = begin >= end  # before the step is rounded down: a range that begins later than now has no minute
    begin = _floor(begin, step)
    rows = [] if is_empty else await count_minutes(services.pool, begin, end, step)
    return _rates(begin, end, step, rows, await entries_behind(services.pool))


def _floor(at: datetime, step: timedelta) -> datetime:
    start = datetime(2000, 1, 3, tzinfo=UTC)  # a Monday, for weeks
    return start + (at - start) // step * step


def _rates(begin: datetime, end: datetime, step: timedelta, rows: list[PacketCount], behind: int) -> Rates:
    packets: Counter[datetime] = Counter()
    refused: Counter[datetime] = Counter()
    codes: Counter[str] = Counter()
    for row in rows:
        packets[row.at] += row.packets
        refused[row.at] += row.refused
        if row.refusal_code is not None:
            codes[row.refusal_code] += row.refused
    return Rates(
        since=begin,
        until=end,
        step_seconds=step.total_seconds(),
        points=[RatePoint(at=at, packets=packets[at], refused=refused[at]) for at in sorted(packets)],
        packets=packets.total(),
        refused=refused.total(),
        refusals=[NamedCount(name=name, count=count) for name, count in codes.most_common()],
        behind=behind,
    )


def _days(since: datetime | None, until: datetime | None) -> tuple[date, date]:
    """Return the first and the last day of a range, in UTC: the last 30 days by default."""
    last = _within(until or _LAST)
    return _within(since or last - _DAYS).date(), last.date()


def _within(at: datetime) -> datetime:
    """Return a time in UTC that is not in the future, and on which one can reckon."""
    return max(min(at, datetime.now(UTC)), _FIRST).astimezone(UTC)


async def agent_days(
    services: Services, agent_id: str | None, since: datetime | None, until: datetime | None
) -> AgentDays:
    """Return what agents did and spent by day."""
    rows = await list_agent_days(services.pool, agent_id, *_days(since, until), limit=_MOST_DAYS + 1)
    return AgentDays(
        items=[AgentDay.of(row) for row in rows[:_MOST_DAYS]],
        is_complete=len(rows) <= _MOST_DAYS,
        behind=await entries_behind(services.pool),
    )


async def agent_detail(
    services: Services, agent_id: str, since: datetime | None, until: datetime | None
) -> AgentDetail:
    """Return one agent in full. Raises ApiError when nobody is registered under that name."""
    listed = await agents_with_queues(services)
    agent = next((one for one in listed.items if one.agent_id == agent_id), None)
    if agent is None:
        raise not_found(f"agent {agent_id!r}", "`GET /agents` lists them", "agent_id")
    p50, p95 = await read_latencies(services.pool, agent_id, *_days(since, until), (0.5, 0.95))
    days = await agent_days(services, agent_id, since, until)
    return AgentDetail(
        agent=agent,
        is_complete=agent.kind == "person" or agent.waiting is not None,
        words=listed.words,
        days=days.items,
        p50_ms=p50,
        p95_ms=p95,
        latest=[AgentPacket.of(row) for row in await latest_packets(services.pool, agent_id, _LATEST)],
        behind=days.behind,
    )


router = APIRouter(tags=["system"], route_class=RoleRoute)


@router.get("/rates", response_model=Rates)
@needs(AccountRole.VIEWER)
async def get_rates(services: Serving, since: Since = None, until: Until = None) -> Rates:
    """Return packets by time; of the last minute by default."""
    return await rates(services, since, until)


@router.get("/agent-days", response_model=AgentDays)
@needs(AccountRole.VIEWER)
async def list_days(services: Serving, agent_id: OfAgent = None, since: Since = None, until: Until = None) -> AgentDays:
    """Return packets, failures, tokens and cost by agent and day; of the last 30 days by default."""
    return await agent_days(services, agent_id, since, until)


@router.get("/agents/{agent_id}", response_model=AgentDetail)
@needs(AccountRole.VIEWER)
async def get_agent(
    services: Serving,
    agent_id: Annotated[str, Path(pattern=r"^[^\x00]{1,256}$", description="An agent, or a person.")],
    since: Since = None,
    until: Until = None,
) -> AgentDetail:
    """Return one agent: its registration, its days, how long its handlers take, its newest packets."""
    return await agent_detail(services, agent_id, since, until)
