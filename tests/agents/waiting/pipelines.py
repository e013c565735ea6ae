"""Random handlers of pipelines side by side, and a worker that is killed and started again while they run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel
from tests.agents.conftest import PATIENCE, Gate, _idea, _make_packet

from apc_agents import Agent, HandlerContext, InMemoryStateStore, Role, Worker, WorkerSettings, message
from apc_agents.effects import InMemoryEffectStore
from apc_agents.running.delivery import SessionPosition
from apc_bus.consuming import handle
from apc_bus.in_memory import InMemoryBus
from apc_bus.topology import gate_queue
from apc_contracts import (
    ErrorPayload,
    IdeaPayload,
    Packet,
    PacketType,
    ReceiptKind,
    SignalPayload,
)
from apc_contracts.payloads.by_type import AnswerOutcome, AnswerSpec, Result
from apc_contracts.vocabulary import PROTOCOL_1_1, Signal
from apc_contracts.wire.parsing import payload_hash

HOUR = timedelta(hours=1)
PAUSES = (0.0, 0.0, 0.001, 0.002)
"""Seconds of a pause, drawn again in each run."""


@message("riddle/1")
class Riddle(BaseModel):
    text: str


@dataclass(frozen=True)
class Step:
    """One call: `once`, `emit`, `named` (an emit, and an effect named by its packet), `origin`, `fact` or `pause`."""

    kind: str
    word: str = ""


@dataclass(frozen=True)
class Pipelines:
    """Parts `in turn`, side by side with `gather`, or in a `group`."""

    how: str
    parts: tuple["Step | Pipelines", ...]


@dataclass(frozen=True)
class Wait:
    """A wait of the handler itself, with pipelines that go on meanwhile; before a `late` one the handler pauses."""

    kind: str
    beside: Pipelines | None = None


Part = Step | Pipelines
Program = tuple[Part | Wait, ...]


def _numbered(part: Part, place: str) -> Part:
    """Give each effect its own name, and what an effect is named by; other packets may say the same in several places.

    Which of two pipelines has emitted which of two equal packets is not known after a crash.
    """
    if isinstance(part, Pipelines):
        return Pipelines(part.how, tuple(_numbered(one, f"{place}.{n}") for n, one in enumerate(part.parts)))
    return Step(part.kind, place) if part.kind in ("once", "named") else part


def numbered(program: Program) -> Program:
    """Return the program with a name for each effect."""
    return tuple(
        Wait(one.kind, None if one.beside is None else _numbered(one.beside, f"{n}"))  # type: ignore[arg-type]
        if isinstance(one, Wait)
        else _numbered(one, f"{n}")
        for n, one in enumerate(program)
    )


_own_steps = st.builds(Step, st.sampled_from(["once", "named", "pause", "origin", "fact"]))
_steps = st.one_of(_own_steps, st.builds(Step, st.just("emit"), st.sampled_from(["a", "b"])))


def _trees_of(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[Pipelines]:
    parts = st.recursive(
        steps,
        lambda inner: st.builds(
            Pipelines,
            st.sampled_from(["in turn", "gather", "group"]),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
        ),
        max_leaves=6,
    )
    return st.builds(
        Pipelines, st.sampled_from(["gather", "group"]), st.lists(parts, min_size=2, max_size=3).map(tuple)
    )


_trees = _trees_of(_steps)
waits = st.builds(Wait, st.sampled_from(["ask", "request", "both"]))
_beside = st.builds(Wait, st.just("ask"), _trees)
_late = st.builds(Wait, st.just("late"), _trees_of(_own_steps))
programs = st.lists(st.one_of(_trees, _steps, waits, _beside), min_size=2, max_size=4).map(tuple).map(numbered)
"""Handlers."""
late_programs = st.lists(st.one_of(_late, waits), min_size=2, max_size=3).map(tuple).map(numbered)
"""Handlers whose pipelines come to their calls before a wait in one run, and after it in another.

