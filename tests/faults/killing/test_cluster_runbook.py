"""The steps of docs/how-to/broker-cluster.md on private nodes, under load: join, grow, replace, restart, move."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.faults.killing.test_cluster import DEAD_LETTER_PATIENCE, MORE, VHOST
from tests.support.servers import PrivateCluster, PrivateNode
from tests.support.traffic import until

from apc_bus.topology import SUBSTRATE_STREAM

PATIENCE = 120
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[PrivateCluster]:
    """Three nodes that run and do not know each other."""
    with PrivateCluster(joins=False) as cluster:
        yield cluster


@pytest.fixture
async def deployment(cluster: PrivateCluster, postgres_url: str, deploy: Deploy) -> AsyncIterator[Deployment]:
    """A deployment on the first node alone, with a session."""
    first = cluster.nodes[0]
    await asyncio.to_thread(first.add_vhosts, [VHOST])
    async with deploy(first.url(VHOST), postgres_url) as deployed:
        await asyncio.to_thread(first.persist_declarations)
        await deployed.open_session()
        await deployed.serve("persister")
        await deployed.serve("orchestrator")
        yield deployed


async def goes_on(deployment: Deployment) -> None:
    """Wait until so many more packets are confirmed."""
    await until(deployment.confirms.reach(MORE), PATIENCE)


async def test_three_nodes_from_one_and_one_replaced_under_load(
    cluster: PrivateCluster, deployment: Deployment
) -> None:
    first, second, third = cluster.nodes
    async with deployment.working():
        async with deployment.sending(random.Random(1)):
            for node in (second, third):
                await asyncio.to_thread(cluster.join, node)
                await goes_on(deployment)
            members = await asyncio.to_thread(cluster.members, VHOST)
            assert set(members.values()) == {1}, "a queue stays on its node until it is told to grow"

            for node in (second, third):
                await grow(first, node)
            await asyncio.to_thread(first.queues, "rebalance", "quorum", "--vhost-pattern", VHOST)
            await until_members(cluster, 3)
            assert len(set((await asyncio.to_thread(cluster.leaders, VHOST)).values())) > 1, "all lead on one node"
            await goes_on(deployment)

            # The third is taken out. While it runs it gives its part of the stream back; a dead one cannot.
            await asyncio.to_thread(first.streams, "delete_replica", SUBSTRATE_STREAM, third.name, "--vhost", VHOST)
            await asyncio.to_thread(third.kill)
            await asyncio.to_thread(first.ctl, "forget_cluster_node", third.name)
            fourth = await asyncio.to_thread(cluster.add_node)
            await asyncio.to_thread(cluster.join, fourth)
            await grow(first, fourth)
            await until_members(cluster, 3)
            assert all(third.name not in names for names in (await asyncio.to_thread(cluster.member_names, VHOST)))
            await goes_on(deployment)

            # A restart of one node after the other, each when no queue would lose its majority.
            for node in (second, fourth):
                await asyncio.to_thread(node.control.run, "rabbitmq-upgrade", "await_online_quorum_plus_one")
                await asyncio.to_thread(node.stop)
                await goes_on(deployment)
                await asyncio.to_thread(node.start)
        await deployment.drain(patience=DEAD_LETTER_PATIENCE)
        await deployment.check(fenced_allowed=True)


async def grow(asked: PrivateNode, node: PrivateNode) -> None:
    """Have this node keep every queue and the stream too."""
    await asyncio.to_thread(asked.queues, "grow", node.name, "all", "--vhost-pattern", VHOST)
    await asyncio.to_thread(asked.streams, "add_replica", SUBSTRATE_STREAM, node.name, "--vhost", VHOST)


async def until_members(cluster: PrivateCluster, count: int) -> None:
    """Wait until every queue is kept on so many nodes."""

    async def holds() -> bool:
        return set((await asyncio.to_thread(cluster.members, VHOST)).values()) == {count}

    await until(holds, PATIENCE)


async def test_a_deployment_moves_to_another_broker_with_its_session_open(
    cluster: PrivateCluster, deployment: Deployment, postgres_url: str, deploy: Deploy
) -> None:
    async with deployment.working():
        await deployment.send_load(random.Random(2), MORE)
        await deployment.settle(DEAD_LETTER_PATIENCE)
    for service in deployment.services:
        await service.stop()

    other: PrivateNode = cluster.nodes[1]
    await asyncio.to_thread(other.add_vhosts, [VHOST])
    async with deploy(other.url(VHOST), postgres_url) as moved:
        moved.sent, moved.opening = deployment.sent, deployment.opening
        await moved.serve("persister")
        await moved.serve("orchestrator")
        async with moved.working():
            await moved.send_load(random.Random(3), MORE)
            moved.workers |= {f"{name} before": worker for name, worker in deployment.workers.items()}
            await moved.drain(DEAD_LETTER_PATIENCE)
            await moved.check()
