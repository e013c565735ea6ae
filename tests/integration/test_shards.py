"""Two shards: each session belongs to one, and each has its own gate, log and numbers."""

from typing import Any

import pytest

from apc_contracts.identity import shard_of
from apc_orchestrator.testing import ScriptedWorker, make_idea, make_packet, make_start, until, violated_equalities
from apc_orchestrator.testing.equalities import Sent

SESSIONS = [f"session-{number}" for number in range(8)]
EPOCHS = "SELECT shard, epoch FROM apc_log.shards ORDER BY shard"
OPEN = "SELECT count(*) = $1 AND sum(open_deliveries) = 0 FROM apc_log.sessions"
PLACES = "SELECT DISTINCT session_id, shard FROM apc_log.agent_packets"


@pytest.fixture
def shards() -> int:
    """As many as the title says."""
    return 2


async def test_sessions_of_two_shards(house: Any) -> None:
    sent = Sent()
    workers = [ScriptedWorker(house.agents.bus, agent, shards=2) for agent in house.agents.cast]
    async with house.persister(), house.gate() as (first, _), workers[0].working(), workers[1].working():
        async with house.gate(), workers[2].working(), workers[3].working():
            await house.agents.register()
            for session_id in SESSIONS:
                opening = make_start(session_id)
                packets = [
                    make_packet("red-1", make_idea(), (to,), parent=opening, session_id=session_id)
                    for to in ("sentinel", "blue-1", "sentinel")
                ]
                await house.agents.publish(opening, *packets)
                sent.confirmed.update(packet.packet_id for packet in (opening, *packets))
            await until(house.is_logged(*sent.confirmed))

            async def is_done() -> bool:
                return bool(await house.pool.fetchval(OPEN, len(SESSIONS)))

            await until(is_done)
        assert {state.shard for state in first.shards} == {0, 1}
    assert await violated_equalities(house.pool, sent, workers) == []
    places = {row["session_id"]: row["shard"] for row in await house.pool.fetch(PLACES)}
    assert places == {session_id: shard_of(session_id, 2) for session_id in SESSIONS}
    assert set(places.values()) == {0, 1}, "both are at work"
    assert {row["shard"] for row in await house.pool.fetch(EPOCHS)} == {0, 1}
