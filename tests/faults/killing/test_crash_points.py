"""kill -9 at every named point of the gate and of the log writer, under load (matrix rows 3 to 8)."""

import random
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from tests.faults.deployment import Deployment

BACKLOG, MORE = 300, 100
"""Packets that wait when the services start, and packets that are sent while they work, die and come back."""
ROUNDS = {"gate": 50, "persister": 20}
"""Of each point: 200 of the gate."""
GATE_POINTS = (
    "gate.after_receive",
    "gate.after_log_confirm",
    "gate.after_delivery_confirm",
    "gate.before_acknowledge",
)
PERSISTER_POINTS = ("persister.before_commit", "persister.after_commit")
BATCHES_BEFORE = range(4, 17)
"""Within the backlog, which is 19 batches: each of these has packets in it."""
TRANSACTIONS_BEFORE = range(3, 8)
Record = Callable[[str, Any, float], None]


async def kill_the_gate(deployment: Deployment, point: str, seed: int, record: Record) -> None:
    """One round: load, death, restart, drain, check."""
    chance = random.Random(seed)
    await deployment.open_session()
    await deployment.send_load(chance, BACKLOG)
    await deployment.serve("persister")
    gate = await deployment.serve("orchestrator", APC_CRASH_AT=f"{point}:{chance.choice(BATCHES_BEFORE)}")
    async with deployment.working():
        await deployment.send_load(chance, MORE)
        await gate.dies()
        redelivered = await deployment.redelivered_packets()
        await deployment.commit_everything()
        logged = await deployment.logged()
        assert redelivered, "not exercised: it died without unacknowledged packets"
        is_logged = redelivered[0] in logged
        assert is_logged or point == "gate.after_receive", "not exercised: nothing was logged and not acknowledged"
        assert deployment.sent.confirmed - logged, "not exercised: the load was through"
        before, repaired_at = deployment.duplicates, monotonic()
        await deployment.serve("orchestrator")
        await deployment.drain()
    if point in ("gate.after_delivery_confirm", "gate.before_acknowledge"):
        assert deployment.duplicates > before, "not exercised: nothing was delivered twice"
    await deployment.check()
    record(point, deployment, repaired_at)


async def kill_the_persister(deployment: Deployment, point: str, seed: int, record: Record) -> None:
    """One round: load, death, restart, drain, check."""
    chance = random.Random(seed)
    await deployment.open_session()
    await deployment.send_load(chance, BACKLOG)
    persister = await deployment.serve("persister", APC_CRASH_AT=f"{point}:{chance.choice(TRANSACTIONS_BEFORE)}")
    await deployment.serve("orchestrator")
    async with deployment.working():
        await deployment.send_load(chance, MORE)
        await persister.dies()
        batches = await deployment.redelivered_batches()
        assert batches, "not exercised: it died without unacknowledged batches"
        head = await deployment.pool.fetchval("SELECT batch_no FROM apc_log.shards")
        has_bitten = batches[0].batch_no <= head if point == "persister.after_commit" else batches[-1].batch_no > head
        assert has_bitten, "not exercised: it died elsewhere"
        repaired_at = monotonic()
        await deployment.serve("persister")
        await deployment.drain()
    await deployment.check()
    record(point, deployment, repaired_at)


async def test_the_gate_killed(deployment: Deployment, record: Record) -> None:
    await kill_the_gate(deployment, "gate.after_delivery_confirm", 0, record)


async def test_the_persister_killed(deployment: Deployment, record: Record) -> None:
    await kill_the_persister(deployment, "persister.after_commit", 0, record)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, ROUNDS["gate"] + 1))
@pytest.mark.parametrize("point", GATE_POINTS)
async def test_the_gate_killed_again_and_again(deployment: Deployment, point: str, seed: int, record: Record) -> None:
    await kill_the_gate(deployment, point, seed, record)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, ROUNDS["persister"] + 1))
@pytest.mark.parametrize("point", PERSISTER_POINTS)
async def test_the_persister_killed_again_and_again(
    deployment: Deployment, point: str, seed: int, record: Record
) -> None:
    await kill_the_persister(deployment, point, seed, record)
