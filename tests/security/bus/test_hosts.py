"""A process with the broker user of one host, against the inboxes of others and the way to them."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from tests.integration.privilege.broker_probes import Act, is_allowed
from tests.integration.privilege.conftest import GuardedBroker, guarded_broker, swarm_folder

from apc_bus.rabbit import export_definitions
from apc_bus.topology import (
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    AgentQueues,
    build_topology,
    host_key,
    host_queue,
    inbox_queue,
)

__all__ = ["guarded_broker", "swarm_folder"]

pytestmark = pytest.mark.broker
MINE, OTHERS = "host.h0", "host.h1"
TOPOLOGY = build_topology(
    1, [AgentQueues("red", "s", host="h0"), AgentQueues("blue", "s", host="h1"), AgentQueues("alone", "s")]
)
OWN_QUEUE, OTHERS_QUEUE, ALONE_QUEUE = (
    host_queue("h0", False),
    host_queue("h1", False),
    inbox_queue("alone", None, False),
)


async def read_another_host(channel: AbstractChannel, user: str) -> None:
    await consume(channel, OTHERS_QUEUE)


async def read_an_agent_with_own_queues(channel: AbstractChannel, user: str) -> None:
    await consume(channel, ALONE_QUEUE)


async def read_the_gate(channel: AbstractChannel, user: str) -> None:
    await consume(channel, "apc.gate.0")


async def deliver_past_the_gate(channel: AbstractChannel, user: str) -> None:
    await publish(channel, INTER_AGENT, host_key("h1", "blue", False), user)


async def deliver_to_its_own_agents_past_the_gate(channel: AbstractChannel, user: str) -> None:
    await publish(channel, INTER_AGENT, host_key("h0", "red", False), user)


async def speak_as_another_host(channel: AbstractChannel, user: str) -> None:
    await publish(channel, INGRESS, "0", OTHERS)


async def keep_another_host_among_the_living(channel: AbstractChannel, user: str) -> None:
    await consume(channel, host_queue("h1", urgent=True))


async def report_signs_of_life_past_the_gate(channel: AbstractChannel, user: str) -> None:
    await publish(channel, LOG, "0", user)


async def bind_to_what_comes_for_another_host(channel: AbstractChannel, user: str) -> None:
    await (await channel.get_queue(OWN_QUEUE, ensure=False)).bind(INTER_AGENT, "host.h1.#")


async def declare_a_queue(channel: AbstractChannel, user: str) -> None:
    await channel.declare_queue("apc.host.h2.normal", durable=True)


async def consume(channel: AbstractChannel, queue: str) -> None:
    async def take(message: object) -> None:
        """Left unacknowledged: it goes back with the channel."""

    await (await channel.get_queue(queue, ensure=False)).consume(take)


async def publish(channel: AbstractChannel, exchange: str, key: str, user: str) -> None:
    target = await channel.get_exchange(exchange, ensure=False)
    await target.publish(aio_pika.Message(b"{}", user_id=user), key, mandatory=False)


ACTS = (
    read_another_host,
    read_an_agent_with_own_queues,
    read_the_gate,
    deliver_past_the_gate,
    deliver_to_its_own_agents_past_the_gate,
    speak_as_another_host,
    keep_another_host_among_the_living,
    report_signs_of_life_past_the_gate,
    bind_to_what_comes_for_another_host,
    declare_a_queue,
)


async def read_its_queues(channel: AbstractChannel, user: str) -> None:
    for urgent in (True, False):
        await consume(channel, host_queue("h0", urgent))


async def write_to_the_gate(channel: AbstractChannel, user: str) -> None:
    for exchange in (INGRESS, RECEIPTS):
        await publish(channel, exchange, "0", user)


WORK = (read_its_queues, write_to_the_gate)


@pytest.fixture
def vhost(guarded_broker: GuardedBroker, tmp_path: Path) -> Iterator[str]:
    """A virtual host with the topology of two hosts and their users, whose password is their name."""
    name = f"hosts-{secrets.token_hex(4)}"
    passwords = {user: user for user in (MINE, OTHERS)}
    exported = export_definitions(TOPOLOGY, vhost=name, passwords=passwords)
    # The users of the services are those of the node's other tests.
    exported["users"] = [one for one in exported["users"] if one["name"] in passwords]
    exported["permissions"] = [one for one in exported["permissions"] if one["user"] in passwords]
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(exported))
    guarded_broker.node.ctl("import_definitions", str(file))
    yield name
    for user in passwords:
        guarded_broker.node.ctl("delete_user", user)
    guarded_broker.node.ctl("delete_vhost", name)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_host_reaches_nothing_of_others(guarded_broker: GuardedBroker, vhost: str, is_guarded: bool) -> None:
    """Without the guard it has every right in the virtual host, and may send under any name."""
    if not is_guarded:
        guarded_broker.node.ctl("set_permissions", "-p", vhost, MINE, ".*", ".*", ".*")
        guarded_broker.node.ctl("set_user_tags", MINE, "impersonator")
    async with await aio_pika.connect(guarded_broker.node.url(vhost, MINE, MINE)) as connection:
        allowed = [act for act in (*ACTS, *WORK) if await is_allowed(connection, MINE, Act(act.__name__, act))]
    assert allowed == [*(() if is_guarded else ACTS), *WORK]
