"""The RabbitMQ adapter of the bus: least privilege, confirmed and mandatory publishes, a list of nodes."""

from apc_bus.rabbit.administration.declare import apply_rabbit
from apc_bus.rabbit.administration.definitions import export_definitions
from apc_bus.rabbit.administration.inspect import Inspection, inspect_rabbit, takes_message_of
from apc_bus.rabbit.bus import RabbitBus, connect_rabbit

__all__ = [
    "Inspection",
    "RabbitBus",
    "apply_rabbit",
    "connect_rabbit",
    "export_definitions",
    "inspect_rabbit",
    "takes_message_of",
]
