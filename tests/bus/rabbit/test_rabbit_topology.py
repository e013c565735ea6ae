"""Applying the topology to a broker, and exporting it with users of least privilege."""

from dataclasses import replace

import pytest
from pydantic import SecretStr

from apc_bus.errors import PublishUnroutable, ShardsDiffer, TopologyConflict, TopologyInvalid
from apc_bus.port import Message, Publication, QueueDepth
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit, export_definitions
from apc_bus.rabbit.administration import _lacks_queues, check_shards
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.rabbit.definitions import permissions, user_limits
from apc_bus.settings import BusSettings
from apc_bus.topology import (
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    AgentQueues,
    Topology,
    build_topology,
    gate_queue,
    log_queue,
)
from apc_contracts.vocabulary import PacketType

ALPHA = AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))


async def connected(url: str) -> RabbitBus:
    return await connect_rabbit(BusSettings(amqp_url=SecretStr(url)))


async def drain(bus: RabbitBus, queue: str) -> None:
    """Take every message of a queue that holds some."""
    count = (await bus.depth(queue)).messages
    async with bus.subscribe(queue) as subscription:
        while count:
            found = await subscription.receive()
            await subscription.ack(found[-1], multiple=True)
            count -= len(found)


async def test_apply_is_idempotent_and_keeps_messages(amqp_vhost_url: str) -> None:
    topology = build_topology(2, [ALPHA])
    assert (await apply_rabbit(amqp_vhost_url, topology)).shards_before == 0
    bus = await connected(amqp_vhost_url)
    await bus.publish(Publication(LOG, "1", Message(b"{}", "m")))
    assert (await apply_rabbit(amqp_vhost_url, topology)).shards_before == 2
    assert (await bus.depth(log_queue(1))).messages == 1
    await bus.close()


async def test_only_what_was_applied_before_can_lack_a_queue(amqp_vhost_url: str) -> None:
    """Then `apply` waits: the queue may have been deleted this very moment. One that never was cannot."""
    topology, timing = build_topology(1), Timing()
    link = await Nodes([amqp_vhost_url], timing).connect("test")
    assert not await _lacks_queues(link, topology, (), timing), "nothing was ever applied"
    await apply_rabbit(amqp_vhost_url, topology)
    assert not await _lacks_queues(link, topology, (), timing)
    beside = build_topology(1, [ALPHA])
    assert await _lacks_queues(link, beside, (), timing), "alpha may have had them"
    assert not await _lacks_queues(link, beside, ALPHA.names, timing), "alpha is new"
    await (await link.channel()).queue_delete(log_queue(0))
    assert await _lacks_queues(link, topology, (), timing)
    assert await _lacks_queues(link, beside, ALPHA.names, timing)
    await link.close()


@pytest.mark.long
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
            await apply_rabbit(amqp_vhost_url, build_topology(4))
    applied = await apply_rabbit(amqp_vhost_url, build_topology(1))
    assert applied.queues_deleted == (gate_queue(1), log_queue(1))
    await bus.publish(Publication(INGRESS, "1", Message(b"{}", "m")))
    assert (await bus.depth(gate_queue(0))).messages == 1, "slot 1 is of the only shard now"
    await drain(bus, gate_queue(0))
    assert (await apply_rabbit(amqp_vhost_url, build_topology(4))).queues_deleted == ()
    await bus.publish(Publication(INGRESS, "2", Message(b"{}", "m")))
    assert [(await bus.depth(gate_queue(shard))).messages for shard in range(4)] == [0, 0, 1, 0], "and of one alone"
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


def test_a_user_without_password_cannot_log_in() -> None:
    definitions = export_definitions(build_topology(), passwords={"persister": "x"})
    hashes = {user["name"]: user["password_hash"] for user in definitions["users"]}
    assert hashes["orchestrator"] == ""
    assert hashes["persister"]


def test_nobody_but_the_topology_user_may_configure_or_reach_another() -> None:
    odd = AgentQueues("a|b.c", "red")
    grants = permissions(build_topology(2, [ALPHA, odd]))
    assert {user for user, (configure, _, _) in grants.items() if configure != "^$"} == {"topology"}
    _, write, read = grants["agent.a|b.c"]
    assert write == r"^(apc\.ingress|apc\.receipts|apc\.intra\.a\|b\.c)$", "an id is never read as an expression"
    assert "alpha" not in write + read