Each effect has another name: of equal packets a pipeline may take the record of another one.
"""
changeable = st.tuples(_trees, waits, _trees).map(numbered)
"""Handlers whose first part is recorded at a wait."""


def steps_of(program: "Program | Part | Wait") -> list[Step]:
    """Return every step."""
    if isinstance(program, Step):
        return [program]
    if isinstance(program, Wait):
        return [] if program.beside is None else steps_of(program.beside)
    parts: tuple[Any, ...] = program.parts if isinstance(program, Pipelines) else program
    return [step for part in parts for step in steps_of(part)]


@dataclass
class World:
    """What the runs of a handler have left behind."""

    made: Counter[str] = field(default_factory=Counter)
    ends: list[Any] = field(default_factory=list)
    steps_left: int | None = None
    """Steps until the worker is killed; None = it lives."""
    is_dying: asyncio.Event = field(default_factory=asyncio.Event)
    chance: Random = field(default_factory=Random)

    async def step(self) -> None:
        """Note a step of the handler; does not return when the worker dies here."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.is_dying.set()
                await asyncio.Event().wait()


class Handler:
    """Runs a program."""

    def __init__(self, program: Program, world: World) -> None:
        self._program = program
        self._world = world
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

        @self.agent.on(PacketType.IDEA)
        async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            ended = [await self._run(part, ctx) for part in self._program]
            await world.step()
            world.ends.append(ended)

    async def _run(self, part: Any, ctx: HandlerContext) -> Any:
        if isinstance(part, Step):
            return await self._step(part, ctx)
        if isinstance(part, Wait):
            return await self._wait(part, ctx)
        if part.how == "in turn":
            return [await self._run(one, ctx) for one in part.parts]
        if part.how == "gather":
            return await asyncio.gather(*(self._run(one, ctx) for one in part.parts))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run(one, ctx)) for one in part.parts]
        return [task.result() for task in tasks]

    async def _wait(self, wait: Wait, ctx: HandlerContext) -> Any:
        if wait.beside is not None:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._run(wait.beside, ctx))
                if wait.kind == "late":
                    await self._step(Step("pause"), ctx)
                approval = await ctx.ask("Ship?", to=Role("manager"), timeout=HOUR)
            return [task.result(), approval.outcome]
        question = ctx.ask("Ship?", to=Role("manager"), timeout=HOUR)
        if wait.kind == "ask":
            return (await question).outcome
        request = ctx.request(Riddle(text="why"), to="blue-1", returns=Riddle)
        if wait.kind == "request":
            question.take()
            return (await request).text
        approval, riddle = await ctx.gather(question, request)
        return [approval.outcome, riddle.text]

    async def _step(self, step: Step, ctx: HandlerContext) -> Any:
        world = self._world
        await world.step()
        match step.kind:
            case "pause":
                return await asyncio.sleep(world.chance.choice(PAUSES))
            case "fact":
                return ctx.step
            case "origin":
                return str(ctx.new_origin())
            case "once":
                return await ctx.once(step.word, self._effect(step.word))
        packet = await ctx.emit(_idea(step.word), to="b-1")
        if step.kind == "named":
            name = f"of {packet.packet_id}"
            await ctx.once(name, self._effect(name))
        return str(packet.packet_id)

    def _effect(self, name: str) -> Any:
        async def make() -> str:
            self._world.made[name] += 1
            return name

        return make


