"""A handler sets timers, the gate and the worker are started again, and each timer comes back once."""

from datetime import UTC, datetime, timedelta

from apc_agents import Agent, HandlerContext
from apc_contracts import DecisionPayload, Packet, PacketType, SignalPayload, TaskIrPayload
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