def test_agents_that_share_a_user_share_its_rights() -> None:
    agents = [AgentQueues(name, "red", broker_user="operator") for name in ("one", "two")]
    _, write, read = permissions(build_topology(1, agents))["operator"]
    assert r"apc\.intra\.one" in write and r"apc\.intra\.two" in write and r"apc\.receipts" in write
    assert r"apc\.agent\.one\.normal" in read and r"apc\.agent\.two\.urgent" in read


def test_agents_of_a_host_have_one_user_that_reads_two_queues_and_writes_to_no_agent() -> None:
    topology = build_topology(1, [AgentQueues(name, "red", host="h0") for name in ("one", "two")])
    configure, write, read = permissions(topology)["host.h0"]
    assert (configure, write) == ("^$", r"^(apc\.ingress|apc\.receipts)$")
    assert read == r"^(apc\.substrate\.stream|apc\.host\.h0\.urgent|apc\.host\.h0\.normal)$"
    assert user_limits(topology)["host.h0"]["max-connections"] == 32, "of the host and its standby, not for each agent"


@pytest.mark.parametrize("user", ["topology", "orchestrator", "persister"])
def test_an_agent_cannot_have_the_user_of_a_service(user: str) -> None:
    with pytest.raises(TopologyInvalid, match=f"'mallory' has the broker user '{user}', which is a service's"):
        permissions(build_topology(1, [AgentQueues("mallory", "red", broker_user=user)]))


