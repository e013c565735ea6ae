"""The in-process adapter of the bus: the semantics of the RabbitMQ one without its durability.

Everything lives in this process and ends with it; nothing is stored. It is meant for one process: the default
of `apc up` and `apc automl run`, and tests.
"""

from apc_bus.memory.broker import MemoryBroker
from apc_bus.memory.bus import MemoryBus

__all__ = ["MemoryBroker", "MemoryBus"]
