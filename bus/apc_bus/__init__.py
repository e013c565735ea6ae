"""The bus: one port to a message broker and two adapters, RabbitMQ and in-process.

Also the topology, the log batch, the artifact store, and what every service shares: settings, logs, the pool.
Promises: a publish that returned is kept, a delivery that was not acknowledged comes again, a queue's order.
"""

import warnings
from typing import TYPE_CHECKING, Any

from apc_contracts.late import late_names

if TYPE_CHECKING:
    from apc_bus.artifacts import ArtifactStore
    from apc_bus.errors import BusError
    from apc_bus.in_memory import InMemoryBroker
    from apc_bus.port import Bus, Delivery, Message, Publication, QueueDepth, Subscription
    from apc_bus.settings import BusSettings, DatabaseSettings
    from apc_bus.topology import AgentQueues, Topology, build_topology

__all__ = [
    "AgentQueues",
    "ArtifactStore",
    "Bus",
    "BusError",
    "BusSettings",
    "DatabaseSettings",
    "Delivery",
    "InMemoryBroker",
    "Message",
    "Publication",
    "QueueDepth",
    "Subscription",
    "Topology",
    "build_topology",
]

if not TYPE_CHECKING:
    _late = late_names(
        __name__,
        {
            "apc_bus.artifacts": "ArtifactStore",
            "apc_bus.errors": "BusError",
            "apc_bus.in_memory": "InMemoryBroker",
            "apc_bus.port": "Bus Delivery Message Publication QueueDepth Subscription",
            "apc_bus.settings": "BusSettings DatabaseSettings",
            "apc_bus.topology": "AgentQueues Topology build_topology",
        },
    )

    def __getattr__(name: str) -> Any:
        """Return what is imported late, and InMemoryBroker for its former name, with a DeprecationWarning."""
        if name != "MemoryBroker":
            return _late(name)
        warnings.warn(
            "MemoryBroker is now InMemoryBroker; the old name goes in the next minor release", DeprecationWarning, 2
        )
        return _late("InMemoryBroker")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
