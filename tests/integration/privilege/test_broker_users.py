"""Services and agents do their work as users of least privilege, and are told what they may not do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic import SecretStr
from tests.integration.privilege.conftest import GuardedBroker

from apc_bus.consuming import handle
from apc_bus.errors import BusUnavailable, PublishRefused
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import (
    DEAD_QUEUE,
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    SUBSTRATE,
    agent_queue,
    gate_queue,
    intra_exchange,
    intra_key,
    log_queue,
)

pytestmark = pytest.mark.broker
Connect = Callable[[str], Awaitable[RabbitBus]]


@pytest.fixture
async def bus_of(guarded_broker: GuardedBroker, guarded_vhost: str) -> AsyncIterator[Connect]:
    """Connects a bus as one user of the definitions."""
    opened = []

    async def connect(user: str) -> RabbitBus:
        settings = BusSettings(amqp_url=SecretStr(guarded_broker.url(user, guarded_vhost)))
        opened.append(await connect_rabbit(settings))
        return opened[-1]

    yield connect
    await asyncio.gather(*(bus.close() for bus in opened))


def message(user: str | None) -> Message:
    return Message(b"{}", "m", user_id=user)


async def test_everybody_can_do_their_job(bus_of: Connect) -> None:
    agent, gate, writer = [await bus_of(user) for user in ("agent.alpha", "orchestrator", "persister")]
    seen: asyncio.Queue[Delivery] = asyncio.Queue()
    await agent.publish(Publication(INGRESS, "0", message(agent.user)))
    async with gate.subscribe(gate_queue(0)) as inputs, writer.subscribe(log_queue(0)) as log:
        (delivery,) = await inputs.receive()
        assert delivery.message.user_id == "agent.alpha"
        await inputs.publish(Publication(LOG, "0", message(gate.user)))
        (batch,) = await log.receive()
        await log.ack(batch)
        results = await gate.publish_all(
            [
                Publication(INTER_AGENT, "idea.red.alpha", message(gate.user)),
                Publication(SUBSTRATE, "", message(gate.user)),
                Publication(RECEIPTS, "0", message(gate.user)),
            ]
        )
        assert results == [None] * 3
        await inputs.ack(delivery)
        (receipt,) = await inputs.receive()
        await inputs.ack(receipt)
    async with handle(agent, agent_queue("alpha", urgent=False), seen.put):
        assert (await seen.get()).message.user_id == "orchestrator"
    await agent.publish(Publication(intra_exchange("alpha"), intra_key(urgent=True), message(agent.user)))
    async with handle(agent, agent_queue("alpha", urgent=True), seen.put):
        assert (await seen.get()).message.user_id == "agent.alpha"
    async with agent.read_substrate("first") as substrate:
        assert await substrate.receive()
    async with gate.subscribe(DEAD_QUEUE):
        pass
    await (await bus_of("operator")).publish(Publication(RECEIPTS, "0", message("operator")))


async def test_what_is_refused_is_said(bus_of: Connect) -> None:
    agent = await bus_of("agent.alpha")
    with pytest.raises(PublishRefused, match="refused"):
        await agent.publish(Publication(INTER_AGENT, "idea.blue.beta", message(agent.user)))
    with pytest.raises(PublishRefused, match=r"agent\.beta"):
        await agent.publish(Publication(INGRESS, "0", message("agent.beta")))
    with pytest.raises(BusUnavailable, match="may not read"):
        async with agent.subscribe(agent_queue("beta", urgent=False)):
            raise AssertionError("subscribed")


async def test_the_broker_takes_bcc_off_and_leaves_cc(bus_of: Connect) -> None:
    agent = await bus_of("agent.alpha")
    headers = {name: [intra_key(urgent=False)] for name in ("CC", "BCC")}
    sent = Message(b"{}", "m", user_id=agent.user, headers=headers)
    await agent.publish(Publication(intra_exchange("alpha"), intra_key(urgent=True), sent))
    for urgent in (True, False):
        async with agent.subscribe(agent_queue("alpha", urgent)) as inbox:
            (delivery,) = await inbox.receive()
            assert "CC" in delivery.message.headers and "BCC" not in delivery.message.headers


async def test_only_the_topology_user_declares(guarded_broker: GuardedBroker, guarded_vhost: str) -> None:
    with pytest.raises(BusUnavailable, match="may configure"):
        await apply_rabbit(guarded_broker.url("orchestrator", guarded_vhost), guarded_broker.topology)
    url = guarded_broker.url("topology", guarded_vhost)
    assert (await apply_rabbit(url, guarded_broker.topology)).shards_before == 1, "as the definitions made it"
