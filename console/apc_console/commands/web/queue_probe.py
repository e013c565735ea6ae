"""Look at the queues of gates, log writers and agents, through the broker or the socket of an in-process system."""

from collections.abc import Sequence

from apc_bus.port import QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import gate_queue, log_queue
from apc_client.local_acts import inbox_depths, open_acts
from apc_console.connections.broker import open_bus


class QueueProbe:
    """Asks the system that the settings name; each look opens its own connection.

    Args:
        settings: broker and shards, or the data folder.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings

    async def depths(self) -> dict[str, QueueDepth]:
        """Return queue -> depth. Raises InputUnusable, ServiceAway, BusError."""
        if not self._settings.amqp_nodes:
            async with open_acts(self._settings.data_dir) as sender:
                return await sender.depths()
        names = [queue(shard) for shard in range(self._settings.shards) for queue in (gate_queue, log_queue)]
        async with open_bus(self._settings) as bus:
            return {name: await bus.depth(name) for name in names}

    async def inboxes(self, agents: Sequence[str]) -> dict[str, QueueDepth]:
        """Return agent -> depth of its two queues together. Raises InputUnusable, ServiceAway, BusError."""
        if not self._settings.amqp_nodes:
            async with open_acts(self._settings.data_dir) as sender:
                return await sender.inboxes(agents)
        async with open_bus(self._settings) as bus:
            return await inbox_depths(bus, agents)
