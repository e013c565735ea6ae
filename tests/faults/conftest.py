"""The services as their own processes, a load of packets, and what must hold once all is drained."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.faults.cast import AWAY, CAST, POISON
from tests.faults.deployment import Deployment
from tests.faults.hostile.attacks import Attack
from tests.support.servers import PrivateNode
from tests.support.traffic import (
    ScriptedAgents,
    ScriptedWorker,
)

from apc_bus.database import open_pool
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import build_topology
from apc_contracts import Packet
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate


@asynccontextmanager
async def _deploy(amqp_url: str, database_url: str, folder: Path) -> AsyncIterator[Deployment]:
    """A fresh deployment on these servers; nothing runs yet."""
    settings = BusSettings(amqp_url=SecretStr(amqp_url))
    async with AsyncExitStack() as resources:
        pool = await open_pool(database_url, max_size=3)
        resources.push_async_callback(pool.close)
        bus = await connect_rabbit(settings, purpose="agents")
        resources.push_async_callback(bus.close)
        agents = ScriptedAgents(bus, CAST)
        await apply_rabbit(settings.amqp_nodes[0], build_topology(1, agents.queues))
        workers = {agent: ScriptedWorker(bus, agent, rejects=is_poison) for agent in CAST if agent != AWAY}
        deployment = Deployment(amqp_url, database_url, folder, bus, pool, agents, workers)
        resources.push_async_callback(deployment.close)
        yield deployment


def is_poison(packet: Packet) -> bool:
    """Return whether every worker rejects this packet."""
    return getattr(packet.payload, "intent", None) == POISON


Deploy = Callable[[str, str], AbstractAsyncContextManager[Deployment]]


@pytest.fixture
def deploy(tmp_path: Path) -> Deploy:
    """Makes a fresh deployment on given servers."""
    return lambda amqp_url, database_url: _deploy(amqp_url, database_url, tmp_path)


@pytest.fixture
def own_node() -> Iterator[PrivateNode]:
    """A broker that may die."""
    with PrivateNode() as node:
        yield node


@pytest.fixture
async def own_data() -> AsyncIterator[Path]:
    """The folder of a database that may die."""
    path = Path(tempfile.mkdtemp(prefix="apc-embedded-"))
    yield path
    await (await start_embedded(path)).stop()
    shutil.rmtree(path)


@pytest.fixture
async def own_database(own_data: Path) -> str:
    """URL of a database that may die."""
    server = await start_embedded(own_data)
    await migrate(server.url)
    return server.url


@pytest.fixture
async def deployment(amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """A fresh deployment on the servers of this run; nothing runs yet."""
    async with _deploy(amqp_vhost_url, postgres_url, tmp_path) as deployed:
        yield deployed


@pytest.fixture
def record(exercised: Callable[..., None]) -> Callable[..., None]:
    """Adds a line to the table at the end of the run: the fault, a deployment that was checked, the moment of its
    repair or of the last hostile input, and how often the fault was put in."""

    def add(fault: str, deployment: Deployment, repaired_at: float, *, injected: int = 1) -> None:
        assert deployment.drained_at is not None and deployment.lost is not None, "neither drained nor checked"
        exercised(
            fault,
            packets=len(deployment.sent.confirmed),
            injected=injected,
            lost=deployment.lost,
            redelivered=deployment.duplicates,
            doubled=sum(count - 1 for worker in deployment.workers.values() for count in worker.effects.values()),
            recovery_seconds=deployment.drained_at - repaired_at,
            longest_gap_seconds=deployment.confirms.longest_gap,
        )

    return add


@pytest.fixture
def attack(deployment: Deployment, record: Callable[..., None]) -> Attack:
    """Hostile input amid a load, on a fresh deployment."""
    return Attack(deployment, record)