class Killing:
    """A gate that answers each question, and a worker that may be killed; what it has saved stays."""

    def __init__(self, handler: Handler) -> None:
        self.gate = Gate(handler.agent)
        self.handler = handler
        self.states, self.effects = InMemoryStateStore(), InMemoryEffectStore()
        self.task = _make_packet(_idea("task"), ttl=HOUR)
        self.answered: set[UUID] = set()
        self._position = SessionPosition(contract="task")

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """The gate collects, and has delivered the task."""
        async with handle(self.gate.bus, gate_queue(0), self.gate.collect, prefetch=1):
            await self.gate.deliver(self.task, self._position)
            yield

    async def live(self, world: World, handler: Handler | None = None) -> None:
        """Run a worker until it is killed, a question is open, or the handler has ended; answers before it starts."""
        bus, stop = self.gate.connect(), asyncio.Event()
        settings = WorkerSettings(shards=1, database_url=None, drain_timeout=timedelta(0))
        agent = (handler or self.handler).agent
        worker = Worker(agent, bus, settings=settings, states=self.states, effects=self.effects)
        world.is_dying.clear()
        running = asyncio.create_task(worker.run(stop))
        dying, ended = asyncio.create_task(world.is_dying.wait()), asyncio.create_task(self._until_quiet(world))
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait((running, dying, ended), return_when=asyncio.FIRST_COMPLETED)
        await self._kill(running, bus)
        for one in (dying, ended):
            one.cancel()

    async def _kill(self, running: "asyncio.Task[None]", bus: InMemoryBus) -> None:
        """End the worker so that it says nothing more to anybody."""
        await bus.close()
        running.cancel()
        await asyncio.wait((running,))

    async def _until_quiet(self, world: World) -> None:
        await self.gate.until(lambda: bool(self.open_questions or self.errors or self.is_done))

    async def answer(self) -> None:
        """Answer every open question."""
        for ask in self.open_questions:
            self.answered.add(ask.packet_id)
            await self.gate.deliver(answer_to(ask), self._position)

    @property
    def is_done(self) -> bool:
        """Whether the last part of the handler has been reported."""
        ends = self.gate.kinds(self.task)
        open_answers = [one for one in self.answered if not self._has_ended(one)]
        return ReceiptKind.OUTCOME in ends and not self.open_questions and not open_answers

    @property
    def open_questions(self) -> list[Packet]:
        """The ASKs that nobody has answered."""
        asks = {
            one.packet_id: one
            for one in self.gate.packets
            if isinstance(one.payload, SignalPayload) and one.payload.signal is Signal.ASK
        }
        return [one for packet_id, one in asks.items() if packet_id not in self.answered]

    @property
    def errors(self) -> list[str]:
        """What went wrong in the handler."""
        return [one.payload.message for one in self.gate.packets if isinstance(one.payload, ErrorPayload)]

    def emitted(self) -> dict[UUID, str]:
        """Return what was emitted. Fails for an id that stands for two contents."""
        found: dict[UUID, str] = {}
        for packet in self.gate.packets:
            if isinstance(packet.payload, IdeaPayload):
                word = found.setdefault(packet.packet_id, packet.payload.method_id)
                assert word == packet.payload.method_id, "one id stands for two contents"
        return found

    def _has_ended(self, ask: UUID) -> bool:
        return any(
            receipt.packet_id == answer_id(ask) and receipt.kind is ReceiptKind.OUTCOME
            for receipt in self.gate.receipts
        )


def answer_id(ask: UUID) -> UUID:
    """Return the id of the ANSWER to an ASK."""
    return UUID(int=ask.int ^ 1)


def answer_to(
    ask: Packet, outcome: AnswerOutcome = AnswerOutcome.APPROVED, person: str = "alice", age: timedelta = timedelta(0)
) -> Packet:
    payload = ask.payload
    assert isinstance(payload, SignalPayload)
    seen = payload_hash(payload)
    if payload.request is not None:
        result = Result(schema_id="riddle/1", content={"text": "because"})
        said = AnswerSpec(outcome=AnswerOutcome.ANSWERED, seen=seen, result=result)
    else:
        said = AnswerSpec(outcome=outcome, seen=seen)
    return _make_packet(
        SignalPayload(signal=Signal.ANSWER, answer=said),
        sender=person,
        parent=ask,
        age=age,
        packet_id=answer_id(ask.packet_id),
        version=PROTOCOL_1_1,
    )
