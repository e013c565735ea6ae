"""What a handler says about a state that is not saved yet leaves when the state is saved, once, whatever happens."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
from tests.agents.conftest import Gate, MakeIdea, MakePacket, StageMaker
from tests.agents.waiting.pipelines import HOUR
from tests.support.waiting import until

from apc_agents import Agent, AgentTestClient, HandlerContext, InMemoryStateStore, Reject, Retry, Role, StateInvalid
from apc_agents.handling import handler_context
from apc_agents.handling.state import SavedState
from apc_agents.running.delivery import SessionPosition
from apc_contracts import AckPayload, IdeaPayload, Packet, PacketType, ReceiptKind, SignalPayload, seal
from apc_minds.memory.in_memory import InMemoryMemoryStore

POSITION = SessionPosition(contract="task")


@dataclass
class Step:
    """What a handler may keep in its state."""

    cost: float


class SlowStore(InMemoryStateStore):
    """Holds each save up, before or after the commit, until `go_on` is set."""

    def __init__(self, *, is_held_after: bool = False) -> None:
        super().__init__()
        self.is_held_after = is_held_after
        self.saving, self.go_on = asyncio.Event(), asyncio.Event()

    async def save(self, agent_id: str, session_id: str, saved: SavedState) -> int:
        """Compare and set, sooner or later."""
        if not self.is_held_after:
            await self._hold()
        revision = await super().save(agent_id, session_id, saved)
        if self.is_held_after:
            await self._hold()
        return revision

    async def _hold(self) -> None:
        self.saving.set()
        await self.go_on.wait()


Handler = Callable[[Packet[IdeaPayload], HandlerContext], Awaitable[None]]


def counting(end: Handler | None = None) -> Agent:
    """Return an agent that counts what it handles in its state, says how much that is, and does what `end` does."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def count(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        steps = ctx.state["steps"] = ctx.state.get("steps", 0) + 1
        await ctx.emit(named(idea, f"step {steps}"))
        if end is not None:
            await end(idea, ctx)

    return agent


def named(idea: Packet[IdeaPayload], name: str) -> IdeaPayload:
    """Return an IDEA with this name."""
    return idea.payload.model_copy(update={"method_id": name})


def said(gate: Gate) -> list[str]:
    """Return what the worker at this gate has said so far."""
    return [packet.payload.method_id for packet in gate.packets if isinstance(packet.payload, IdeaPayload)]


