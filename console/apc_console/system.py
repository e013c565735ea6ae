"""What the commands need of a running system, whether it runs in this process or in supervised ones."""

import asyncio
from typing import Protocol

import asyncpg

from apc_bus.artifacts import ArtifactStore


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
