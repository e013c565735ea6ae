"""`apc doctor` on broker users: each fault is made for real, and found, with its fix."""

from dataclasses import replace

import aio_pika
import pytest
from pydantic import SecretStr
from tests.integration.privilege.conftest import GuardedBroker
from tests.support.traffic import until

from apc_bus.rabbit.definitions import agent_permission
from apc_bus.rabbit.management import Management
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, SUBSTRATE, SUBSTRATE_STREAM
from apc_cli.doctor import Finding, Status, broker
from apc_cli.doctor.broker import look_at_users

pytestmark = pytest.mark.broker


@pytest.fixture
def settings(guarded_broker: GuardedBroker, guarded_vhost: str, monkeypatch: pytest.MonkeyPatch) -> BusSettings:
    """An operator's, with the management API."""
    monkeypatch.setenv("APC_MANAGEMENT_URL", guarded_broker.management_url())
    monkeypatch.setenv("APC_TOPOLOGY_URL", guarded_broker.url("topology", guarded_vhost))
    return BusSettings(amqp_url=SecretStr(guarded_broker.url("operator", guarded_vhost)))


def faults(findings: list[Finding]) -> list[tuple[Status, str]]:
    assert all(finding.fix for finding in findings if finding.status is not Status.OK)
    return [(finding.status, finding.finding) for finding in findings if finding.status is not Status.OK]


async def test_users_as_they_were_exported(settings: BusSettings, guarded_broker: GuardedBroker) -> None:
    (finding,) = await look_at_users(settings, guarded_broker.topology)
    assert (finding.status, "rights are as exported" in finding.finding) == (Status.OK, True)


async def test_a_user_that_may_forge_others(settings: BusSettings, guarded_broker: GuardedBroker) -> None:
    guarded_broker.node.ctl("set_user_tags", "agent.beta", "impersonator")
    try:
        (fault,) = faults(await look_at_users(settings, guarded_broker.topology))
    finally:
        guarded_broker.node.ctl("set_user_tags", "agent.beta")
    said = "broker user agent.beta has the tag impersonator: it can send in anybody's name"
    assert fault == (Status.WRONG, said)


async def test_an_agent_that_fills_the_broker(
    settings: BusSettings, guarded_broker: GuardedBroker, guarded_vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a transaction that it leaves open, and by a reader of the substrate who acknowledges nothing."""
    monkeypatch.setattr(broker, "MOST_UNACKNOWLEDGED", 4)
    said: list[str] = []

    async def are_found() -> bool:
        said[:] = [sentence for _, sentence in faults(await look_at_users(settings, guarded_broker.topology))]
        return len(said) == 2

    async with (
        await aio_pika.connect(guarded_broker.url("orchestrator", guarded_vhost)) as gate,
        await aio_pika.connect(guarded_broker.url("agent.alpha", guarded_vhost)) as hostile,
    ):
        substrate = await (await gate.channel()).get_exchange(SUBSTRATE, ensure=False)
        for _ in range(5):
            await substrate.publish(aio_pika.Message(b"{}"), "")
        reader, writer = await hostile.channel(), await hostile.channel(publisher_confirms=False)
        await reader.set_qos(prefetch_count=65_535)
        stream = await reader.get_queue(SUBSTRATE_STREAM, ensure=False)
        await stream.consume(leave, arguments={"x-stream-offset": "first"})
        async with writer.transaction():
            ingress = await writer.get_exchange(INGRESS, ensure=False)
            await ingress.publish(aio_pika.Message(b"{}", user_id="agent.alpha"), "0")
            await until(are_found, 60)
    assert said == [
        "the broker keeps 1 message of user agent.alpha in transactions, which no worker uses",
        "the broker keeps 5 deliveries to user agent.alpha, who acknowledges none",
    ]


async def leave(message: object) -> None:
    """Leave a delivery unacknowledged."""


async def test_a_remedy_is_safe_to_copy(settings: BusSettings, guarded_broker: GuardedBroker) -> None:
    name = "x; touch owned"
    guarded_broker.node.ctl("add_user", name, "secret-of-x")
    try:
        guarded_broker.node.ctl("set_user_tags", name, "impersonator")
        (fault,) = [one for one in await look_at_users(settings, guarded_broker.topology) if one.status is Status.WRONG]
    finally:
        guarded_broker.node.ctl("delete_user", name)
    assert fault.fix == f"rabbitmqctl set_user_tags '{name}'"


async def test_rights_that_are_missing_or_too_many(
    settings: BusSettings, guarded_broker: GuardedBroker, guarded_vhost: str
) -> None:
    management, (alpha, beta) = Management(guarded_broker.management_url()), guarded_broker.topology.agents
    await management.set_permission("persister", guarded_vhost, ("^$", ".*", ".*"))
    await management.set_permission("agent.beta", guarded_vhost, agent_permission([alpha, beta]))
    unknown = replace(guarded_broker.topology, agents=(alpha, beta, replace(alpha, agent_id="gone")))
    found = faults(await look_at_users(settings, unknown))
    assert [(status, said.split(" ")[2]) for status, said in found] == [
        (Status.WARNING, "persister"),
        (Status.WARNING, "agent.beta"),
        (Status.WRONG, "agent.gone"),
    ]


async def test_agents_that_share_a_user(settings: BusSettings, guarded_broker: GuardedBroker) -> None:
    alpha, beta = guarded_broker.topology.agents
    shared = replace(guarded_broker.topology, agents=(alpha, replace(beta, broker_user="agent.alpha")))
    said = [sentence for _, sentence in faults(await look_at_users(settings, shared))]
    assert said[0] == "agents alpha, beta share the broker user agent.alpha: each can speak as the others"


async def test_without_the_management_api(
    settings: BusSettings, guarded_broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APC_MANAGEMENT_URL")
    (finding,) = await look_at_users(settings, guarded_broker.topology)
    assert (finding.status, "cannot be asked for" in finding.finding) == (Status.OK, True)
    monkeypatch.setenv("APC_MANAGEMENT_URL", guarded_broker.management_url("guest", "wrong"))
    assert [status for status, _ in faults(await look_at_users(settings, guarded_broker.topology))] == [Status.WRONG]
