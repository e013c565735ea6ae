"""The team of the cluster run: a lead, which asks a hand for a square. Each handler makes one effect outside the bus.

The lead has its own queues and two workers. The hand runs on a host, and a second process of it stands by.

The effects are lines of files in the folder of CREW_NOTES, so that the run can count how often each was made.
"""

import os
import time
from functools import partial
from pathlib import Path

from pydantic import BaseModel
from tests.faults.cluster.notes import EFFECT, RUN, has_effect, write_note

from apc_agents import Agent, EffectUnknown, HandlerContext, Retry, Team, message

ONCE = "note"


@message("cluster-job/1")
class Job(BaseModel):
    """The input of a session."""

    n: int


@message("cluster-part/1")
class Part(BaseModel):
    """What the lead asks of the hand."""

    n: int


@message("cluster-square/1")
class Square(BaseModel):
    """The hand's answer."""

    value: int


@message("cluster-done/1")
class Done(BaseModel):
    """The result; `steps` counts in the lead's state what it handled."""

    square: int
    steps: int


lead = Agent("lead", role="lead", swarm="crew")
hand = Agent("hand", role="hand", swarm="crew")


@lead.on(Job)
async def ask(job: Job, ctx: HandlerContext) -> None:
    """Pass the work on."""
    await _note(ctx, lead)
    ctx.state["steps"] = ctx.state.get("steps", 0) + 1
    await ctx.emit(Part(n=job.n), to="hand")


@hand.on(Part)
async def calculate(part: Part, ctx: HandlerContext) -> Square:
    """Do the work."""
    await _note(ctx, hand)
    return Square(value=part.n**2)


@lead.on(Square)
async def finish(square: Square, ctx: HandlerContext) -> None:
    """End the session."""
    await _note(ctx, lead)
    steps = ctx.state["steps"] = ctx.state.get("steps", 0) + 1
    await ctx.complete(Done(square=square.value, steps=steps))


team = Team("crew", agents=[lead, hand], entry="lead", input=Job)


async def _note(ctx: HandlerContext, agent: Agent) -> None:
    """Make the effect of this packet once, as docs/how-to/effects.md says for one that can be looked up."""
    packet_id, folder = ctx.packet.packet_id, Path(os.environ["CREW_NOTES"])
    write_note(folder, agent.agent_id, RUN, packet_id, time.time())
    make = partial(write_note, folder, agent.agent_id, EFFECT, packet_id, time.time())
    try:
        await ctx.once(ONCE, make)
    except EffectUnknown:
        if not has_effect(folder, agent.agent_id, packet_id):
            await ctx.release(ONCE)
            raise Retry(reason="the note was not written") from None
        await ctx.settle(ONCE, None)
