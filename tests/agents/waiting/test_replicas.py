"""Several processes of one agent: the answer may come to another one than asked."""

import asyncio
from datetime import timedelta

from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.agents.waiting.pipelines import HOUR, answer_to

from apc_agents import Agent, HandlerContext, InMemoryStateStore, Role, Worker, WorkerSettings
from apc_agents.running.delivery import SessionPosition
from apc_contracts import IdeaPayload, Packet, PacketType, SignalPayload

POSITION = SessionPosition(contract="task")


def asking(ends: list[str], may_go_on: asyncio.Event) -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        match idea.payload.method_id:
            case "note":
                ctx.state["notes"] = 1
            case "hold":
                await may_go_on.wait()
            case "ask":
                ends.append((await ctx.ask("Ship?", to=Role("manager"), timeout=HOUR)).outcome)

    return agent


async def test_a_process_that_knows_an_older_state_goes_on_with_the_answer(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """It has read the state of the session before another process asked."""
    ends: list[str] = []
    states, may_go_on, stop = InMemoryStateStore(), asyncio.Event(), asyncio.Event()
    stage = await make_stage(asking(ends, may_go_on), states, worker_prefetch=1)
    gate = await stage.start()
    note, hold = make_packet(idea("note")), make_packet(idea("hold"), session_id="session-2")
    await gate.deliver(note, POSITION)
    await gate.ended(note)
    await gate.deliver(hold, POSITION)
    settings = WorkerSettings(database_url=None, worker_prefetch=1, drain_timeout=timedelta(seconds=5))
    other = Worker(asking(ends, may_go_on), gate.connect(), settings=settings, states=states)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(other.run(stop))
        await other.ready.wait()
        task = make_packet(idea("ask"))
        await gate.deliver(task, POSITION)
        await gate.ended(task)
        stop.set()
    (ask,) = [one for one in gate.packets if isinstance(one.payload, SignalPayload)]
    may_go_on.set()
    answer = answer_to(ask)
    await gate.deliver(answer, POSITION)
    await gate.ended(answer)
    assert ends == ["approved"]
