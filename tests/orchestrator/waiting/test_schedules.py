"""A schedule through the real gate: two processes of its agent fire it, and each Tick comes once.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_content import register

from apc_agents import Agent, HandlerContext, PostgresStateStore, Tick, Worker, WorkerSettings
from apc_agents.scheduling import PostgresScheduleStore
from apc_agents.typed import document_of
from apc_contracts import Packet
from apc_contracts.payloads.by_type import NackPayload

HOUR = timedelta(hours=1)
ENDED = "SELECT count(*) FROM apc_log.sessions WHERE state = $1"
FIRED = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_type = 'MESSAGE' AND verdict = 'accepted'"
REWIND = "UPDATE apc_app.schedules SET fired_until = fired_until - interval '1 hour'"


def clerk(seen: list[datetime], **options: Any) -> Agent:
    agent = Agent("red-1", role="role", swarm="red")

    @agent.every("*/10 * * * *", misfire="all", **options)
    async def report(tick: Tick, ctx: HandlerContext) -> None:
        seen.append(tick.instant)
        await ctx.complete()

    return agent


@asynccontextmanager
async def working(house: House, *agents: Agent) -> AsyncIterator[None]:
    """Processes of an agent."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        tasks = []
        for agent in agents:
            bus = house.broker.connect("agent.red-1")
            stack.push_async_callback(bus.close)
            worker = Worker(
                agent,
                bus,
                settings=WorkerSettings(shards=1, database_url=None),
                states=PostgresStateStore(house.pool),
                schedules=PostgresScheduleStore(house.pool),
            )
            tasks.append(asyncio.create_task(worker.run(stop)))
        yield
        stop.set()
        await asyncio.gather(*tasks)


@pytest.fixture
async def scheduled(house: House) -> AsyncIterator[House]:
    """The house an hour after the schedule was registered: six firings are due."""
    async with house.persister():
        agent = clerk([])
        await PostgresScheduleStore(house.pool).register("red-1", agent.schedules, datetime.now(UTC) - HOUR)
        yield house


async def ended(house: House, count: int, state: str = "CLOSED") -> None:
    async def are_ended() -> bool:
        return bool(await house.pool.fetchval(ENDED, state) >= count)

    await house.until(are_ended)
    await house.quiet()


async def test_each_tick_comes_once_however_many_processes_fire_it(scheduled: House) -> None:
    seen: list[datetime] = []
    async with scheduled.gate():
        await scheduled.register({"red-1": ("red", ("schedule",))})
        await register(scheduled, document_of(Tick), "tick/1")
        async with working(scheduled, clerk(seen), clerk(seen)):
            await ended(scheduled, 6)
        assert len(seen) == len(set(seen)) == await scheduled.pool.fetchval(FIRED)
        await scheduled.pool.execute(REWIND)  # as if nobody had written down what was fired
    async with scheduled.gate(), working(scheduled, clerk(seen)):
        await rewritten(scheduled)
        await scheduled.quiet()
    assert len(seen) == len(set(seen)) == await scheduled.pool.fetchval(FIRED)


async def rewritten(house: House) -> None:
    """Wait until the newest firing is written down again."""

    async def is_fired() -> bool:
        statement = "SELECT fired_until FROM apc_app.schedules"
        return bool(datetime.now(UTC) - await house.pool.fetchval(statement) < timedelta(minutes=10))

    await house.until(is_fired)


async def test_without_the_right_the_agent_is_told_so(scheduled: House) -> None:
    """The Tick has no session then."""
    refused: list[NackPayload] = []
    agent = clerk([])

    @agent.on_refused
    async def note(nack: Packet[NackPayload], ctx: HandlerContext) -> None:
        refused.append(nack.payload)

    async def is_told() -> bool:
        return len(refused) >= 2

    async with scheduled.gate():
        await scheduled.register({"red-1": ("red", ())})
        await register(scheduled, document_of(Tick), "tick/1")
        async with working(scheduled, agent):
            await scheduled.until(is_told)
    assert refused[0].reason == "NOT_AUTHORIZED at payload.signal: START of a schedule needs the right schedule"
    assert refused[1].reason.startswith("UNKNOWN_SESSION")
    assert await scheduled.pool.fetchval("SELECT count(*) FROM apc_log.sessions") == 0


async def test_other_members_work_in_the_session_of_a_tick(scheduled: House) -> None:
    seen: list[datetime] = []
    async with scheduled.gate():
        await scheduled.register({"red-1": ("red", ("schedule",)), "blue-1": ("blue", ())})
        await register(scheduled, document_of(Tick), "tick/1")
        async with working(scheduled, clerk(seen, members=["blue-1"])):
            await ended(scheduled, 6)
    assert await scheduled.pool.fetchval("SELECT count(*) FROM apc_log.sessions WHERE document::text LIKE '%blue-1%'")
