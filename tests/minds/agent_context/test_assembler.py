"""Snapshots for an invocation, the conversation they come from, and the filter that uses them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from apc_agents import Agent, AgentInvalid, AgentTestClient, HandlerContext, Reject
from apc_contracts import IdeaPayload, Packet, PacketType, Payload, SignalPayload
from apc_contracts.agent import AgentContext, ContextMessage, context_uuid
from apc_contracts.packet import Recipient
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_minds.memory import InMemoryMemoryStore, UnknownSession
from apc_minds.situation import BaseAgent, ContextAssembler, SessionManager, SituationSettings

MakePacket = Callable[..., Packet]
MakeIdea = Callable[..., IdeaPayload]


async def test_a_snapshot_tells_the_packet_and_the_conversation(make_packet: MakePacket, idea: MakeIdea) -> None:
    memory = InMemoryMemoryStore()
    assembler = ContextAssembler(memory, SituationSettings(recent_messages=2))
    said = [make_packet(idea(word)) for word in ("pump", "valve", "motor", "belt")]
    for packet in said:
        await assembler.record(packet, "sentinel-1")
        await assembler.record(packet, "sentinel-1")  # a handler that runs again
    asked = {"response_constraints": {"format": "json"}, "requested_action": "evaluate_data"}
    packet = make_packet(idea("pump"), parent=said[0], metadata={"agent_context": {"processing_directives": asked}})
    context = await assembler.assemble(packet, "sentinel-1", focus=["pump"], anomalies=["session_paused"])
    history, directives = context.interaction_history, context.processing_directives
    assert history is not None and history.recent_messages is not None and history.previous_exchange_summary
    assert [UUID(str((one.metadata or {})["message_id"])) for one in history.recent_messages] == [
        one.packet_id for one in said[2:]
    ]
    assert [one.sender_id for one in history.recent_messages] == ["builder-1", "builder-1"]
    assert "pump" in history.previous_exchange_summary
    assert history.relevant_message_ids == (said[0].packet_id, said[1].packet_id)
    assert history.full_history_reference == "session-1"
    assert (context.message_id, context.request_id) == (packet.packet_id, said[0].packet_id)
    assert context.session_id == context_uuid("session", "session-1")
    assert context.target_agent_id == context_uuid("agent", "sentinel-1")
    assert directives is not None and directives.response_constraints is not None
    assert (directives.priority, directives.response_constraints.format) == (4, "json")
    assert context.system_state is not None
    assert context.system_state.current_system_load in ("low", "medium", "high")
    assert context.system_state.active_anomalies == ("session_paused",)
    assert context.narrative_state is not None and context.narrative_state.symbolic_focus == ("pump",)
    assert context.custom_data is not None
    assert context.custom_data["apc"]["session_id"] == "session-1"  # type: ignore[call-overload]
    again = await assembler.assemble(packet, "sentinel-1")
    assert again.context_id != context.context_id


async def test_tokens_bound_the_recent_messages(make_packet: MakePacket, idea: MakeIdea) -> None:
    assembler = ContextAssembler(InMemoryMemoryStore(), SituationSettings(recent_tokens=0))
    await assembler.record(make_packet(idea("m-1")), "a")
    context = await assembler.assemble(make_packet(idea("m-2")), "sentinel-1")
    history = context.interaction_history
    assert history is not None and history.recent_messages == () and history.previous_exchange_summary


async def test_what_others_were_told_in_private_is_no_part_of_it(make_packet: MakePacket, idea: MakeIdea) -> None:
    assembler = ContextAssembler(InMemoryMemoryStore())
    await assembler.record(make_packet(idea("secret"), to="other-1"), "other-1")
    context = await assembler.assemble(make_packet(idea("m-2")), "sentinel-1")
    assert "secret" not in str(context.to_document())


async def test_agents_that_write_at_once_lose_nothing(make_packet: MakePacket, idea: MakeIdea) -> None:
    memory = InMemoryMemoryStore()
    packets = [make_packet(idea(f"m-{number}")) for number in range(10)]
    await asyncio.gather(*(ContextAssembler(memory).record(one, f"a-{n}") for n, one in enumerate(packets)))
    kept = await memory.retrieve_conversation("session-1")
    assert kept is not None
    assert len(kept.messages) == len(kept.agent_participants) == 10
    assert kept.revision == 10


async def test_a_conversation_keeps_its_newest_messages(make_packet: MakePacket, idea: MakeIdea) -> None:
    memory = InMemoryMemoryStore()
    for settings, left in ((SituationSettings(kept_messages=3), 3), (SituationSettings(kept_bytes=1), 1)):
        for number in range(5):
            await ContextAssembler(memory, settings).record(make_packet(idea(f"m-{number}")), "a")
        kept = await memory.retrieve_conversation("session-1")
        assert kept is not None
        assert len(kept.messages) == left
        assert "m-4" in kept.messages[-1].content
    assert kept is not None and kept.metadata["dropped"] == 9


@pytest.mark.parametrize("wrong", ["text", {"user_profile": {"user_id": "no uuid"}}, {"narrative_state": 1}])
async def test_a_packet_whose_context_does_not_fit_is_rejected(
    make_packet: MakePacket, idea: MakeIdea, wrong: Any
) -> None:
    with pytest.raises(Reject, match=r"metadata\.agent_context"):
        await ContextAssembler(InMemoryMemoryStore()).assemble(
            make_packet(idea(), metadata={"agent_context": wrong}), "sentinel-1"
        )


async def test_sessions_are_issued_found_and_ended() -> None:
    sessions = SessionManager(InMemoryMemoryStore())
    session_id = await sessions.begin("u-1")
    assert session_id == str(UUID(session_id))
    assert (await sessions.conversation(session_id)).messages == ()
    await sessions.end(session_id)
    for call in (sessions.conversation(session_id), sessions.end(session_id)):
        with pytest.raises(UnknownSession):
            await call


class Echo(BaseAgent):
    """Answers every second message."""

    def __init__(self) -> None:
        super().__init__("echo-1", role="echo", swarm="s", handles=[PacketType.IDEA])
        self.seen: list[tuple[ContextMessage, AgentContext]] = []

    async def process_message(self, message: ContextMessage, context: AgentContext) -> Sequence[Payload]:
        self.seen.append((message, context))
        return [SignalPayload(signal=Signal.QUERY, reason="again?")] if len(self.seen) % 2 else ()


async def test_a_base_agent_processes_messages_in_their_context(idea: MakeIdea) -> None:
    agent = Echo()
    async with AgentTestClient(agent) as client:
        reply = await client.send(idea("m-1"))
        assert reply is not None and reply.payload_as(SignalFields).reason == "again?"
        assert await client.send(idea("m-2")) is None
    (first, _), (_, context) = agent.seen
    assert first.sender_id == "tester" and "m-1" in (first.content or "")
    history = context.interaction_history
    assert history is not None and history.recent_messages is not None
    assert [one.sender_id for one in history.recent_messages] == ["tester", "echo-1"], "its own answer too"


async def test_what_is_not_relevant_is_passed_over_and_the_receipt_says_so(idea: MakeIdea) -> None:
    agent = Agent("fitter-1", role="fitter", swarm="s", capabilities=["pump"])
    handled: list[str] = []

    @agent.on(PacketType.IDEA, min_relevance=0.3)
    async def repair(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        handled.append(packet.payload.method_id)
        assert await ctx.snapshot() is await ctx.snapshot()

    async with AgentTestClient(agent) as client:
        await client.send(idea("pump"))
        await client.send(idea("poem"), requires_ack=True)
        await client.settled()
    assert handled == ["pump"]
    errors = [one.error for one in client.receipts if one.kind is ReceiptKind.OUTCOME]
    assert errors[0] is None
    assert errors[1] is not None and errors[1].startswith("not handled: relevance 0.")
    assert [one.packet_type for one in client.emitted] == [PacketType.ACK]


async def test_what_was_passed_over_leaves_no_trace(make_packet: MakePacket, idea: MakeIdea) -> None:
    assembler = ContextAssembler(InMemoryMemoryStore())
    recipients = (Recipient(agent_id="sentinel-1"), Recipient(agent_id="poet-1"))
    poem = make_packet(idea("poem")).model_copy(update={"recipients": recipients, "symbolic_keys": ("verse",)})
    await assembler.pass_over(poem, "sentinel-1")
    await assembler.record(poem, "poet-1")
    told = {}
    for agent in ("poet-1", "sentinel-1"):
        told[agent] = str((await assembler.assemble(make_packet(idea("pump")), agent)).to_document())
    assert "poem" in told["poet-1"] and "verse" in told["poet-1"]
    assert "poem" not in told["sentinel-1"] and "verse" not in told["sentinel-1"]


async def test_what_is_passed_over_alone_is_written_nowhere(idea: MakeIdea) -> None:
    agent = Agent("fitter-1", role="fitter", swarm="s", capabilities=["pump"])

    @agent.on(PacketType.IDEA, min_relevance=0.3)
    async def repair(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.snapshot()

    async with AgentTestClient(agent) as client:
        await client.send(idea("poem"), requires_ack=True)
        assert await client.memory.retrieve_conversation("session-1") is None
        await client.send(idea("pump"))
        kept = await client.memory.retrieve_conversation("session-1")
    assert kept is not None and len(kept.messages) == 1


def test_a_minimum_outside_its_range_is_refused() -> None:
    with pytest.raises(AgentInvalid, match="min_relevance"):
        Agent("a-1", role="r", swarm="s").on(PacketType.IDEA, min_relevance=1.5)
