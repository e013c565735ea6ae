"""The RabbitMQ adapter of the bus: least privilege, confirmed and mandatory publishes, a list of nodes."""

from apc_bus.rabbit.administration import Inspection, apply_rabbit, delete_inbox, inspect_rabbit, takes_message_of
from apc_bus.rabbit.bus import RabbitBus, connect_rabbit
from apc_bus.rabbit.definitions import export_definitions

__all__ = [
    "Inspection",
    "RabbitBus",
    "apply_rabbit",
    "connect_rabbit",
    "delete_inbox",
    "export_definitions",
    "inspect_rabbit",
    "takes_message_of",
]
