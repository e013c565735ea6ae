"""A shard that moves between orchestrators, and one whose orchestrator is killed, under load."""

import random
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest
from tests.faults.deployment import Deployment
from tests.faults.killing.test_processes import Record, has_handled
from tests.support.traffic import until

from apc_log.placement import move_shard, read_held_shards

NAMES = ("gate-a", "gate-b")
MOVES = 2
HANDLED = 20
"""Deliveries between two moves."""
PAUSES = """
SELECT extract(epoch FROM max(gap) FILTER (WHERE is_next))::float8 AS longest,
       extract(epoch FROM max(gap) FILTER (WHERE NOT is_next))::float8 AS between,
       count(*) FILTER (WHERE is_next) AS takeovers
FROM (
    SELECT judged_at - lag(judged_at) OVER numbered AS gap, epoch <> lag(epoch) OVER numbered AS is_next
    FROM apc_log.agent_packets WHERE epoch > 0 WINDOW numbered AS (ORDER BY seq)
) AS judged WHERE gap IS NOT NULL
"""
"""The longest time without a verdict from one epoch to the next, and within an epoch, beside a steady load."""


def holds(deployment: Deployment, name: str, after: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: this orchestrator has the shard, with a later epoch."""

    async def found() -> bool:
        held = (await read_held_shards(deployment.pool))[0]
        return held.orchestrator == name and held.epoch > after

    return found


async def epoch_of(deployment: Deployment) -> int:
    return (await read_held_shards(deployment.pool))[0].epoch


async def go_on(deployment: Deployment) -> None:
    """Let the load go on for a while."""
    done = sum(len(worker.effects) for worker in deployment.workers.values())
    await until(has_handled(deployment, done + HANDLED), 60)


@pytest.mark.long
async def test_a_shard_moves_to_and_fro_under_load(deployment: Deployment, record: Record) -> None:
    """Matrix row 51: each move drains, fences by the next epoch and goes on; `log verify` finds nothing."""
    chance = random.Random(51)
    await deployment.open_session()
    await deployment.serve("persister")
    await deployment.serve("orchestrator", APC_ORCHESTRATOR=NAMES[0])
    await until(holds_any(deployment))
    await deployment.serve("orchestrator", APC_ORCHESTRATOR=NAMES[1])
    async with deployment.working():
        async with deployment.sending(chance):
            await go_on(deployment)
            for number in range(MOVES):
                taker, epoch = NAMES[(number + 1) % 2], await epoch_of(deployment)
                await move_shard(deployment.pool, 0, taker)
                await until(holds(deployment, taker, epoch), 60)
                await go_on(deployment)
        repaired_at = monotonic()
        await deployment.drain()
    await deployment.check()
    pauses = await deployment.pool.fetchrow(PAUSES)
    assert pauses is not None and pauses["takeovers"] == MOVES
    print(
        f"{MOVES} moves: at most {pauses['longest']:.2f} s without a verdict, within an epoch {pauses['between']:.2f} s"
    )
    record("a shard moved to another orchestrator", deployment, repaired_at, injected=MOVES)


@pytest.mark.long
async def test_the_shard_of_a_killed_orchestrator_is_taken_and_given_back(
    deployment: Deployment, record: Record
) -> None:
    """Matrix row 52: kill -9 of the one whose shard it is; another one takes it, and gives it back when it returns."""
    chance = random.Random(52)
    await deployment.open_session()
    await deployment.serve("persister")
    await move_shard(deployment.pool, 0, NAMES[1])
    await deployment.serve("orchestrator", APC_ORCHESTRATOR=NAMES[0])
    await until(holds_any(deployment))
    own = await deployment.serve("orchestrator", APC_ORCHESTRATOR=NAMES[1])
    async with deployment.working():
        async with deployment.sending(chance):
            await until(holds(deployment, NAMES[1], 1), 60)
            await go_on(deployment)
            epoch = await epoch_of(deployment)
            own.kill()
            await until(holds(deployment, NAMES[0], epoch), 60)
            await go_on(deployment)
            await deployment.serve("orchestrator", APC_ORCHESTRATOR=NAMES[1])
            await until(holds(deployment, NAMES[1], epoch), 60)
            await go_on(deployment)
        repaired_at = monotonic()
        await deployment.drain()
    await deployment.check(fenced_allowed=True)
    pauses = await deployment.pool.fetchrow(PAUSES)
    assert pauses is not None
    print(f"kill -9: at most {pauses['longest']:.2f} s without a verdict, within an epoch {pauses['between']:.2f} s")
    record("kill -9 of the orchestrator whose shard it is", deployment, repaired_at)


def holds_any(deployment: Deployment) -> Callable[[], Awaitable[bool]]:
    """Return a condition: somebody has the shard."""

    async def found() -> bool:
        held = (await read_held_shards(deployment.pool)).get(0)
        return held is not None and held.epoch > 0

    return found
