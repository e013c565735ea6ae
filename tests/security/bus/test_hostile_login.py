"""An agent that uses its own login of the broker against the others, below every library."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused
from pamqp import commands
from tests.integration.privilege.conftest import GuardedBroker, guarded_broker, guarded_vhost, swarm_folder
from tests.integration.privilege.system import System, system
from tests.support.raw_amqp import RawClient, long, method, short
from tests.support.traffic import until

from apc_bus.errors import PublishUnknown
from apc_bus.port import Message, Publication
from apc_bus.rabbit import RabbitBus
from apc_bus.topology import INGRESS, SUBSTRATE_STREAM, agent_queue, gate_queue

__all__ = ["guarded_broker", "guarded_vhost", "swarm_folder", "system"]
pytestmark = pytest.mark.broker
ALPHA, BETA, TOPOLOGY = "agent.alpha", "agent.beta", "topology"
ACCESS_REFUSED = 403
GATE = gate_queue(0)
BETA_INBOX = agent_queue("beta", urgent=False).encode()
DIRECT_REPLIES = "amq.rabbitmq.reply-to"
WITH_LINE_BREAKS = {
    "declare a queue": method(50, 10) + short(b"more\n") + b"\x02" + long(b""),
    "declare an exchange": method(40, 10) + short(b"apc.intra.more\r\n") + short(b"direct") + b"\x02" + long(b""),
    "bind": method(50, 20) + short(BETA_INBOX + b"\n") + short(b"apc.inter_agent") + short(b"#") + b"\0" + long(b""),
    "delete a queue": method(50, 40) + short(BETA_INBOX + b"\n") + b"\0",
    "delete an exchange": method(40, 20) + short(b"apc.ingress\n") + b"\0",
}
"""Rights are expressions `^...$`, which hold for a name with a line break too. The broker removes it."""


@pytest.mark.parametrize("act", WITH_LINE_BREAKS)
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_line_break_in_a_name_passes_no_rule(
    guarded_broker: GuardedBroker, guarded_vhost: str, act: str, is_guarded: bool
) -> None:
    user = ALPHA if is_guarded else TOPOLOGY
    with RawClient(guarded_broker.url(user, guarded_vhost)) as client:
        answer = client.call(WITH_LINE_BREAKS[act])
    if is_guarded:
        assert isinstance(answer, commands.Channel.Close) and answer.reply_code == ACCESS_REFUSED
    else:
        assert answer.name.endswith("Ok"), answer


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_agents_have_no_channel_beside_the_gate(
    guarded_broker: GuardedBroker, guarded_vhost: str, is_guarded: bool
) -> None:
    """Anyone may wait for direct replies; who sends one needs the right to write to the default exchange."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(message: Any) -> None:
        await got.put(message.body)

    async with (
        await aio_pika.connect(guarded_broker.url(ALPHA, guarded_vhost)) as asking,
        await aio_pika.connect(guarded_broker.url("orchestrator", guarded_vhost)) as gate,
        await aio_pika.connect(guarded_broker.url(BETA if is_guarded else TOPOLOGY, guarded_vhost)) as answering,
    ):
        channel = await asking.channel()
        await (await channel.get_underlay_channel()).basic_consume(DIRECT_REPLIES, take, no_ack=True)
        ingress = await channel.get_exchange(INGRESS, ensure=False)
        await ingress.publish(aio_pika.Message(b"{}", reply_to=DIRECT_REPLIES, user_id=ALPHA), "0")
        address = (await taken(gate, 1))[0].reply_to
        assert address is not None and address != DIRECT_REPLIES
        default = (await answering.channel()).default_exchange
        if is_guarded:
            with pytest.raises(ChannelAccessRefused):
                await default.publish(aio_pika.Message(b"past the gate"), address, mandatory=False)
        else:
            await default.publish(aio_pika.Message(b"past the gate"), address, mandatory=False)
            assert await got.get() == b"past the gate"


