"""One orchestrator and one persister, each a process, on their own broker and database."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from pydantic import SecretStr
from tests.support.servers import PrivateNode
from tests.support.traffic import ScriptedAgents, until

from apc_bus.database import open_pool
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, LogKeySettings
from apc_bus.topology import build_topology
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate
from apc_persister.evidence.checkpoint import ensure_key
from benchmarks.soak.hostile_acts import CAST, MALLORY
from benchmarks.soak.processes import KeptProcess

PATIENCE_SECONDS = 300.0
AGENTS = "SELECT count(*) FROM apc_log.agents"
EPOCHS = "SELECT count(*) FROM apc_log.shard_epochs"


@dataclass(frozen=True, slots=True)
class HostileSystem:
    """A running system. `agents` is honest and speaks as the operator; `mallory` has its own broker user."""

    gate: KeptProcess
    writer: KeptProcess
    agents: ScriptedAgents
    mallory: RabbitBus
    pool: asyncpg.Pool

    async def gate_starts(self) -> int:
        """Return how often an orchestrator has taken the shard: more than once, and it was restarted or failed."""
        return max(self.gate.starts, int(await self.pool.fetchval(EPOCHS)))


@asynccontextmanager
async def hostile_system(folder: Path, config: str = "") -> AsyncIterator[HostileSystem]:
    """Start it, with every agent registered; `config` is for rabbitmq.conf.

    Raises:
        BusUnavailable: RabbitMQ is not installed.
    """
    async with AsyncExitStack() as stack:
        data = Path(tempfile.mkdtemp(prefix="apc-hostile-"))
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        database = await start_embedded(data)
        stack.push_async_callback(database.stop)
        await migrate(database.url)
        node = PrivateNode(config)
        stack.push_async_callback(asyncio.to_thread, node.close)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.ctl, "add_user", MALLORY, MALLORY)
        await asyncio.to_thread(node.ctl, "set_permissions", MALLORY, "^$", ".*", ".*")
        environment = {
            "APC_AMQP_URL": node.url(),
            "APC_DATABASE_URL": database.url,
            "APC_DATABASE_POOL": "3",
            "APC_DATA_DIR": str(folder),
            "APC_LOG_KEY_FILE": str(folder / "log-key.pem"),
        }
        os.environ["APC_LOG_KEY_FILE"] = environment["APC_LOG_KEY_FILE"]
        ensure_key(LogKeySettings())
        pool = await open_pool(database.url, max_size=2)
        stack.push_async_callback(pool.close)
        bus, mallory = await _bus(stack, node.url()), await _bus(stack, node.url(user=MALLORY, password=MALLORY))
        agents = ScriptedAgents(bus, CAST)
        await apply_rabbit(node.url(), build_topology(1, agents.queues))
        writer, gate = (
            KeptProcess(name, ("apc_cli", "serve", name), folder, environment) for name in ("persister", "orchestrator")
        )
        for process in (writer, gate):
            stack.push_async_callback(process.end)
        await agents.register({MALLORY: MALLORY})

        async def are_registered() -> bool:
            return bool(await pool.fetchval(AGENTS) == len(CAST))

        await until(are_registered, PATIENCE_SECONDS)
        yield HostileSystem(gate, writer, agents, mallory, pool)


async def _bus(stack: AsyncExitStack, url: str) -> RabbitBus:
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(url)), purpose="hostile soak")
    stack.push_async_callback(bus.close)
    return bus
