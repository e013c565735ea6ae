"""A cluster of three broker nodes and a Postgres, all of which may die."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.log import freeze_embedded, kill_embedded
from tests.support.servers import PrivateCluster, PrivateNode

from apc_bus.errors import BusUnavailable
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate

START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class MortalServers:
    """`database_url` stays the same over a restart."""

    cluster: PrivateCluster
    database_url: str
    database_folder: Path

    async def kill_nodes(self, indexes: list[int], hold: float) -> None:
        """SIGKILL for these nodes at once; started again after `hold` seconds."""
        nodes = [self.cluster.nodes[index] for index in indexes]
        await asyncio.to_thread(self.cluster.kill_nodes, nodes)
        await asyncio.sleep(hold)
        await self._start_nodes(nodes)

    async def _start_nodes(self, nodes: Sequence[PrivateNode]) -> None:
        """As a supervisor does: what does not come up is killed and started again."""
        for _ in range(START_ATTEMPTS):
            try:
                return await asyncio.to_thread(self.cluster.start_nodes, nodes)
            except BusUnavailable as error:
                print(f"a broker node is started once more: {error}", flush=True)
                await asyncio.to_thread(self.cluster.kill_nodes, nodes)
        raise BusUnavailable(f"broker nodes did not come up in {START_ATTEMPTS} attempts")

    async def freeze_node(self, index: int, hold: float) -> None:
        """SIGSTOP; returns when it has joined the others again."""
        node = self.cluster.nodes[index]
        node.suspend()
        try:
            await asyncio.sleep(hold)
        finally:
            node.resume()
        try:
            await asyncio.to_thread(node.await_startup)
        except BusUnavailable as error:
            print(f"a broker node that was frozen is started again: {error}", flush=True)
            await self.kill_nodes([index], 0)

    async def kill_database(self, hold: float) -> None:
        """SIGKILL; started again after `hold` seconds."""
        await asyncio.to_thread(kill_embedded, self.database_folder)
        await asyncio.sleep(hold)
        await start_embedded(self.database_folder)

    async def freeze_database(self, hold: float) -> None:
        """SIGSTOP for the server and its backends."""
        freeze_embedded(self.database_folder, signal.SIGSTOP)
        try:
            await asyncio.sleep(hold)
        finally:
            freeze_embedded(self.database_folder, signal.SIGCONT)


@asynccontextmanager
async def mortal_servers(logs: Path) -> AsyncIterator[MortalServers]:
    """Start them; leaving the context stops them and deletes their data, but for what the nodes logged.

    Raises:
        BusUnavailable: RabbitMQ is not installed.
    """
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="apc-soak-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = (await start_embedded(folder)).url
        stack.push_async_callback(_stop_database, folder)
        await migrate(url)
        cluster = PrivateCluster()
        stack.push_async_callback(asyncio.to_thread, cluster.close)
        for number, node in enumerate(cluster.nodes):
            stack.callback(shutil.copytree, node.logs, logs / f"node-{number}", ignore_dangling_symlinks=True)
        await asyncio.to_thread(cluster.start)
        yield MortalServers(cluster, url, folder)


async def _stop_database(folder: Path) -> None:
    await (await start_embedded(folder)).stop()
