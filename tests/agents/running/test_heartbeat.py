"""HEARTBEAT at start and after silence."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.agents.conftest import StageMaker

from apc_agents import Agent
from apc_agents.emitter import Emitter
from apc_agents.running import worker
from apc_bus.headers import TYPE_RECEIPTS
from apc_contracts import PRESENCE_SESSION, PacketType, Signal, parse_packet


async def test_an_agent_says_that_it_lives_at_start_and_after_silence(make_stage: StageMaker) -> None:
    stage = await make_stage(
        Agent("sentinel-1", role="sentinel", swarm="hybrid"), heartbeat_silence=timedelta(milliseconds=5)
    )
    gate = await stage.start()

    def beats() -> list[Any]:
        return [parse_packet(message.body) for message in gate.messages if message.type != TYPE_RECEIPTS]

    await gate.until(lambda: len(beats()) >= 3)
    first = beats()[0]
    assert first.packet_type is PacketType.HEARTBEAT
    assert first.payload.signal is Signal.HEARTBEAT
    assert first.trace.session_id == PRESENCE_SESSION
    assert [recipient.agent_id for recipient in first.recipients] == ["orchestrator"]
    assert len({beat.packet_id for beat in beats()}) == len(beats())


async def test_an_agent_that_emits_needs_no_heartbeat(make_stage: StageMaker) -> None:
    stage = await make_stage(Agent("sentinel-1", role="sentinel", swarm="hybrid"))
    gate = await stage.start()
    await gate.until(lambda: len(gate.messages) == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(gate.messages) == 1


async def test_an_agent_that_never_falls_silent_sends_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the packets of others nothing else would be found of it."""
    beats = 0

    async def send(*_: object) -> None:
        nonlocal beats
        beats += 1

    class Talking:
        @property
        def last_emit(self) -> float:
            return asyncio.get_running_loop().time()

    monkeypatch.setattr(worker, "_send", send)
    sending = asyncio.create_task(worker.send_heartbeats(cast(Emitter, Talking()), "a", timedelta(milliseconds=2)))
    while beats < 3:
        await asyncio.sleep(0)
    sending.cancel()
