"""Applying the topology to a broker, and exporting it with users of least privilege."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiormq
import pytest
from aiormq.exceptions import ChannelAccessRefused
from pydantic import SecretStr

from apc_bus.errors import BusUnavailable, PublishRefused, PublishUnroutable, TopologyConflict
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit, export_definitions
from apc_bus.settings import BusSettings
from apc_bus.testing import PrivateNode
from apc_bus.topology import (
    DEAD,
    DEAD_QUEUE,
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    SUBSTRATE,
    AgentQueues,
    agent_queue,
    build_topology,
    gate_queue,
    intra_exchange,
    intra_key,
    log_queue,
)
from apc_contracts.vocabulary import PacketType

ALPHA = AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))
BETA = AgentQueues("beta", "blue", frozenset({PacketType.IDEA}))


async def connected(url: str) -> RabbitBus:
    return await connect_rabbit(BusSettings(amqp_url=SecretStr(url)))


async def test_apply_is_idempotent_and_keeps_messages(amqp_vhost_url: str) -> None:
    topology = build_topology(2, [ALPHA])
    assert (await apply_rabbit(amqp_vhost_url, topology)).shards_before == 0
    bus = await connected(amqp_vhost_url)
    await bus.publish(Publication(LOG, "1", Message(b"{}", "m")))
    assert (await apply_rabbit(amqp_vhost_url, topology)).shards_before == 2
    assert (await bus.depth(log_queue(1))).messages == 1
    await bus.close()


async def test_a_change_of_n_needs_drained_queues(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology(2))
    bus = await connected(amqp_vhost_url)
    await bus.publish(Publication(INGRESS, "1", Message(b"{}", "m")))
    with pytest.raises(TopologyConflict, match=r"from 2 to 1 shards: apc\.gate\.1 has 1 messages"):
        await apply_rabbit(amqp_vhost_url, build_topology(1))
    async with bus.subscribe(gate_queue(1)) as subscription:
        (delivery,) = await subscription.receive()
        await subscription.ack(delivery)
        with pytest.raises(TopologyConflict, match="1 consumers"):
            await apply_rabbit(amqp_vhost_url, build_topology(3))
    applied = await apply_rabbit(amqp_vhost_url, build_topology(1))
    assert applied.queues_deleted == (gate_queue(1), log_queue(1))
    with pytest.raises(PublishUnroutable):
        await bus.publish(Publication(INGRESS, "1", Message(b"{}", "m")))
    assert (await apply_rabbit(amqp_vhost_url, build_topology(3))).queues_deleted == ()
    await bus.publish(Publication(INGRESS, "2", Message(b"{}", "m")))
    await bus.close()


async def test_other_arguments_are_a_conflict(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology(1, [ALPHA], bound=10))
    with pytest.raises(TopologyConflict, match="drain and delete"):
        await apply_rabbit(amqp_vhost_url, build_topology(1, [ALPHA], bound=20))


async def test_a_type_that_is_handled_no_more_is_unbound(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology(1, [ALPHA]))
    await apply_rabbit(amqp_vhost_url, build_topology(1, [AgentQueues("alpha", "red")]))
    bus = await connected(amqp_vhost_url)
    with pytest.raises(PublishUnroutable):
        await bus.publish(Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", "m")))
    await bus.publish(Publication(INTER_AGENT, "ack.red.alpha.urgent", Message(b"{}", "m")))
    await bus.close()


class Guarded:
    """A node with the exported definitions, and a bus for each user."""

    def __init__(self, node: PrivateNode, passwords: dict[str, str]) -> None:
        self._node = node
        self._passwords = passwords
        self._buses: list[RabbitBus] = []

    def url(self, user: str) -> str:
        return self._node.url("/", user, self._passwords[user])

    async def bus(self, user: str) -> RabbitBus:
        self._buses.append(await connected(self.url(user)))
        return self._buses[-1]

    async def close(self) -> None:
        await asyncio.gather(*(bus.close() for bus in self._buses))


@pytest.fixture(scope="module")
def guarded_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrivateNode, dict[str, str]]]:
    """A broker that imported what `apc topology export` prints."""
    topology = build_topology(1, [ALPHA, BETA])
    users = ("topology", "orchestrator", "persister", "operator", "agent.alpha", "agent.beta")
    passwords = {user: f"secret-{user}" for user in users}
    file: Path = tmp_path_factory.mktemp("definitions") / "definitions.json"
    file.write_text(json.dumps(export_definitions(topology, passwords=passwords)))
    with PrivateNode() as node:
        node.ctl("import_definitions", str(file))
        yield node, passwords


@pytest.fixture
async def guarded(guarded_node: tuple[PrivateNode, dict[str, str]]) -> AsyncIterator[Guarded]:
    """Buses of that broker, closed after the test."""
    place = Guarded(*guarded_node)
    yield place
    await place.close()


def message(user: str | None, **properties: object) -> Message:
    return Message(**{"body": b"{}", "message_id": "m", "user_id": user} | properties)  # type: ignore[arg-type]


@pytest.mark.broker
async def test_everybody_can_do_their_job(guarded: Guarded) -> None:
    agent, gate = await guarded.bus("agent.alpha"), await guarded.bus("orchestrator")
    writer = await guarded.bus("persister")
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
    async with agent.handle(agent_queue("alpha", urgent=False), seen.put):
        assert (await seen.get()).message.user_id == "orchestrator"
    await agent.publish(Publication(intra_exchange("alpha"), intra_key(urgent=True), message(agent.user)))
    async with agent.handle(agent_queue("alpha", urgent=True), seen.put):
        assert (await seen.get()).message.user_id == "agent.alpha"
    async with agent.read_substrate("first") as substrate:
        assert await substrate.receive()
    async with gate.subscribe(DEAD_QUEUE):
        pass
    await (await guarded.bus("operator")).publish(Publication(RECEIPTS, "0", message("operator")))


@pytest.mark.broker
@pytest.mark.parametrize("user", ["agent.alpha", "persister", "operator"])
async def test_nobody_goes_round_the_gate(guarded: Guarded, user: str) -> None:
    bus = await guarded.bus(user)
    for exchange, key in [
        (intra_exchange("beta"), intra_key(urgent=False)),
        (INTER_AGENT, "idea.blue.beta"),
        (SUBSTRATE, ""),
        (LOG, "0"),
        (DEAD, ""),
        ("", agent_queue("beta", urgent=False)),
        ("amq.topic", "any"),
    ]:
        with pytest.raises(PublishRefused, match="refused"):
            await bus.publish(Publication(exchange, key, message(user)))
    for queue in (agent_queue("beta", urgent=False), gate_queue(0), DEAD_QUEUE):
        with pytest.raises(BusUnavailable, match="may not read"):
            async with bus.subscribe(queue):
                raise AssertionError("subscribed")


@pytest.mark.broker
async def test_a_copy_header_reaches_nobody(guarded: Guarded) -> None:
    agent, gate = await guarded.bus("agent.alpha"), await guarded.bus("orchestrator")
    before = (await gate.depth(agent_queue("beta", urgent=False))).messages
    headers = {"CC": ["idea.blue.beta"], "BCC": ["idea.blue.beta"]}
    await agent.publish(Publication(INGRESS, "0", message(agent.user, message_id="copied", headers=headers)))
    assert (await gate.depth(agent_queue("beta", urgent=False))).messages == before
    async with gate.subscribe(gate_queue(0)) as inputs:
        message_id = ""
        while message_id != "copied":
            (delivery,) = await inputs.receive(max_messages=1)
            message_id = delivery.message.message_id
            await inputs.ack(delivery)
        assert delivery.message.headers["CC"] == ["idea.blue.beta"]


@pytest.mark.broker
async def test_a_sender_cannot_be_forged(guarded: Guarded) -> None:
    agent = await guarded.bus("agent.alpha")
    with pytest.raises(PublishRefused, match=r"agent\.beta"):
        await agent.publish(Publication(INGRESS, "0", message("agent.beta")))


@pytest.mark.broker
async def test_only_the_topology_user_declares(guarded: Guarded) -> None:
    topology = build_topology(1, [ALPHA, BETA])
    with pytest.raises(BusUnavailable, match="may configure"):
        await apply_rabbit(guarded.url("orchestrator"), topology)
    assert (await apply_rabbit(guarded.url("topology"), topology)).shards_before == 1
    async with aiormq.connect(guarded.url("agent.alpha")) as connection:
        for bind in (True, False):
            channel = await connection.channel()
            with pytest.raises(ChannelAccessRefused):
                if bind:
                    await channel.queue_bind(agent_queue("alpha", urgent=False), INTER_AGENT, "#")
                else:
                    await channel.queue_delete(agent_queue("alpha", urgent=False))


@pytest.mark.broker
def test_a_user_without_password_cannot_log_in(guarded_node: tuple[PrivateNode, dict[str, str]]) -> None:
    definitions = export_definitions(build_topology(), passwords={"persister": "x"})
    hashes = {user["name"]: user["password_hash"] for user in definitions["users"]}
    assert hashes["orchestrator"] == ""
    assert hashes["persister"]