@pytest.mark.long
async def test_a_change_of_n_needs_empty_inboxes(amqp_vhost_url: str) -> None:
    """What waits there will be answered, by an agent with another number of shards."""
    await apply_rabbit(amqp_vhost_url, build_topology(2, [ALPHA]))
    bus = await connected(amqp_vhost_url)
    await bus.publish(Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", "m")))
    refused = r"from 2 to 4 shards: apc\.agent\.alpha\.normal has"
    with pytest.raises(TopologyConflict, match=f"{refused} 1 messages and 0 consumers; let every session end, stop"):
        await apply_rabbit(amqp_vhost_url, build_topology(4, [ALPHA]))
    async with bus.subscribe("apc.agent.alpha.normal") as inbox:
        (delivery,) = await inbox.receive()
        with pytest.raises(TopologyConflict, match=f"{refused} 0 messages and 1 consumers"):
            await apply_rabbit(amqp_vhost_url, build_topology(4, [ALPHA]))
        await inbox.ack(delivery)
    await bus.publish(Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", "m")))
    assert (await apply_rabbit(amqp_vhost_url, build_topology(4))).shards_before == 2, "alpha is revoked"
    await bus.close()


async def test_an_objection_of_the_log_is_heard_before_anything_changes(amqp_vhost_url: str) -> None:
    async def objection(before: int) -> str | None:
        return f"1 session is open, {before} before"

    with pytest.raises(TopologyConflict, match="cannot make 2 shards: 1 session is open, 0 before"):
        await apply_rabbit(amqp_vhost_url, build_topology(2), objection=objection)
    await apply_rabbit(amqp_vhost_url, build_topology(2))
    for wanted in (1, 4):
        with pytest.raises(
            TopologyConflict, match=f"cannot change from 2 to {wanted} shards: 1 session is open, 2 before"
        ):
            await apply_rabbit(amqp_vhost_url, build_topology(wanted), objection=objection)
    assert (await apply_rabbit(amqp_vhost_url, build_topology(2), objection=objection)).shards_before == 2


async def test_what_comes_while_the_number_shrinks_is_kept(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology(4))
    bus = await connected(amqp_vhost_url)

    async def publish_meanwhile(before: int) -> None:
        await bus.publish(Publication(INGRESS, "2", Message(b"{}", "late")))

    with pytest.raises(TopologyConflict, match=r"from 4 to 1 shards: apc\.gate\.2 has 1 messages"):
        await apply_rabbit(amqp_vhost_url, build_topology(1), objection=publish_meanwhile)
    await bus.publish(Publication(INGRESS, "2", Message(b"{}", "later")))
    assert (await bus.depth(gate_queue(2))).messages == 2
    async with bus.subscribe(gate_queue(2)) as subscription:
        await subscription.ack((await subscription.receive())[-1], multiple=True)
    assert (await apply_rabbit(amqp_vhost_url, build_topology(1))).queues_deleted == (
        gate_queue(1),
        log_queue(1),
        gate_queue(2),
        log_queue(2),
        gate_queue(3),
        log_queue(3),
    )
    await bus.close()


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_process_with_another_number_is_refused_by_name(amqp_vhost_url: str, shards: int) -> None:
    settings = BusSettings(amqp_url=SecretStr(amqp_vhost_url), shards=shards)
    await (await connect_rabbit(settings, shards=shards)).close()  # there is no topology yet
    await apply_rabbit(amqp_vhost_url, build_topology(2))
    with pytest.raises(ShardsDiffer, match=f"APC_SHARDS is {shards}, and the broker has the queues of 2 shards"):
        await connect_rabbit(settings, shards=shards)
    await (await connect_rabbit(settings, shards=2)).close()


async def test_a_process_that_looks_while_the_queues_come_is_not_refused(
    amqp_vhost_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number fits: what was not there at the first look came before the second."""
    bus, depth = await connected(amqp_vhost_url), RabbitBus.depth

    async def apply_after_the_answer(self: RabbitBus, queue: str) -> QueueDepth:
        try:
            return await depth(self, queue)
        finally:
            await apply_rabbit(amqp_vhost_url, build_topology(2))

    monkeypatch.setattr(RabbitBus, "depth", apply_after_the_answer)
    await check_shards(bus, 2)
    with pytest.raises(ShardsDiffer):
        await check_shards(bus, 1)
    await bus.close()


def test_the_first_shard_is_declared_last() -> None:
    """A process that sees it then sees all: see `check_shards`."""
    gates = {gate_queue(shard) for shard in range(4)}
    names = [queue.name for queue in build_topology(4).queues if queue.name in gates]
    assert names == [gate_queue(shard) for shard in (3, 2, 1, 0)]


def of_release_0_1_0(shards: int) -> Topology:
    """The topology as that release declared it: each shard bound by its own number alone."""
    number = 1 << (shards - 1).bit_length()
    planned, names = (
        build_topology(number),
        {gate_queue(one) for one in range(shards)} | set(map(log_queue, range(shards))),
    )
    queues = [one for one in planned.queues if one.name in names or not one.name.startswith(("apc.gate.", "apc.log."))]
    bindings = [
        one
        for one in planned.bindings
        if one.queue in {queue.name for queue in queues}
        and not (one.exchange in (INGRESS, RECEIPTS) and one.key.isdecimal() and int(one.key) >= shards)
    ]
    return replace(planned, queues=tuple(queues), bindings=tuple(bindings), shards=number)


@pytest.mark.parametrize("shards", [1, 2])
async def test_apply_adds_the_slots_to_a_topology_of_release_0_1_0(amqp_vhost_url: str, shards: int) -> None:
    """While its workers go on: what they send by the number of a shard comes before and after."""
    await apply_rabbit(amqp_vhost_url, of_release_0_1_0(shards))
    bus = await connected(amqp_vhost_url)
    old, new = (Publication(INGRESS, key, Message(b"{}", key)) for key in (str(shards - 1), "255"))
    async with bus.subscribe(gate_queue(shards - 1)) as subscription:
        await bus.publish(old)
        with pytest.raises(
            PublishUnroutable, match=r"no queue takes key '255' .*of release 0\.1\.0.*`apc topology apply`"
        ):
            await bus.publish(new)
        assert (await apply_rabbit(amqp_vhost_url, build_topology(shards))).shards_before == shards
        await bus.publish(old)
        await bus.publish(new)
        found: list[str] = []
        while len(found) < 3:
            received = await subscription.receive()
            found += [one.message.message_id for one in received]
            await subscription.ack(received[-1], multiple=True)
    assert found == [str(shards - 1), str(shards - 1), "255"]
    await bus.close()


@pytest.mark.long
async def test_three_shards_of_release_0_1_0_become_four(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, of_release_0_1_0(3))
    settings = BusSettings(amqp_url=SecretStr(amqp_vhost_url), shards=4)
    with pytest.raises(
        ShardsDiffer, match=r"has the queues of 3 shards: change the number as docs/how-to/operations\.md"
    ):
        await connect_rabbit(settings, shards=4)
    assert (await apply_rabbit(amqp_vhost_url, build_topology(4))).shards_before == 3
    bus = await connect_rabbit(settings, shards=4)
    results = await bus.publish_all(
        [Publication(INGRESS, str(slot), Message(b"{}", f"m-{slot}")) for slot in range(256)]
    )
    assert results == [None] * 256
    assert [(await bus.depth(gate_queue(shard))).messages for shard in range(4)] == [2, 2, 2, 2], "bundles of 32"
    await bus.close()
