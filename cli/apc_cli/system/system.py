"""What commands need of a running system, in this process or in supervised ones."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import asyncpg

from apc_bus.artifacts import ArtifactStore
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.errors import InputUnusable


class System(Protocol):
    """A running system: `embedded_system` and `supervised_system` each create one."""

    @property
    def pool(self) -> asyncpg.Pool:
        """Connections to the log's database, for reading."""
        ...

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store that the agents use."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises what ends the system earlier."""
        ...

    async def drain(self) -> None:
        """Stop agents, orchestrator and persister, each after its backlog is drained; idempotent."""
        ...


def has_broker(bus: BusSettings, database: DatabaseSettings) -> bool:
    """Return whether the system runs over RabbitMQ. Raises InputUnusable for a broker without a database."""
    if bus.amqp_nodes and database.database_url is None:
        raise InputUnusable("APC_AMQP_URL is set: set APC_DATABASE_URL as well, or neither")
    return bool(bus.amqp_nodes)


def refuse_people(people: Mapping[str, str]) -> None:
    """Raise InputUnusable when people are named: a system with a broker has them registered."""
    if people:
        raise InputUnusable(
            "--person goes without a broker: `apc agent add NAME --person --role ROLE --via USER` registers a person, "
            "who answers with `apc approval`"
        )
