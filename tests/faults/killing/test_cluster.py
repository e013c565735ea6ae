"""A cluster of three broker nodes under load: nodes die and freeze, in all ways that one machine can do to them."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.support.servers import PrivateCluster, PrivateNode
from tests.support.traffic import until

from apc_bus.errors import BusUnavailable
from apc_bus.topology import gate_queue

BACKLOG, MORE = 100, 300
"""Packets confirmed before the fault, and after it before it is mended."""
LEADER_ROUNDS = 3
PATIENCE = 120
ADVANCED = Path(__file__).parents[3] / "deploy/rabbitmq-advanced.config"
DEAD_LETTER_PATIENCE = 180
"""What is dead-lettered to a queue whose leader dies is sent again by the broker, at its second look at the latest: a
minute with the configuration that ships."""
VHOST = "faults"
Record = Callable[[str, Any, float], None]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    """Three nodes that the tests of this module share; each leaves them running."""
    with PrivateCluster(advanced=ADVANCED.read_text()) as cluster:
        yield cluster


@pytest.fixture
async def deployment(cluster: PrivateCluster, postgres_url: str, deploy: Deploy) -> AsyncIterator[Deployment]:
    """A fresh deployment on the cluster, every queue on every node, with one gate and one log writer."""
    await asyncio.to_thread(cluster.nodes[0].add_vhosts, [VHOST])
    async with deploy(cluster.url(VHOST), postgres_url) as deployed:
        assert set((await asyncio.to_thread(cluster.members, VHOST)).values()) == {len(cluster.nodes)}
        await asyncio.to_thread(cluster.persist_declarations)
        await deployed.open_session()
        await deployed.serve("persister")
        await deployed.serve("orchestrator")
        yield deployed
    await asyncio.to_thread(cluster.nodes[0].await_startup)
    await asyncio.to_thread(cluster.nodes[0].ctl, "delete_vhost", VHOST)


async def leader(cluster: PrivateCluster, asked: PrivateNode | None = None) -> PrivateNode:
    """Return the node that leads the gate's queue."""
    found: list[PrivateNode] = []

    async def is_told() -> bool:
        with suppress(BusUnavailable):  # until the others have found a node to be down, the list has no end
            found.append(await asyncio.to_thread(cluster.leader_of, gate_queue(0), VHOST, asked=asked))
        return bool(found)

    await until(is_told, PATIENCE)
    return found[0]


def others(cluster: PrivateCluster, node: PrivateNode) -> list[PrivateNode]:
    """Return all nodes but this."""
    return [one for one in cluster.nodes if one is not node]


def refuses(node: PrivateNode) -> Callable[[], Awaitable[bool]]:
    """Return a condition: this node takes no clients."""

    async def holds() -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", node.port), 1).close()
            return False
        return True

    return holds


async def finish(deployment: Deployment, fault: str, repaired_at: float, record: Record) -> None:
    """Drain, check S1 to S8, record."""
    await deployment.drain(patience=DEAD_LETTER_PATIENCE)
    await deployment.check(fenced_allowed=True)
    record(fault, deployment, repaired_at)


@pytest.mark.parametrize("seed", range(LEADER_ROUNDS))
async def test_the_leader_is_killed(cluster: PrivateCluster, deployment: Deployment, seed: int, record: Record) -> None:
    """Matrix row 10: another member leads, and confirms go on before the node is back."""
    async with deployment.working():
        async with deployment.sending(random.Random(seed)):
            await until(deployment.confirms.reach(BACKLOG))
            node = await leader(cluster)
            deployment.confirms.begin()
            await asyncio.to_thread(cluster.kill_nodes, [node])
            await until(deployment.confirms.reach(MORE), PATIENCE)
            assert await leader(cluster, others(cluster, node)[0]) is not node, "not exercised: it leads"
        repaired_at = monotonic()
        await asyncio.to_thread(cluster.start_nodes, [node])
        await finish(deployment, "SIGKILL of the leading node", repaired_at, record)


async def test_a_follower_is_killed(cluster: PrivateCluster, deployment: Deployment, record: Record) -> None:
    """Matrix row 10, the other way: two of three are a majority."""
    async with deployment.working():
        async with deployment.sending(random.Random(10)):
            await until(deployment.confirms.reach(BACKLOG))
            node = others(cluster, await leader(cluster))[0]
            deployment.confirms.begin()
            await asyncio.to_thread(cluster.kill_nodes, [node])
            await until(refuses(node))
            await until(deployment.confirms.reach(MORE), PATIENCE)
        repaired_at = monotonic()
        await asyncio.to_thread(cluster.start_nodes, [node])
        await finish(deployment, "SIGKILL of a following node", repaired_at, record)


async def test_the_majority_is_lost(cluster: PrivateCluster, deployment: Deployment, record: Record) -> None:
    """Matrix row 11: nothing is confirmed until a majority is back, and then nothing that was confirmed is lost."""
    async with deployment.working():
        async with deployment.sending(random.Random(11)):
            await until(deployment.confirms.reach(BACKLOG))
            survivor, *lost = random.Random(11).sample(cluster.nodes, 3)
            deployment.confirms.begin()
            await asyncio.to_thread(cluster.kill_nodes, lost)
            await until(refuses(survivor))
            before, failures = deployment.confirms.count, deployment.confirms.failures
            await until(lambda: has_failed(deployment, failures), PATIENCE)
            assert deployment.confirms.count == before, "confirmed without a majority"
            repaired_at = monotonic()
            await asyncio.to_thread(cluster.start_nodes, lost)
            await until(deployment.confirms.reach(MORE), PATIENCE)
        await finish(deployment, "SIGKILL of two of three nodes", repaired_at, record)


async def has_failed(deployment: Deployment, before: int) -> bool:
    """Return whether a publish has failed since then."""
    return bool(deployment.confirms.failures > before)


async def test_all_nodes_are_killed(cluster: PrivateCluster, deployment: Deployment, record: Record) -> None:
    """Matrix row 12, of a cluster: what was confirmed stands on the disks."""
    async with deployment.working():
        async with deployment.sending(random.Random(12)):
            await until(deployment.confirms.reach(BACKLOG))
            deployment.confirms.begin()
            await asyncio.to_thread(cluster.kill_nodes, cluster.nodes)
            failures = deployment.confirms.failures
            await until(lambda: has_failed(deployment, failures), PATIENCE)
            repaired_at = monotonic()
            await asyncio.to_thread(cluster.start_nodes, cluster.nodes)
            await until(deployment.confirms.reach(MORE), PATIENCE)
        await finish(deployment, "SIGKILL of all three nodes", repaired_at, record)


async def test_the_leader_is_frozen(cluster: PrivateCluster, deployment: Deployment, record: Record) -> None:
    """Matrix row 13: the others declare it down and go on; when it wakes, it leads nobody."""
    async with deployment.working():
        async with deployment.sending(random.Random(13)):
            await until(deployment.confirms.reach(BACKLOG))
            node = await leader(cluster)
            deployment.confirms.begin()
            node.suspend()
            try:
                await until(deployment.confirms.reach(MORE), PATIENCE)
                assert await leader(cluster, others(cluster, node)[0]) is not node, "not exercised: it leads"
            finally:
                node.resume()
            repaired_at = monotonic()
            await until(deployment.confirms.reach(MORE), PATIENCE)
        await asyncio.to_thread(node.await_startup)
        await finish(deployment, "SIGSTOP of the leading node", repaired_at, record)
