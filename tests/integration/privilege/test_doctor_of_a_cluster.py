"""`apc doctor` on a cluster of three nodes: a replica that is missing, a binding that is gone, a node that is down."""

import asyncio
from collections.abc import Iterator

import aio_pika
import pytest
from pydantic import SecretStr
from tests.support.servers import PrivateCluster
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

from apc_bus.rabbit import apply_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import build_topology, gate_queue, log_queue
from apc_cli.doctor import Finding, Status
from apc_cli.doctor.cluster import look_at_cluster

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(300)]
TOPOLOGY = build_topology(1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateCluster]:
    """With the management API on its first node."""
    (port,) = free_ports(1)
    lines = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\n"
    with PrivateCluster(lines, plugins=["rabbitmq_management"]) as running:
        monkeypatch.setenv("APC_MANAGEMENT_URL", f"http://guest:guest@127.0.0.1:{port}")
        yield running


async def test_what_is_wrong_with_a_cluster_is_named(cluster: PrivateCluster) -> None:
    settings = BusSettings(amqp_url=SecretStr(cluster.url()))
    await apply_rabbit(cluster.url(), TOPOLOGY)

    async def found() -> list[Finding]:
        return [one for one in await look_at_cluster(settings, TOPOLOGY) if one.status is not Status.OK]

    async def is_found() -> bool:
        return bool(await found())

    assert await found() == []
    first, second, third = cluster.nodes
    leave = f'rabbit_quorum_queue:delete_member(<<"/">>, <<"{log_queue(0)}">>, \'{second.name}\').'
    await asyncio.to_thread(first.ctl, "eval", leave)
    await until(is_found)  # the node tells its view some seconds late
    (few,) = await found()
    assert few.status is Status.WRONG and log_queue(0) in few.finding
    assert few.fix.startswith("rabbitmq-queues grow ")

    connection = await aio_pika.connect(first.url())
    channel = await connection.channel()
    binding = next(one for one in TOPOLOGY.bindings if one.queue == gate_queue(0))
    queue = await channel.get_queue(gate_queue(0))
    await queue.unbind(binding.exchange, binding.key)
    await connection.close()
    lost = [one for one in await found() if "missing on the node at 127.0.0.1" in one.finding]
    assert [one.fix for one in lost] == ["apc topology apply"]

    async def is_down() -> bool:
        return any(f"node {third.name} is down" in one.finding for one in await found())

    await asyncio.to_thread(third.kill)
    await until(is_down, 60)
