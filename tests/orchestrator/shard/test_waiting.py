"""A database that is away for some sessions: their inputs wait, in order, and are not acknowledged with the others."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from tests.orchestrator.conftest import House

from apc_bus.port import Bus
from apc_bus.topology import gate_queue
from apc_contracts import IdeaPayload, Packet
from apc_contracts.contract.collection import Contracts
from apc_log import session_loading
from apc_orchestrator.shard import intake, pipeline

Build = Callable[..., Packet]


async def test_an_input_that_waits_is_not_acknowledged_with_a_later_one(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, send = session_loading.load_session, pipeline.send
    is_slow, is_sending, is_waited_for, is_sent, is_back = (asyncio.Event() for _ in range(5))

    async def load_later(pool: asyncpg.Pool, session_id: str, contracts: Contracts, *keys: Any) -> Any:
        if session_id == "away":
            if not is_sending.is_set():
                raise OSError("away")
            is_waited_for.set()
            await is_back.wait()
        return await load(pool, session_id, contracts, *keys)

    async def send_slowly(bus: Bus, outgoing: Any, *others: Any) -> None:
        if is_slow.is_set() and outgoing:
            is_sending.set()
            await is_sent.wait()
        await send(bus, outgoing, *others)

    def unacknowledged() -> int:
        return sum(len(consumer._unacked) for consumer in house.broker.queue(gate_queue(0)).consumers)

    async def is_alone() -> bool:
        return unacknowledged() == 1

    monkeypatch.setattr(intake, "load_session", load_later)
    monkeypatch.setattr(pipeline, "send", send_slowly)
    opening = start()
    async with house.persister(), house.gate():
        await house.open(opening)
        is_slow.set()
        await house.publish(packet("red-1", idea, ("sentinel",), session_id="away"))
        await house.publish(packet("red-1", idea, ("sentinel",), parent=opening))

        await asyncio.wait_for(is_waited_for.wait(), 10)
        is_sent.set()
        await house.until(is_alone)  # both at once would leave none
        is_back.set()
        await house.quiet()
    code = await house.pool.fetchval("SELECT refusal_code FROM apc_log.agent_packets WHERE session_id = 'away'")
    assert code == "UNKNOWN_SESSION"
