"""A handler sets timers, the gate and the worker are started again, and each timer comes back once."""

import json
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

from apc_agents import Agent, HandlerContext
from apc_contracts import DecisionPayload, Packet, PacketType, SignalPayload, TaskIrPayload
from apc_contracts.contract.contract import PACKAGED_CONTRACT
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.vocabulary import Signal

from ..judging.test_task_sessions import work
from .office import Office, asking, done

SOON = timedelta(milliseconds=400)
PENDING = "SELECT count(*) FROM apc_log.sessions, jsonb_each(document -> 'work' -> 'wakes')"


def sleeping() -> Agent:
    """Return an agent that sets three timers, two with the same key, and decides when both have come."""
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(PacketType.TASK_IR)
    async def begin(task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
        await ctx.wake("first", after=timedelta(hours=1))
        await ctx.wake("first", after=SOON)
        await ctx.wake("second", at=datetime.now(UTC) + 2 * SOON)

    @agent.on_wake("first")
    async def first(wake: Packet[SignalPayload], ctx: HandlerContext) -> None:
        ctx.state["came"] = [*ctx.state.get("came", []), "first"]

    @agent.on_wake()
    async def other(wake: Packet[SignalPayload], ctx: HandlerContext) -> DecisionPayload:
        assert wake.payload.wake is not None
        return done(" ".join([*ctx.state["came"], wake.payload.wake.key]))

    return agent


async def test_timers_come_back_after_everything_was_started_again(office: Office) -> None:
    async def are_set() -> bool:
        return bool(await office.house.pool.fetchval(PENDING) == 2)

    async with office.house.gate():
        await office.begin()
        async with office.worker(sleeping()):
            await office.house.until(are_set)
    async with office.house.gate(), office.worker(sleeping()):
        assert await office.decided() == "first second"


async def test_a_pause_moves_the_time_of_a_question(office: Office) -> None:
    """`apc approval list` shows when a question is due now."""
    async with office.house.gate():
        task = await office.begin()
        async with office.worker(asking()):
            before = await office.question()
            for signal in (Signal.PAUSE, Signal.RESUME):
                await office.house.publish(work("librarian", SignalPayload(signal=signal), parent=task))
                await office.house.quiet()
            after = await office.question()
    assert after.due_at > before.due_at


async def test_timers_that_are_due_at_once_wait_for_room_in_the_inbox(office: Office, tmp_path: Path) -> None:
    """Beyond the bound the broker would drop them, and their sessions would stand still."""
    bound, count = 4, 11
    file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    file["limits"]["outstanding_deliveries"] = bound
    (tmp_path / "contract.json").write_text(json.dumps(file))
    came: list[str] = []

    async def have_all_come() -> bool:
        signals = [one.payload for one in await office.house.handle("red-1") if isinstance(one.payload, SignalPayload)]
        assert len(signals) <= bound
        came.extend(signal.wake.key for signal in signals if signal.wake is not None)
        return len(came) >= count

    async with office.house.gate(contract=str(tmp_path / "contract.json")):
        task = await office.begin()
        await office.house.handle_all()
        for number in range(count):
            timer = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key=f"k{number}", after_ms=1000))
            await office.house.publish(work("red-1", timer, parent=task, version="apc/1.1"))
        await office.house.until(have_all_come)
    assert sorted(came) == sorted(f"k{number}" for number in range(count))
