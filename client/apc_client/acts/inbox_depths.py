"""How many messages wait for agents, and how many consumers their queues have."""

from collections.abc import Sequence

from apc_bus.errors import QueueMissing
from apc_bus.port import Bus, QueueDepth
from apc_bus.topology import agent_queue


async def inbox_depths(bus: Bus, agents: Sequence[str]) -> dict[str, QueueDepth]:
    """Return agent -> depth of its two queues together; an agent without queues is left out. Raises BusError."""
    found = {}
    for agent_id in agents:
        try:
            urgent, normal = [await bus.depth(agent_queue(agent_id, urgent=is_urgent)) for is_urgent in (True, False)]
        except QueueMissing:
            continue
        found[agent_id] = QueueDepth(urgent.messages + normal.messages, max(urgent.consumers, normal.consumers))
    return found
