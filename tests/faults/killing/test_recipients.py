"""kill -9 of a recipient in its handler, again and again, amid what others do (matrix row 9)."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from uuid import UUID

import orjson
import pytest
from tests.faults.cast import AWAY
from tests.faults.deployment import Deployment
from tests.support.traffic import ScriptedWorker, make_idea, make_packet, until

pytestmark = pytest.mark.faults
KILLS = 4
PACKETS = 100
AGENT = '''
"""An agent whose process is killed in its handler, at the packet that DIES_AT counts."""

import os
import signal
from pathlib import Path

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("sleeper", role="role", swarm="watch")
started = []


@agent.on(PacketType.IDEA)
async def note(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    started.append(packet)
    with Path("started.txt").open("a") as file:
        file.write(f"{packet.packet_id}\\n")
    ctx.state.setdefault("handled", []).append(str(packet.packet_id))
    if len(started) == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
'''
HANDLED = "SELECT state_value #> '{state,handled}' FROM apc_app.agent_state_store WHERE agent_id = 'sleeper'"
HEARTBEATS = "SELECT packet_id FROM apc_log.agent_packets WHERE sender_agent_id = 'sleeper'"


async def handled(deployment: Deployment) -> Counter[UUID]:
    """Return how often each packet is in the agent's state."""
    found = await deployment.pool.fetchval(HANDLED)
    return Counter(map(UUID, orjson.loads(found or "[]")))


async def test_a_recipient_killed_in_its_handler(deployment: Deployment, record: Callable[..., None]) -> None:
    """It starts more often than it ends; what its handlers did to its state is there once."""
    chance = random.Random(9)
    (deployment.folder / "dying.py").write_text(AGENT)
    await deployment.open_session()
    await deployment.serve("persister")
    await deployment.serve("orchestrator")
    sent = [make_packet("red-1", make_idea("work"), (AWAY,), parent=deployment.opening) for _ in range(PACKETS)]
    async with deployment.working():
        async with deployment.sending(chance, lambda: to_others(deployment, chance)):
            for packet in sent:
                await deployment.send(packet)
            for _ in range(KILLS):
                dying = await deployment.work("dying:agent", DIES_AT=str(chance.randint(1, PACKETS // KILLS)))
                await dying.dies()
            repaired_at = monotonic()
            await deployment.work("dying:agent", DIES_AT="0")
            await until(has_handled(deployment, PACKETS), 60)
        await deployment.drain()
    started = Counter(map(UUID, (deployment.folder / "started.txt").read_text().split()))
    assert started.total() >= PACKETS + KILLS, "not exercised: nothing was handled again"
    played = ScriptedWorker(deployment.bus, AWAY)
    played.effects.update(await handled(deployment))
    deployment.workers[AWAY] = played
    deployment.sent.confirmed.update(row["packet_id"] for row in await deployment.pool.fetch(HEARTBEATS))
    assert set(played.effects) == {packet.packet_id for packet in sent}
    await deployment.check()
    record("SIGKILL of a recipient, again and again", deployment, repaired_at, injected=KILLS)


async def to_others(deployment: Deployment, chance: random.Random) -> None:
    """A packet of the load, which the one that dies has nothing to do with."""
    recipient = chance.choice(("blue-1", "sentinel"))
    await deployment.send(make_packet("red-1", make_idea("work"), (recipient,), parent=deployment.opening))


def has_handled(deployment: Deployment, count: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: so many packets are in the agent's state."""

    async def holds() -> bool:
        return len(await handled(deployment)) >= count

    return holds
