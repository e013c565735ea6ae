"""The servers die: the broker and the database, with everything in flight, and come back with their data."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.support.log import kill_embedded
from tests.support.servers import PrivateNode
from tests.support.traffic import until

from apc_persister.database.embedded import start_embedded

BACKLOG, MORE = 200, 200
ROUNDS = 5
Record = Callable[[str, Any, float], None]
pytestmark = pytest.mark.faults


def has_handled(deployment: Deployment, count: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: the workers have handled so many deliveries."""

    async def holds() -> bool:
        return sum(len(worker.effects) for worker in deployment.workers.values()) >= count

    return holds


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_the_broker_is_killed(
    seed: int, own_node: PrivateNode, postgres_url: str, deploy: Deploy, record: Record
) -> None:
    """Matrix row 12: what was confirmed is there again; the others were told nothing, and send again."""
    chance = random.Random(seed)
    async with deploy(own_node.url(), postgres_url) as deployment:
        await asyncio.to_thread(own_node.persist_declarations)
        await deployment.open_session()
        await deployment.send_load(chance, BACKLOG)
        services = {name: await deployment.serve(name) for name in ("persister", "orchestrator")}
        async with deployment.working():
            await until(has_handled(deployment, chance.randint(1, BACKLOG // 2)))
            sending = asyncio.create_task(deployment.send_load(chance, MORE))
            await asyncio.to_thread(own_node.kill)
            await until(services["orchestrator"].says("shard_left"))
            await asyncio.to_thread(own_node.start)
            repaired_at = monotonic()
            await sending
            await deployment.drain(patience=120)
        await deployment.check(fenced_allowed=True)
        record("SIGKILL of the broker", deployment, repaired_at)


@pytest.mark.timeout(240)
async def test_the_broker_freezes(own_node: PrivateNode, postgres_url: str, deploy: Deploy) -> None:
    """Every connection is given up; no process ends by itself, the standby neither, and all serve when it goes on."""
    chance, short = random.Random(), {"APC_HEARTBEAT": "1", "APC_CONNECT_TIMEOUT": "1"}
    async with deploy(own_node.url(), postgres_url) as deployment:
        await deployment.open_session()
        services = [await deployment.serve(name, **short) for name in ("persister", "orchestrator", "orchestrator")]
        async with deployment.working():
            await deployment.send_load(chance, BACKLOG)
            for service in services:
                await until(service.says("gate_stands_by" if service.name == "orchestrator" else "persister_started"))
            own_node.suspend()
            try:
                for service in services:
                    await until(service.says("broker_awaited"))
            finally:
                own_node.resume()
            await deployment.send_load(chance, MORE)
            await deployment.settle(patience=120)
        assert [service.process.returncode for service in services] == [None] * len(services), "none has ended"
        await services[1].stop()
        async with deployment.working():
            await deployment.send_load(chance, MORE)  # the other gate serves too
            await deployment.settle(patience=120)
        await deployment.drain()
        await deployment.check(fenced_allowed=True)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_the_database_is_killed(
    seed: int, amqp_vhost_url: str, own_data: Path, own_database: str, deploy: Deploy, record: Record
) -> None:
    """Matrix row 14: the log waits in the broker; what was acknowledged had been committed."""
    chance = random.Random(seed)
    async with deploy(amqp_vhost_url, own_database) as deployment:
        await deployment.open_session()
        await deployment.send_load(chance, BACKLOG)
        services = {name: await deployment.serve(name) for name in ("persister", "orchestrator")}
        async with deployment.working():
            await until(has_handled(deployment, chance.randint(1, BACKLOG // 2)))
            sending = asyncio.create_task(deployment.send_load(chance, MORE))
            await asyncio.to_thread(kill_embedded, own_data)
            await sending
            await until(services["persister"].says("log_database_away"))
            await start_embedded(own_data)
            repaired_at = monotonic()
            await deployment.drain(patience=120)
        await deployment.check()
        record("SIGKILL of the database", deployment, repaired_at)
