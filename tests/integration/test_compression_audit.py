"""A compression in an agent reaches the log through the gate, and nobody else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr

from apc_agents import Agent, HandlerContext
from apc_agents.context import ContextSession, InMemoryContextStore, SessionConfig, emit_compressions
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_console.embedded_system import run_embedded
from apc_contracts import ORCHESTRATOR, Packet, PacketType, RunPhase, Signal, SignalPayload, new_packet_id
from apc_contracts.session_payloads import SessionSpec, SwarmSpec
from apc_orchestrator.testing import until

SESSION = "long-talk"
CONFIG = SessionConfig(max_tokens=400)
TOLD = """
SELECT packets.verdict, packets.recipients, bodies.packet -> 'metadata' -> 'context' AS context
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'talker-1' AND packets.channel = 'INTRA_AGENT' ORDER BY seq
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
            return len(await system.pool.fetch(TOLD)) == session.compressions

        await until(are_logged)
        rows = await system.pool.fetch(TOLD)
    assert session.compressions > 1
    assert {(row["verdict"], *row["recipients"]) for row in rows} == {("accepted", "talker-1")}
    told: list[Mapping[str, Any]] = [orjson.loads(row["context"]) for row in rows]
    folded = {one["id"]: one for context in reversed(told) for one in context["folded"]}
    assert set(session.window.folded) <= set(folded)
    assert all(folded[key]["before"] == fold.digest for key, fold in session.window.folded.items())
    assert [context["tokens"]["after"] < context["tokens"]["before"] for context in told] == [True] * len(told)
    assert (await session.expand()).missing == ()
