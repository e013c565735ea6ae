"""Processes that are stopped, frozen and killed at no particular point, with a standby beside them or not."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest
from tests.faults.deployment import Deployment
from tests.support.traffic import until

BACKLOG, MORE = 200, 200
ROUNDS = 10
KILLS = 4
QUICK = {"APC_HEARTBEAT": "PT1S"}
Record = Callable[..., None]


def epoch_is(deployment: Deployment, epoch: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: the shard has come to this epoch."""

    async def holds() -> bool:
        return bool(await deployment.pool.fetchval("SELECT epoch FROM apc_log.shards") == epoch)

    return holds


def has_handled(deployment: Deployment, count: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: the workers have handled so many deliveries."""

    async def holds() -> bool:
        return sum(len(worker.effects) for worker in deployment.workers.values()) >= count

    return holds


@pytest.mark.long
async def test_a_rolling_restart_under_load(deployment: Deployment, record: Record) -> None:
    """Matrix row 46: SIGTERM of gate and log writer, each with a standby; all leave with 0, nothing is out of order."""
    chance = random.Random(46)
    await deployment.open_session()
    await deployment.send_load(chance, BACKLOG)
    first = {"persister": await deployment.serve("persister"), "orchestrator": await deployment.serve("orchestrator")}
    await until(epoch_is(deployment, 1))
    async with deployment.working():
        second = {name: await deployment.serve(name) for name in first}
        await until(has_handled(deployment, BACKLOG // 2))
        sending = asyncio.create_task(deployment.send_load(chance, MORE))
        repaired_at = monotonic()
        await first["persister"].stop()
        await first["orchestrator"].stop()
        await until(epoch_is(deployment, 2))
        await sending
        assert all(service.process.returncode is None for service in second.values())
        await deployment.drain()
    await deployment.check()
    record("SIGTERM of both, with standbys", deployment, repaired_at)


@pytest.mark.long
async def test_a_frozen_gate_comes_back(deployment: Deployment, record: Record) -> None:
    """Matrix row 16: frozen until its shard has gone to the standby; then it must not act on what it remembers."""
    chance = random.Random(16)
    await deployment.open_session()
    await deployment.serve("persister")
    frozen = await deployment.serve("orchestrator", **QUICK)
    await until(epoch_is(deployment, 1))
    async with deployment.working():
        await deployment.send_load(chance, BACKLOG)
        await deployment.serve("orchestrator", **QUICK)
        await until(has_handled(deployment, BACKLOG // 2))
        sending = asyncio.create_task(deployment.send_load(chance, MORE))
        frozen.freeze()
        await until(epoch_is(deployment, 2))
        frozen.thaw()
        repaired_at = monotonic()
        await until(frozen.says("shard_left"))
        await sending
        await deployment.drain()
    await deployment.check(fenced_allowed=True)
    record("SIGSTOP of the gate, with a standby", deployment, repaired_at)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_killed_at_any_moment(deployment: Deployment, seed: int, record: Record) -> None:
    """Either service, several times, wherever it happens to be."""
    chance = random.Random(seed)
    await deployment.open_session()
    running = {name: await deployment.serve(name) for name in ("persister", "orchestrator")}
    async with deployment.working():
        sending = asyncio.create_task(deployment.send_load(chance, BACKLOG + MORE))
        for number in range(KILLS):
            await until(has_handled(deployment, chance.randint(1, 40) + number * (BACKLOG + MORE) // KILLS))
            name = chance.choice(("persister", "orchestrator"))
            running[name].kill()
            repaired_at = monotonic()
            running[name] = await deployment.serve(name)
        await sending
        await deployment.drain()
    await deployment.check()
    record("SIGKILL at any moment", deployment, repaired_at, injected=KILLS)
