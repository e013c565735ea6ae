"""Agents of a host: the gate delivers to the queues that they share, and knows whose letters died there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_speaks import register

from apc_bus.topology import DEAD_QUEUE, AgentQueues, agent_queue, build_topology, host_key, host_queue
from apc_client.registration import addition
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_contracts.admission.rules import capacity
from apc_contracts.admission.rules.capacity import HOSTED_BOUND, bound_of
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import Right
from apc_log.registry import read_registry
from apc_orchestrator.judging.registry import Registry

Build = Callable[..., Packet]
QUEUE, KEY = host_queue("h0", urgent=False), host_key("h0", "sentinel", urgent=False)


async def move(running: House) -> None:
    """Let the sentinel run on the host h0."""
    running.broker.apply(build_topology(1, [AgentQueues("sentinel", "watch", frozenset(PacketType), host="h0")]))
    await register(running, "sentinel", host="h0", speaks=("apc/1.0", "apc/1.1"))


async def test_a_packet_goes_to_the_queue_of_the_recipients_host(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    await move(running)
    sent = packet("red-1", idea, ("sentinel", "blue-1"), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    operator = running.client("operator")
    assert (await operator.depth(agent_queue("sentinel", urgent=False))).messages == 0
    assert (await operator.depth(agent_queue("blue-1", urgent=False))).messages == 1, "others keep their queues"
    async with operator.subscribe(QUEUE) as inbox:
        (delivery,) = await inbox.receive()
        assert (delivery.message.message_id, delivery.routing_key) == (str(sent.packet_id), KEY)
        await inbox.ack(delivery)
    await running.handle_all()


async def test_what_dies_in_the_queue_of_a_host_is_reported_for_its_recipient(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    await move(running)
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    async with running.client("operator").subscribe(QUEUE) as inbox:
        (delivery,) = await inbox.receive()
        await inbox.nack(delivery, requeue=False)

    async def is_dead() -> bool:
        return await running.state_of(sent) == "DEAD_LETTERED"

    await running.until(is_dead)
    assert (await running.client("operator").depth(DEAD_QUEUE)).messages == 0


async def test_a_takeover_reads_the_host_and_a_change_without_one_has_none(running: House) -> None:
    await move(running)
    known = await read_registry(running.pool)
    assert {one.host for one in known.values() if one.agent_id != "sentinel"} == {None}
    assert known["sentinel"].host == "h0"
    taken_over = await Registry.load(running.pool, "orchestrator", 0)
    assert taken_over.by_id["sentinel"].host == "h0"
    await register(running, "sentinel", speaks=("apc/1.0", "apc/1.1"))
    assert (await read_registry(running.pool))["sentinel"].host is None, "it has its own queues again"


REFUSED = "SELECT reason FROM apc_log.packet_conflicts"


async def said(running: House) -> str:
    """Return why the gate has refused a change, "" when it has refused none."""
    return "".join(row["reason"] for row in await running.pool.fetch(REFUSED))


async def test_the_gate_refuses_a_judge_beside_those_it_judges(running: House) -> None:
    await register(running, "red-1", broker_user="host.h0", host="h0")
    await register(running, "sentinel", broker_user="host.h0", host="h0", rights=("veto",))
    assert "sentinel judges (decide, validate, veto), and red-1 on host h0 could speak as it" in await said(running)
    assert (await read_registry(running.pool))["sentinel"].host is None
    await register(running, "sentinel", broker_user="host.h0", host="h0", rights=("veto",), allow_shared=True)
    moved = (await read_registry(running.pool))["sentinel"]
    assert (moved.host, moved.allow_shared, moved.rights) == ("h0", True, frozenset({Right.VETO}))


async def test_the_gate_refuses_an_agent_on_a_host_of_another_broker_user(running: House) -> None:
    await register(running, "red-1", broker_user="host.h0", host="h0")
    await register(running, "blue-1", host="h0")
    assert "the agents of host h0 have the broker user host.h0, not agent.blue-1" in await said(running)
    await register(running, "blue-1", broker_user="host.h0")
    assert "the broker user host.h0 is for the agents of that host alone" in await said(running)
    known = (await read_registry(running.pool))["blue-1"]
    assert (known.host, known.broker_user) == (None, "agent.blue-1")


async def test_a_takeover_refuses_what_the_gate_before_refused(running: House) -> None:
    await register(running, "red-1", broker_user="host.h0", host="h0")
    taken_over = await Registry.load(running.pool, "orchestrator", 0)
    change = addition(replace(taken_over.by_id["sentinel"], host="h0", broker_user="host.h0"))
    assert "judges" in (taken_over.objection(change) or "")


@pytest.mark.parametrize("is_hosted", [False, True])
async def test_an_agent_of_a_host_may_have_fewer_open_deliveries(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_hosted: bool
) -> None:
    """One sender gets up to the bound, all together less than twice that: agents of a host share its inbox."""
    assert HOSTED_BOUND == 125 == bound_of(Registration("a", "host.h", "r", "s", host="h"), 1_000)
    monkeypatch.setattr(capacity, "HOSTED_BOUND", 8)
    if is_hosted:
        await move(running)

    async def codes_of(sender: str, count: int) -> list[str | None]:
        sent = [packet(sender, idea, ("sentinel",), parent=running.opening) for _ in range(count)]
        for one in sent:
            await running.publish(one)
        await running.quiet()
        return [await refusal_of(running, one) for one in sent]

    assert await codes_of("red-1", 10) == [None] * (8 if is_hosted else 10) + ["OVERLOADED"] * (2 * is_hosted)
    assert await codes_of("blue-1", 8) == [None] * (4 if is_hosted else 8) + ["OVERLOADED"] * (4 * is_hosted)
    async with running.client("operator").subscribe(QUEUE if is_hosted else agent_queue("sentinel", False)) as inbox:
        for delivery in await inbox.receive():
            await inbox.ack(delivery)


async def refusal_of(running: House, sent: Packet) -> str | None:
    """Return with which code the gate has refused a packet; None when it took it."""
    query = "SELECT refusal_code FROM apc_log.agent_packets WHERE packet_id = $1"
    code: str | None = await running.pool.fetchval(query, sent.packet_id)
    return code
