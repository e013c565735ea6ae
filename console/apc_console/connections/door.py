"""The way of an operator's acts to the gate: the broker, or the socket of an in-process system."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from apc_bus.port import ActPublisher
from apc_bus.settings import BusSettings
from apc_client.local_acts import OPERATOR_USER, open_acts, socket_problem
from apc_console.connections.broker import broker_user, open_bus
from apc_console.errors import InputUnusable


@dataclass(frozen=True, slots=True)
class Door:
    """Where acts go in.

    Args:
        user: the broker user in whose name they come.
        shards: of the system.
        open: connects; raises InputUnusable, BusUnavailable, ServiceAway.
        is_socket: whether it is that of a system of this machine, which may have ended.
    """

    user: str
    shards: int
    open: Callable[[], AbstractAsyncContextManager[ActPublisher]]
    is_socket: bool = False

    async def check(self) -> None:
        """Raise InputUnusable or ServiceAway when the system behind the socket has ended; a broker is not asked."""
        if self.is_socket:
            async with self.open():
                pass


def require_broker(settings: BusSettings) -> None:
    """Raise InputUnusable when no broker is configured."""
    if not settings.amqp_nodes:
        raise InputUnusable("set APC_AMQP_URL: a system without a broker takes no sessions from other processes")


def find_door(settings: BusSettings) -> Door:
    """Return the door of the system that the settings name. Raises InputUnusable when it has none."""
    if not settings.amqp_nodes:
        folder, problem = settings.data_dir, socket_problem(settings.data_dir)
        if problem is not None:
            raise InputUnusable(problem)
        return Door(OPERATOR_USER, settings.shards, lambda: open_acts(folder), is_socket=True)
    return Door(broker_user(settings), settings.shards, lambda: open_bus(settings))
