"""Look at the queues of gates and log writers, through the broker or the socket of an in-process system."""

from apc_bus.port import QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import gate_queue, log_queue
from apc_client.acts.act_client import open_acts
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