async def taken(connection: AbstractConnection, count: int, name: str = GATE) -> list[AbstractIncomingMessage]:
    """Return so many messages of a queue, in their order."""
    queue = await (await connection.channel()).get_queue(name, ensure=False)
    messages: list[AbstractIncomingMessage] = []
    async with queue.iterator(no_ack=True) as arriving:
        async for message in arriving:
            messages.append(message)
            if len(messages) == count:
                break
    return messages


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_one_reader_of_the_substrate_does_not_shut_out_the_others(
    guarded_broker: GuardedBroker, guarded_vhost: str, is_guarded: bool
) -> None:
    """A stream has no exclusive consumers; a classic queue has."""
    queue = SUBSTRATE_STREAM if is_guarded else "classic"
    async with (
        await aio_pika.connect(guarded_broker.url(ALPHA if is_guarded else TOPOLOGY, guarded_vhost)) as greedy,
        await aio_pika.connect(guarded_broker.url(BETA if is_guarded else TOPOLOGY, guarded_vhost)) as other,
    ):
        if not is_guarded:
            await (await greedy.channel()).declare_queue(queue)
        await consume(await greedy.channel(), queue, exclusive=True)
        if is_guarded:
            await consume(await other.channel(), queue)
        else:
            with pytest.raises(ChannelAccessRefused, match="exclusive"):
                await consume(await other.channel(), queue)


async def consume(channel: AbstractChannel, queue: str, *, exclusive: bool = False) -> None:
    async def take(message: object) -> None:
        """Left unacknowledged."""

    await channel.set_qos(prefetch_count=10)
    await (await channel.get_queue(queue, ensure=False)).consume(take, exclusive=exclusive)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_priority_starves_nobody(guarded_broker: GuardedBroker, guarded_vhost: str, is_guarded: bool) -> None:
    """A quorum queue takes two urgent messages to one other (before RabbitMQ 4.0 it knows no priorities)."""
    name, key = (GATE, "0") if is_guarded else ("by-priority", "p")
    async with await aio_pika.connect(guarded_broker.url(TOPOLOGY, guarded_vhost)) as connection:
        if not is_guarded:
            queue = await (await connection.channel()).declare_queue(name, arguments={"x-max-priority": 10})
            await queue.bind(INGRESS, key)
        for user, priority in ((BETA, 0), (ALPHA, 255)):
            async with await aio_pika.connect(guarded_broker.url(user, guarded_vhost)) as sending:
                ingress = await (await sending.channel()).get_exchange(INGRESS, ensure=False)
                for _ in range(12):
                    await ingress.publish(aio_pika.Message(b"{}", priority=priority, user_id=user), key)
        order = [message.user_id for message in await taken(connection, 24, name)]
    places = [place for place, user in enumerate(order) if user == BETA]
    is_starved = any(place > 3 * number + 2 for number, place in enumerate(places))
    assert is_starved is not is_guarded, order


TX_SELECT = method(90, 10)[:4]
MEGABYTE = b"x" * (1 << 20)
ALLOWED = "400MB"
"""What the node may use before it takes no publishes: twice what it uses at rest."""
FLOOD = 600


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_an_agent_that_fills_the_broker_does_not_prevent_its_own_revocation(system: System) -> None:
    """A transaction that never ends stays in the memory of the broker, which then takes nothing from anybody."""
    node = system.broker.node
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "absolute", ALLOWED)
    try:
        with RawClient(system.agent_url("delta"), confirms=False) as hostile:
            flooding = asyncio.create_task(asyncio.to_thread(flood, hostile))
            async with system.connected("gamma") as bus:
                await until(lambda: is_refused(bus), 60)  # what any other agent sends
                revoked = await system.run("agent", "revoke", "delta")
                assert revoked.returncode == 0, revoked.stderr
                await flooding
                await until(lambda: is_taken(bus), 60)
        (delta,) = [one for one in await registered(system) if one["agent_id"] == "delta"]
        assert delta["is_revoked"]
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")


async def registered(system: System) -> list[dict[str, Any]]:
    """Return the rows of `apc agent list`."""
    rows: list[dict[str, Any]] = json.loads((await system.run("agent", "list", "--json")).stdout)
    return rows


def flood(client: RawClient) -> None:
    """Write into one transaction and leave it open; the broker may close the connection meanwhile."""
    assert isinstance(client.call(TX_SELECT), commands.Tx.SelectOk)
    with suppress(OSError):
        client.flood(INGRESS, b"0", MEGABYTE, FLOOD)


async def is_taken(bus: RabbitBus) -> bool:
    """Return whether the broker confirms a message."""
    try:
        await bus.publish(Publication(INGRESS, "0", Message(b"{}", "m", user_id=bus.user)))
    except PublishUnknown:
        return False
    return True


async def is_refused(bus: RabbitBus) -> bool:
    return not await is_taken(bus)
