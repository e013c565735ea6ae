"""What the commands need of a running system, whether it runs in this process or in supervised ones."""

import asyncio
from typing import Protocol

import asyncpg

from apc_bus.artifacts import ArtifactStore
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_console.errors import InputUnusable


class System(Protocol):
    """A running system: `embedded_system` and `supervised_system` make one each."""

    @property
    def pool(self) -> asyncpg.Pool:
        """Connections to the log's database, for reading."""
        ...

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store that the agents use."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises what ends the system before."""
        ...

    async def drain(self) -> None:
        """Stop agents, gate and log writer, each after what waits for it has been taken; idempotent."""
        ...


def has_broker(bus: BusSettings, database: DatabaseSettings) -> bool:
    """Return whether the system shall run over RabbitMQ. Raises InputUnusable with a broker and no database."""
    if bus.amqp_nodes and database.database_url is None:
        raise InputUnusable("APC_AMQP_URL is set: set APC_DATABASE_URL as well, or neither")
    return bool(bus.amqp_nodes)
