"""kill -9 of gate, log writer and agent around a timer and around a Tick: each comes once (matrix rows 47 and 48)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from tests.faults.deployment import Deployment
from tests.faults.killing.timing_agent import Sleep
from tests.faults.killing.timing_house import TimingHouse
from tests.support.log import replay_everything
from tests.support.traffic import until

SOON = timedelta(seconds=8)
"""Long enough to stop and start the processes before a timer is due."""
AN_HOUR = timedelta(hours=1)
GATE = ("gate.after_timer", "gate.after_log_confirm", "gate.after_delivery")
GATE_AT_TICK = ("gate.after_log_confirm:2", "gate.after_delivery:1")
PERSISTER = ("persister.before_commit:2", "persister.after_commit:2")
"""The first transaction is the gate's opening."""
AGENT = ("worker.before_state", "worker.after_state")
AGENT_AT_TICK = ("worker.before_tick", "worker.after_tick", *AGENT)
WAKES = """
SELECT count(*) FROM apc_log.packets
WHERE packet #>> '{payload,signal}' = 'WAKE' AND packet #>> '{sender,agent_id}' = 'orchestrator'
"""
TICKS = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_type = 'MESSAGE' AND verdict = 'accepted'"
Record = Callable[..., None]


async def kill_around_a_timer(house: TimingHouse, point: str) -> None:
    """Set a timer, stop everything, and let the one process die where the timer comes."""
    await house.persister()
    await house.gate()
    await house.register()
    await house.worker()
    due = datetime.now(UTC) + SOON
    async with house.opener():
        await house.open("s-1", Sleep(count=1, first=due))

        async def is_set() -> bool:
            return await house.pending() == 1

        await until(is_set)
        dying = point.partition(".")[0]
        await house.stop(persister=dying == "persister")
        assert datetime.now(UTC) < due, "not exercised: the timer was due before everything stood still"
        settings = {"APC_CRASH_AT": point}
        begun = {"persister": await house.persister(**settings)} if dying == "persister" else {}
        begun["gate"] = await house.gate(**settings if dying == "gate" else {})
        if dying == "worker":
            begun["worker"] = await house.worker(**settings)
        await begun[dying].dies()
        assert datetime.now(UTC) >= due, "not exercised: it died before the timer was due"
        await start_again(house, point)
        await house.ended(1)
        await house.drained()
        await house.stop()
    # Of this session: the agent also has a schedule, whose moment may come while the test runs.
    ((_, result, _),) = [row for row in await house.results() if row["session_id"] == "s-1"]
    assert orjson.loads(result)["came"] == {"0": 1}
    assert await house.pool.fetchval(WAKES) == 1


async def kill_around_a_tick(house: TimingHouse, point: str) -> None:
    """Start with a firing that is due, and let the one process die on its way."""
    settings = {"APC_CRASH_AT": point}
    await house.persister()
    await house.gate()
    await house.register()
    await house.stop()
    await house.schedule_since(AN_HOUR)
    persister = await house.persister(**settings if point.startswith("persister") else {})
    gate = await house.gate(**settings if point.startswith("gate") else {})
    worker = await house.worker(**settings if point.startswith("worker") else {})
    await {"gate": gate, "persister": persister, "worker": worker}[point.partition(".")[0]].dies()
    assert await house.results() == [] or point.startswith(("persister", "worker.after")), "not exercised: it is over"
    if point.startswith("worker"):
        await house.worker()
    else:
        await start_again(house, point, with_worker=False)
    await house.ended(1)
    await house.drained()
    await house.stop()
    ((_, _, said),) = await house.results()
    assert said.endswith(" 1"), "its state counts it once"
    assert await house.pool.fetchval(TICKS) == 1


async def start_again(house: TimingHouse, point: str, *, with_worker: bool = True) -> None:
    """Start what has died, and the worker that was not there."""
    if point.startswith("persister"):
        await house.persister()
    elif point.startswith("gate"):
        await house.gate()
    if with_worker:
        await house.worker()


@pytest.mark.long
@pytest.mark.parametrize("point", ["gate.after_log_confirm"])
async def test_a_process_killed_around_a_timer(deployment: Deployment, point: str, exercised: Record) -> None:
    house = TimingHouse(deployment)
    await kill_around_a_timer(house, point)
    await replay_everything(house.pool)
    exercised("SIGKILL around a timer", packets=2, lost=0, doubled=0)


@pytest.mark.faults
@pytest.mark.parametrize("point", [one for one in (*GATE, *PERSISTER, *AGENT) if one != "gate.after_log_confirm"])
async def test_every_process_killed_around_a_timer(deployment: Deployment, point: str, exercised: Record) -> None:
    house = TimingHouse(deployment)
    await kill_around_a_timer(house, point)
    await replay_everything(house.pool)
    exercised("SIGKILL around a timer", packets=2, lost=0, doubled=0)


@pytest.mark.faults
@pytest.mark.parametrize("point", [*GATE_AT_TICK, *PERSISTER, *AGENT_AT_TICK])
async def test_every_process_killed_around_a_tick(deployment: Deployment, point: str, exercised: Record) -> None:
    house = TimingHouse(deployment)
    await kill_around_a_tick(house, point)
    await replay_everything(house.pool)
    exercised("SIGKILL around a Tick", packets=2, lost=0, doubled=0)