async def test_a_reply_to_an_emission_finds_the_state_that_the_emission_tells(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """The reply comes to another worker of the agent while the first is saving."""
    states = SlowStore()
    gates = [await (await make_stage(counting(), states)).start() for _ in range(2)]
    first = make_packet(idea())
    await gates[0].deliver(first)
    await states.saving.wait()
    await gates[0].settled()
    assert said(gates[0]) == [], "before the state is saved"
    states.go_on.set()
    await gates[0].until(lambda: said(gates[0]) == ["step 1"])
    reply = make_packet(idea(), parent=gates[0].packets[0])
    await gates[1].deliver(reply)
    await gates[1].ended(reply)
    assert said(gates[1]) == ["step 2"]


async def test_what_is_emitted_before_the_state_changes_leaves_at_once(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, states = Agent("sentinel-1", role="sentinel", swarm="hybrid"), SlowStore()

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        assert ctx.state == {}
        await ctx.emit(named(idea, "before"))
        ctx.state["steps"] = 1
        return named(idea, "returned")

    gate = await (await make_stage(agent, states)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await states.saving.wait()
    await gate.settled()
    assert said(gate) == ["before"]
    states.go_on.set()
    await gate.ended(packet)
    assert said(gate) == ["before", "returned"]


async def test_a_worker_that_ends_between_save_and_publishing_says_it_after_its_restart(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states, packets = SlowStore(is_held_after=True), [make_packet(idea()) for _ in range(2)]
    stage = await make_stage(counting(), states, drain_timeout=timedelta(0))
    gate = await stage.start()
    await gate.deliver(packets[0])
    await states.saving.wait()
    await stage.end()
    states.go_on.set()
    assert said(gate) == [] and ReceiptKind.OUTCOME not in gate.kinds(packets[0])
    gate = await (await make_stage(counting(), states)).start()
    for packet in packets:
        await gate.deliver(packet, attempt=2)
        await gate.ended(packet)
    assert said(gate) == ["step 1", "step 2"]


async def test_a_worker_that_ends_between_publishing_and_receipt_repeats_the_same_bytes(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states, packet, bodies = InMemoryStateStore(), make_packet(idea()), []
    for _ in range(2):
        gate = await (await make_stage(counting(), states)).start()
        await gate.deliver(packet)
        await gate.ended(packet)
        (message,) = [one for one in gate.messages if one.type == PacketType.IDEA]
        bodies.append((message.body, message.message_id, message.headers["apc-cause"], message.headers["apc-ordinal"]))
    assert bodies[0] == bodies[1]


async def test_a_handler_whose_state_another_worker_has_saved_says_only_what_its_last_run_says(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states = SlowStore()
    gate = await (await make_stage(counting(), states)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await states.saving.wait()
    others = SavedState(b'{"handled":[],"state":{"steps":5}}', 0)
    assert await InMemoryStateStore.save(states, "sentinel-1", "session-1", others) == 1
    states.go_on.set()
    await gate.ended(packet)
    assert said(gate) == ["step 6"]


@pytest.mark.parametrize(
    ("raised", "kind", "answers"),
    [
        (ValueError("no"), None, [PacketType.ERROR]),
        (Retry(reason="later"), ReceiptKind.RETRY, []),
        (Reject("no"), ReceiptKind.REJECT, [PacketType.NACK]),
    ],
)
async def test_a_handler_that_fails_has_said_nothing(
    make_stage: StageMaker,
    make_packet: MakePacket,
    idea: MakeIdea,
    raised: Exception,
    kind: ReceiptKind | None,
    answers: list[PacketType],
) -> None:
    """Not even the ACK of its packet: its sender gets the NACK."""

    async def fail(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.answer(AckPayload(acked_packet_id=idea.packet_id, ack_status="ACCEPTED"))
        await ctx.emit(AckPayload(acked_packet_id=idea.packet_id, ack_status="ACCEPTED"))
        raise raised

    states = InMemoryStateStore()
    gate = await (await make_stage(counting(fail), states)).start()
    packet = make_packet(idea(), requires_ack=True)
    await gate.deliver(packet)
    if kind is None:
        await gate.until(lambda: len(gate.packets) == 1)
    else:
        await gate.ended(packet, kind)
    await gate.settled()
    assert [one.packet_type for one in gate.packets] == answers
    assert await states.load("sentinel-1", "session-1") is None


@pytest.mark.parametrize("is_ended_between", [False, True])
async def test_a_handler_that_waits_says_what_it_said_before_it_asks(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, is_ended_between: bool
) -> None:
    """Also when the worker ends after the save of the wait."""

    async def ask(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.ask("Ship?", to=Role("manager"), timeout=HOUR)

    states, packet = SlowStore(is_held_after=True), make_packet(idea())
    stage = await make_stage(counting(ask), states, drain_timeout=timedelta(0))
    gate = await stage.start()
    await gate.deliver(packet, POSITION)
    await states.saving.wait()
    if is_ended_between:
        await stage.end()
        stage = await make_stage(counting(ask), states)
        gate = await stage.start()
        await gate.deliver(packet, POSITION)
    states.go_on.set()
    await gate.ended(packet)
    assert [type(one.payload) for one in gate.packets] == [IdeaPayload, SignalPayload]


async def test_what_needs_an_ack_leaves_before_the_save_behind_what_was_said_before(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    async def ask(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(named(idea, "asked"), to="b-1", requires_ack=True)
        await ctx.emit(named(idea, "acknowledged"))

    states = SlowStore()
    gate = await (await make_stage(counting(ask), states)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: len(gate.packets) == 2)
    acked = AckPayload(acked_packet_id=gate.packets[1].packet_id, ack_status="ACCEPTED")
    await gate.deliver(make_packet(acked, sender="b-1", parent=packet))
    await states.saving.wait()
    await gate.settled()
    assert said(gate) == ["step 1", "asked"]
    states.go_on.set()
    await gate.ended(packet)
    assert said(gate) == ["step 1", "asked", "acknowledged"]


async def test_more_than_a_document_may_hold_leaves_before_the_save(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_more(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        for number in range(4):
            await ctx.emit(named(idea, f"more {number}"))

    states, packet = SlowStore(), make_packet(idea())
    monkeypatch.setattr(handler_context, "MAX_HELD_BYTES", 2 * len(seal(packet).body))
    gate = await (await make_stage(counting(say_more), states)).start()
    await gate.deliver(packet)
    await states.saving.wait()
    await gate.settled()
    early = said(gate)
    states.go_on.set()
    await gate.ended(packet)
    everything = ["step 1", *(f"more {number}" for number in range(4))]
    assert said(gate) == everything and early == everything[: len(early)] and 2 <= len(early) < 5


async def test_a_packet_that_was_held_longer_than_it_lives_lives_from_the_save_on(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    ends = list[datetime]()

    async def outlive(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        packet = await ctx.emit(named(idea, "short"), ttl=timedelta(milliseconds=50))
        await until(lambda: datetime.now(UTC) > packet.expires)
        ends.append(packet.expires)

    gate = await (await make_stage(counting(outlive))).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert said(gate) == ["step 1", "short"]
    assert gate.packets[1].created_at > ends[0]


async def test_a_task_that_a_handler_has_left_behind_loses_nothing(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """It says something while the state is saved, after which nobody would publish what is held."""
    states, late = SlowStore(), list[asyncio.Task[None]]()

    async def leave_behind(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        async def say() -> None:
            await states.saving.wait()
            await ctx.emit(named(idea, "late"))

        late.append(asyncio.create_task(say()))

    gate = await (await make_stage(counting(leave_behind), states)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await states.saving.wait()
    await late[0]
    states.go_on.set()
    await gate.ended(packet)
    assert said(gate) == ["late", "step 1"]


async def test_a_document_keeps_what_its_saver_does_not_know_to_be_published(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states, packets = InMemoryStateStore(), [make_packet(idea()) for _ in range(4)]
    gates = [await (await make_stage(counting(), states)).start() for _ in range(2)]
    kept = []
    for number, packet in zip((0, 0, 1, 0), packets, strict=True):
        await gates[number].deliver(packet)
        await gates[number].ended(packet)
        kept.append(await unsent(states))
    ids = [packet.packet_id for packet in packets]
    assert kept == [{ids[0]}, {ids[1]}, {ids[1], ids[2]}, {ids[2], ids[3]}]


async def unsent(states: InMemoryStateStore) -> set[UUID]:
    """Return the packets whose emissions the saved document has."""
    stored = await states.load("sentinel-1", "session-1")
    assert stored is not None
    return set(map(UUID, orjson.loads(stored[0])["unsent"]))


async def test_the_conversation_has_what_was_said_and_nothing_of_a_handler_that_failed(
    make_packet: MakePacket, idea: MakeIdea
) -> None:
    """Also what a worker had no time to add."""
    agent, memory = Agent("sentinel-1", role="sentinel", swarm="hybrid"), InMemoryMemoryStore()

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.snapshot()
        ctx.state["steps"] = ctx.state.get("steps", 0) + 1
        await ctx.emit(named(idea, "said"))
        if idea.payload.method_id == "fails":
            raise Reject("no")

    states = InMemoryStateStore(memory)
    async with AgentTestClient(agent, memory=memory, states=states) as client:
        await client.send(idea("fails"))
        assert await names(memory) == ["fails"]
        (told,) = await client.deliver(packet := make_packet(idea("works")))
        assert await names(memory) == ["fails", "works", "said"]
    await memory.delete_conversation("session-1")
    async with AgentTestClient(agent, memory=memory, states=states) as client:
        assert [one.packet_id for one in await client.deliver(packet)] == [told.packet_id]
    assert await names(memory) == ["said"]


async def names(memory: InMemoryMemoryStore) -> list[str]:
    """Return the names of the IDEAs in the conversation."""
    kept = await memory.retrieve_conversation("session-1")
    assert kept is not None
    return [orjson.loads(one.content)["method_id"] for one in kept.messages]


UNSTORABLE: dict[str, tuple[dict[str, Any], str]] = {
    "not a number": ({"scores": [0.5, math.nan]}, r"ctx\.state\.scores\[1\]: nan is no JSON number"),
    "infinity beside null": ({"best": -math.inf, "last": None}, r"ctx\.state\.best: -inf"),
    "a set": ({"seen": {1}}, "not JSON"),
    "a text that Postgres does not keep": ({"note": "a\x00b"}, r"ctx\.state\.note: U\+0000"),
    "a number in a dataclass": ({"step": Step(math.nan)}, r"ctx\.state\.step\.cost"),
}


@pytest.mark.parametrize("name", UNSTORABLE)
@pytest.mark.parametrize("act", ["emit", "acknowledged", "once", "wait"])
async def test_a_state_that_cannot_be_saved_stops_the_handler_before_anything_leaves(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, name: str, act: str
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    value, words = UNSTORABLE[name]
    failures: list[BaseException] = []
    made: list[str] = []

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state.update(value)
        try:
            if act == "once":
                await ctx.once("pay", lambda: made.append("paid"))
            elif act == "wait":
                await ctx.ask("Go on?", to=Role("lead"), timeout=HOUR)
            else:
                await ctx.emit(named(idea, "said"), requires_ack=act == "acknowledged")
        except StateInvalid as error:
            failures.append(error)
            raise

    gate = await (await make_stage(agent)).start()
    await gate.deliver(make_packet(idea()), POSITION)
    await until(gate.dead_letters)
    await gate.settled()
    (failure,) = failures
    assert re.search(words, str(failure)) and made == [] and said(gate) == []
    assert {one.packet_type for one in gate.packets} == {PacketType.ERROR}


async def test_what_json_writes_in_another_way_is_kept_as_before(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, states = Agent("sentinel-1", role="sentinel", swarm="hybrid"), InMemoryStateStore()
    packet_id = UUID(int=7)

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state.update({"id": packet_id, "pair": (1, None), "step": Step(0.5), "none": None})

    gate = await (await make_stage(agent, states)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    found = await states.load("sentinel-1", packet.trace.session_id)
    assert found is not None
    assert orjson.loads(found[0])["state"] == {
        "id": str(packet_id),
        "pair": [1, None],
        "step": {"cost": 0.5},
        "none": None,
    }
