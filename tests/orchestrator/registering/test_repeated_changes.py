"""A registry change that comes again is known by its id, as a packet is: it is logged once, whichever gate reads it."""

from uuid import uuid4

from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import PacketType
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked, AnyChange, encode_registry_change

LOGGED = "SELECT change_id FROM apc_log.registry_events ORDER BY seq"
CONFLICTS = "SELECT count(*) FROM apc_log.packet_conflicts"


async def publish(house: House, change: AnyChange) -> None:
    message = Message(encode_registry_change(change), str(uuid4()), type=headers.TYPE_REGISTRY, user_id="operator")
    await house.client("operator").publish(Publication(RECEIPTS, "0", message))
    await house.quiet()


async def test_a_registry_change_that_comes_again_is_logged_once(house: House) -> None:
    added = AgentAdded(
        change_id=uuid4(),
        agent_id="red-1",
        broker_user="agent.red-1",
        role="role",
        swarm_id="red",
        rights=(),
        handles=tuple(PacketType),
    )
    revoked = AgentRevoked(change_id=uuid4(), agent_id="red-1")
    async with house.persister():
        async with house.gate():
            for change in (added, added, revoked, added):
                await publish(house, change)
        async with house.gate():
            for change in (added, revoked):
                await publish(house, change)
    rows = await house.pool.fetch(LOGGED)
    assert [row["change_id"] for row in rows] == [added.change_id, revoked.change_id]
    assert await house.pool.fetchval("SELECT is_revoked FROM apc_log.agents WHERE agent_id = 'red-1'")
    assert await house.pool.fetchval(CONFLICTS) == 0
