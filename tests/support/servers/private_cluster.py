"""Three RabbitMQ nodes of our own that are one cluster, to be killed and frozen under load.

Measured (docs/explanation/faults.md): a frozen node holds up the others until `net_ticktime` declares it down, and one
that wakes again must not go on by itself: hence the short tick, and `pause_minority`.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import orjson
from tests.support.servers.port_mapper import LOOPBACK, PortMapper
from tests.support.servers.private_node import PrivateNode

NODES = 3
TICK_SECONDS = 8
"""`net_ticktime`: a node that says nothing for so long, and a quarter more at most, is down for the others."""
_CONFIG = f"""
net_ticktime = {TICK_SECONDS}
cluster_partition_handling = pause_minority
"""


class PrivateCluster:
    """Three broker nodes; every quorum queue has a member on each. About 600 MB while it runs.

    Blocking calls, as those of a node: from async code use `asyncio.to_thread`.

    Args:
        config: lines for the rabbitmq.conf of each node.
        advanced: the Erlang terms of their advanced.config.
        addresses: of the loopback network, one for each node; default 127.0.0.1 for all.
        plugins: of the first node.
        joins: whether `start` makes them one cluster; else each is alone until `join`.

    Raises:
        BusUnavailable: RabbitMQ is not installed, or a node does not start or join.
    """

    def __init__(
        self,
        config: str = "",
        advanced: str = "[].",
        addresses: Sequence[str] = (LOOPBACK,) * NODES,
        plugins: Iterable[str] = (),
        joins: bool = True,
    ) -> None:
        self._mapper = PortMapper([address for address in addresses if address != LOOPBACK])
        self._joins, self._config = joins, _CONFIG + config
        self.nodes: list[PrivateNode] = [
            PrivateNode(
                self._config, () if number else plugins, mapper=self._mapper, advanced=advanced, address=address
            )
            for number, address in enumerate(addresses)
        ]

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        """Return the AMQP URLs of all nodes, separated by commas, as APC_AMQP_URL takes them."""
        return ",".join(node.url(vhost, user, password) for node in self.nodes)

    def start(self) -> Self:
        """Start the nodes and make them one cluster."""
        self._mapper.start()
        self.start_nodes(self.nodes)
        for node in self.nodes[1:] if self._joins else ():
            self.join(node)
        return self

    def join(self, node: PrivateNode) -> None:
        """Make a node that runs one of the cluster of the first."""
        for command in (("stop_app",), ("join_cluster", self.nodes[0].name), ("start_app",)):
            node.ctl(*command)

    def add_node(self) -> PrivateNode:
        """Start one more node, which is alone until `join`."""
        node = PrivateNode(self._config, mapper=self._mapper)
        self.nodes.append(node)
        return node.start()

    def start_nodes(self, nodes: Iterable[PrivateNode]) -> None:
        """Start these at once: after a common death each waits for the others."""
        with ThreadPoolExecutor(NODES) as threads:
            list(threads.map(PrivateNode.start, nodes))

    def kill_nodes(self, nodes: Iterable[PrivateNode]) -> None:
        """SIGKILL for these, at once."""
        with ThreadPoolExecutor(NODES) as threads:
            list(threads.map(PrivateNode.kill, nodes))

    def persist_declarations(self) -> None:
        """As that of a node, on all of them."""
        with ThreadPoolExecutor(NODES) as threads:
            list(threads.map(PrivateNode.persist_declarations, self.nodes))

    def leader_of(self, queue: str, vhost: str = "/", *, asked: PrivateNode | None = None) -> PrivateNode:
        """Return the node whose member of a quorum queue leads; `asked` has to be running, default the first node."""
        rows = self._queues(vhost, asked)
        name = next(row["leader"] for row in rows if row["name"] == queue)
        return next(node for node in self.nodes if node.name == name)

    def members(self, vhost: str = "/") -> dict[str, int]:
        """Queue -> on how many nodes it is kept."""
        return {row["name"]: len(row["members"]) for row in self._queues(vhost, None)}

    def leaders(self, vhost: str = "/") -> dict[str, str]:
        """Queue -> the node whose member leads."""
        return {row["name"]: row["leader"] for row in self._queues(vhost, None)}

    def member_names(self, vhost: str = "/") -> list[list[str]]:
        """Return the nodes of each queue."""
        return [list(row["members"]) for row in self._queues(vhost, None)]

    def _queues(self, vhost: str, asked: PrivateNode | None) -> list[dict[str, str]]:
        printed = (asked or self.nodes[0]).ctl(
            "list_queues", "--vhost", vhost, "name", "leader", "members", "--formatter", "json"
        )
        found: list[dict[str, str]] = orjson.loads(printed)
        return found

    def close(self) -> None:
        """Stop everything and delete the folders; nothing that stands in a queue is kept, so none waits for it."""
        for node in self.nodes:
            node.resume()
        self.kill_nodes(self.nodes)
        for node in self.nodes:
            node.close()
        self._mapper.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
