"""An agent that sets timers, has a schedule and asks people: run as a process by tests that kill it.

What it does counts in `ctx.state`, and is told in the DECISION that ends a session.
"""

from datetime import UTC, datetime, timedelta

from pydantic import AwareDatetime, BaseModel
from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Role, Tick, message
from apc_contracts import Packet, SignalPayload
from apc_contracts.vocabulary import Right

MANAGERS = "release-manager"


@message("sleep/1")
class Sleep(BaseModel):
    """Set so many timers, the first one at `first`, each later than the one before."""

    count: int
    first: AwareDatetime
    apart_ms: int = 0


@message("slept/1")
class Slept(BaseModel):
    """How often each timer came, and how late."""

    came: dict[str, int]
    late_ms: list[float]


@message("errand/1")
class Errand(BaseModel):
    """Ask, and do it when it is approved."""

    number: int


@message("ran/1")
class Ran(BaseModel):
    """Who answered, and how often it was done."""

    by: str
    times: int


agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0], rights=[Right.SCHEDULE], concurrency=8)


@agent.on(Sleep)
async def sleep(sleep: Sleep, ctx: HandlerContext) -> None:
    ctx.state["expected"] = sleep.count
    for number in range(sleep.count):
        await ctx.wake(str(number), at=sleep.first + number * timedelta(milliseconds=sleep.apart_ms))


@agent.on_wake()
async def woken(wake: Packet[SignalPayload], ctx: HandlerContext) -> None:
    spec = wake.payload.wake
    assert spec is not None and spec.at is not None
    came, late = ctx.state.setdefault("came", {}), ctx.state.setdefault("late", [])
    came[spec.key] = came.get(spec.key, 0) + 1
    late.append((datetime.now(UTC) - spec.at) / timedelta(milliseconds=1))
    if len(came) == ctx.state.get("expected"):
        await ctx.complete(Slept(came=came, late_ms=late))


@agent.every("*/10 * * * *")
async def report(tick: Tick, ctx: HandlerContext) -> None:
    ctx.state["ticks"] = ctx.state.get("ticks", 0) + 1
    await ctx.complete(recommendation=f"{tick.instant.isoformat()} {ctx.state['ticks']}")


@agent.on(Errand)
async def run(errand: Errand, ctx: HandlerContext) -> None:
    approval = await ctx.ask(f"Run errand {errand.number}?", to=Role(MANAGERS), timeout=timedelta(hours=1))
    ctx.state["times"] = ctx.state.get("times", 0) + int(approval.approved)
    await ctx.complete(Ran(by=approval.by or "nobody", times=ctx.state["times"]))
