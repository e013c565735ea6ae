"""The servers of the cluster run: three broker nodes and a Postgres, which die, freeze and lose each other."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from tests.support.servers import PrivateCluster, PrivateNode
from tests.support.servers.ports import free_ports
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries

from apc_bus.errors import BusUnavailable

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ADDRESSES = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
POSTGRES_VERSIONS = (15, 18)
"""Debian's, else that of the extra `embedded`."""
START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Servers:
    """Blocking calls to the servers go to threads: the driver's figures are taken beside them."""

    cluster: PrivateCluster
    postgres: PrivatePostgres
    postgres_port: int
    management_port: int

    @property
    def nodes(self) -> Sequence[PrivateNode]:
        """The broker nodes."""
        return self.cluster.nodes

    @property
    def management_url(self) -> str:
        """The URL of the management API; guest is its administrator."""
        return f"http://guest:guest@{self.nodes[0].address}:{self.management_port}"

    def database_url(self, user: str, password: str) -> str:
        """Return the URL of the database as a login."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.postgres_port}/apc"

    async def leader(self) -> PrivateNode:
        """Return the node that leads most queues."""
        counted = await self._leaders()
        return max(self.nodes, key=lambda node: counted[node.name])

    async def follower(self) -> PrivateNode:
        """Return the node that leads fewest queues."""
        counted = await self._leaders()
        return min(self.nodes, key=lambda node: counted[node.name])

    async def kill(self, nodes: Iterable[PrivateNode]) -> None:
        """Kill these nodes at once (SIGKILL)."""
        await asyncio.to_thread(self.cluster.kill_nodes, nodes)

    async def start(self, nodes: Sequence[PrivateNode]) -> None:
        """Start them as a supervisor does: what does not come up is killed and started again."""
        for attempt in range(START_ATTEMPTS):
            try:
                return await asyncio.to_thread(self.cluster.start_nodes, nodes)
            except BusUnavailable as error:
                print(f"a broker node did not come up, attempt {attempt + 1}: {error}", flush=True)
                await self.kill(nodes)
        raise BusUnavailable(f"broker nodes did not come up in {START_ATTEMPTS} attempts")

    async def join(self, node: PrivateNode) -> None:
        """Wait until a node that was frozen or cut off serves clients again; one that does not is restarted."""
        try:
            await asyncio.to_thread(node.await_startup)
        except BusUnavailable as error:
            print(f"a broker node did not join again and is restarted: {error}", flush=True)
            await self.kill([node])
            await self.start([node])

    def cut_off(self, node: PrivateNode) -> None:
        """Lose every IP packet between this node and the others, in both directions; clients still reach it."""
        for other in self.nodes:
            if other is not node:
                _filter("-A", node.address, other.address)
                _filter("-A", other.address, node.address)

    def reconnect(self, node: PrivateNode) -> None:
        """Undo `cut_off`."""
        for other in self.nodes:
            if other is not node:
                _filter("-D", node.address, other.address)
                _filter("-D", other.address, node.address)

    async def _leaders(self) -> Counter[str]:
        printed = await asyncio.to_thread(self.nodes[-1].ctl, "list_queues", "leader", "--formatter", "json")
        return Counter(one["leader"] for one in orjson.loads(printed))


def _filter(act: str, source: str, destination: str) -> None:
    rule = ["iptables", act, "INPUT", "-s", source, "-d", destination, "-j", "DROP"]
    done = subprocess.run(rule, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(rule)}: {done.stderr}"


@asynccontextmanager
async def running_servers() -> AsyncIterator[Servers]:
    """Start them; leaving the context stops them and deletes their data.

    Raises:
        BusUnavailable: RabbitMQ or Postgres is not installed.
    """
    binaries = next(filter(None, map(find_binaries, POSTGRES_VERSIONS)), None)
    if binaries is None:
        raise BusUnavailable("the run needs the programs of Postgres 15, or the extra `embedded`")
    async with AsyncExitStack() as stack:
        port, management = free_ports(2)
        postgres = await asyncio.to_thread(PrivatePostgres, binaries, port)
        stack.push_async_callback(asyncio.to_thread, postgres.close)
        config = (DEPLOY / "rabbitmq.conf").read_text()
        config += f"\nmanagement.tcp.ip = {ADDRESSES[0]}\nmanagement.tcp.port = {management}\n"
        advanced = (DEPLOY / "rabbitmq-advanced.config").read_text()
        cluster = PrivateCluster(config, advanced, ADDRESSES, plugins=["rabbitmq_management"])
        stack.push_async_callback(asyncio.to_thread, cluster.close)
        await asyncio.to_thread(cluster.start)
        yield Servers(cluster, postgres, port, management)
