"""A compression in an agent reaches the log through the gate, and nobody else."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.support.traffic import AGENTS, make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.in_process import run_embedded
from apc_contracts import ORCHESTRATOR, IdeaPayload, Packet, PacketType, RunPhase, Signal, SignalPayload, new_packet_id
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec
from apc_minds.context import (
    ContextSession,
    InMemoryContextStore,
    MemoryContextStore,
    SessionConfig,
    emit_compressions,
)
from apc_minds.memory import PostgresMemoryStore

SESSION = "long-talk"
CONFIG = SessionConfig(max_tokens=400)
TOLD = """
SELECT packets.verdict, packets.recipients, bodies.packet -> 'metadata' -> 'context' AS context
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = $1 AND packets.channel = 'INTRA_AGENT' ORDER BY seq
"""


def _talker(store: InMemoryContextStore) -> Agent:
    agent = Agent("talker-1", role="talker", swarm="demo", rights=("operate",))

    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        spec = SessionSpec(
            swarms=(SwarmSpec(swarm_id="demo", agents=("talker-1",)),),
            generation_limit=1,
            generation_deadline_ms=60_000,
            state_deadline_ms=60_000,
        )
        await ctx.emit(
            SignalPayload(signal=Signal.START, session=spec),
            to=ORCHESTRATOR,
            session_id=SESSION,
            run_id="run-1",
            task_id="task-1",
            packet_id=new_packet_id(),
            run_phase=RunPhase.RESEARCH,
            generation=0,
        )

    @agent.on(PacketType.SIGNAL, signal=Signal.SYNC)
    async def talk(sync: Packet[SignalPayload], ctx: HandlerContext) -> None:
        if ctx.state.get("talked"):
            return
        session = await ContextSession.open(SESSION, store=store, config=CONFIG, on_compression=emit_compressions(ctx))
        for number in range(12):
            await session.add_user_turn(f"Question {number}. " + "Is it the valve or the pump? " * 4)
            await session.add_assistant_turn("It may be either of them. " * 6)
        await session.save()
        ctx.state["talked"] = True

    return agent


def _check(session: ContextSession, rows: Sequence[Any], agent_id: str) -> None:
    """Every compression was logged for the agent alone, with the digests of what was folded."""
    assert session.compressions > 1
    assert len(rows) == session.compressions
    assert {(row["verdict"], *row["recipients"]) for row in rows} == {("accepted", agent_id)}
    told: list[Mapping[str, Any]] = [orjson.loads(row["context"]) for row in rows]
    folded = {one["id"]: one for context in reversed(told) for one in context["folded"]}
    assert set(session.window.folded) <= set(folded)
    assert all(folded[key]["before"] == fold.digest for key, fold in session.window.folded.items())
    assert [context["tokens"]["after"] < context["tokens"]["before"] for context in told] == [True] * len(told)


async def test_the_log_has_every_compression_with_its_digests(postgres_url: str, tmp_path: Path) -> None:
    store = InMemoryContextStore()
    settings = BusSettings(amqp_url=None, data_dir=tmp_path)
    database = DatabaseSettings(database_url=SecretStr(postgres_url))
    async with run_embedded(settings, database) as system:
        await system.start_agents([_talker(store)])

        async def has_talked() -> bool:
            return await store.load(SESSION) is not None

        await until(has_talked)
        session = await ContextSession.open(SESSION, store=store, config=CONFIG)

        async def are_logged() -> bool:
            return len(await system.pool.fetch(TOLD, "talker-1")) == session.compressions

        await until(are_logged)
        rows = await system.pool.fetch(TOLD, "talker-1")
    _check(session, rows, "talker-1")
    assert (await session.expand()).missing == ()


async def test_over_a_broker_the_log_has_them_and_postgres_gives_every_turn_back(house: House) -> None:
    said: dict[str, bytes] = {}
    agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])

    @agent.on(PacketType.IDEA)
    async def talk(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        session = await ContextSession.open(
            ctx.session_id,
            store=MemoryContextStore(ctx.memory, "red-1"),
            config=CONFIG,
            clock=lambda: ctx.packet.created_at,
            on_compression=emit_compressions(ctx),
        )
        for number in range(12):
            question = await session.add_user_turn(f"Question {number}. " + "Is it the valve or the pump? " * 4)
            answer = await session.add_assistant_turn("It may be either of them. " * 6)
            said.update({turn.resource_id: turn.to_bytes() for turn in (question, answer)})
        await session.save()

    memory = PostgresMemoryStore(house.pool)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate(), AsyncExitStack() as resources:
        await house.open_session()
        bus, stop = await house.connect("agents"), asyncio.Event()
        resources.push_async_callback(bus.close)
        tasks = await resources.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(Worker(agent, bus, settings=WorkerSettings(), memory=memory).run(stop))
        resources.callback(stop.set)
        await house.agents.publish(trigger)
        await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
        store = MemoryContextStore(memory, "red-1")
        session = await ContextSession.open(trigger.trace.session_id, store=store, config=CONFIG)

        async def are_logged() -> bool:
            return len(await house.pool.fetch(TOLD, "red-1")) == session.compressions

        await until(are_logged)
        await until(house.has_nothing_open)
    _check(session, await house.pool.fetch(TOLD, "red-1"), "red-1")
    assert (await session.expand()).missing == ()
    assert {turn.resource_id: turn.to_bytes() for turn in session.window.all_turns()} == said
