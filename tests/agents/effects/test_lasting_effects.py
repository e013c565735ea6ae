"""Effects that take long, or whose worker is stopped or thrown out of the database."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.support.waiting import until

from apc_agents import (
    Agent,
    HandlerContext,
)
from apc_agents.effects import EffectState, InMemoryEffectStore, PostgresEffectStore
from apc_bus.database import open_pool
from apc_contracts import Packet, PacketType


async def test_a_handler_that_is_stopped_in_the_middle_leaves_it_unknown(
    make_stage: StageMaker, idea: MakeIdea, make_packet: MakePacket
) -> None:
    agent, store, began = Agent("sentinel-1", role="sentinel", swarm="s"), InMemoryEffectStore(), asyncio.Event()

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        await ctx.once("charge", hang)

    stage = await make_stage(agent, effects=store, drain_timeout=timedelta(0))
    gate = await stage.start()
    await gate.deliver(make_packet(idea()))
    await began.wait()
    await stage.end()
    (kept,) = await store.list()
    assert (kept.state, kept.problem) == (EffectState.UNKNOWN, "was cancelled while making it")


async def test_a_claim_is_renewed_for_as_long_as_its_effect_takes(
    make_stage: StageMaker, idea: MakeIdea, make_packet: MakePacket
) -> None:
    clock = [datetime.now(UTC)]
    agent = Agent("sentinel-1", role="sentinel", swarm="s")
    given: list[Any] = []

    class Watched(InMemoryEffectStore):
        """Tells of renewals, and lets two thirds of the lease pass with each."""

        renewed = asyncio.Semaphore(0)

        async def renew(self, *arguments: Any) -> None:
            clock[0] += timedelta(milliseconds=20)
            await super().renew(*arguments)
            self.renewed.release()

    store = Watched(lambda: clock[0])

    async def slowly() -> str:
        for _ in range(5):
            await store.renewed.acquire()
        (kept,) = await store.list()
        given.append(kept.state)
        return "made"

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        given.append(await ctx.once("charge", slowly))

    stage = await make_stage(agent, effects=store, effect_lease=timedelta(milliseconds=30))
    gate = await stage.start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert given == [EffectState.RUNNING, "made"]


WAITING = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def test_what_was_made_is_recorded_although_the_database_throws_the_worker_out(
    postgres_url: str, make_stage: StageMaker, idea: MakeIdea, make_packet: MakePacket
) -> None:
    agent, given = Agent("sentinel-1", role="sentinel", swarm="s"), []
    own, pool = await open_pool(postgres_url, max_size=2), await open_pool(postgres_url)
    store = PostgresEffectStore(pool)
    made: list[str] = []

    async with own.acquire() as connection:
        lock = connection.transaction()

        async def pay() -> str:
            await lock.start()
            await connection.execute("SELECT FROM apc_app.agent_effects FOR UPDATE")
            made.append("paid")
            return "paid"

        @agent.on(PacketType.IDEA)
        async def act(packet: Packet, ctx: HandlerContext) -> None:
            given.append(await ctx.once("charge", pay))

        stage = await make_stage(agent, effects=store)
        gate = await stage.start()
        packet = make_packet(idea())
        await gate.deliver(packet)
        for _ in range(2):  # in the middle of the record, twice
            await until(lambda: own.fetchval(WAITING))
            assert await own.fetchval("SELECT pg_terminate_backend($1, 10000)", await own.fetchval(WAITING))
        assert not given
        await lock.rollback()
        await gate.ended(packet)
    (kept,) = await store.list()
    await stage.end()
    await own.close()
    await pool.close()
    assert (given, made, kept.state) == (["paid"], ["paid"], EffectState.MADE)
