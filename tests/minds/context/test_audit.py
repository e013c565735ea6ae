"""A compression is told before it takes effect: to a listener, and through an agent to the log."""

from collections.abc import Mapping
from typing import Any

from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import Agent, AgentTestClient, HandlerContext
from apc_contracts import Channel, Packet, PacketType, RunPhase, Signal, seal
from apc_contracts.payloads.by_type import SignalFields
from apc_minds.context import CompressionAudit, ContextSession, InMemoryContextStore, SessionConfig, emit_compressions
from apc_minds.context.compression import MAX_FOLDED_PER_PACKET
from apc_minds.context.turns import digest_of

CONFIG = SessionConfig(max_tokens=1_000, keep_recent=1)


class _Listener:
    def __init__(self) -> None:
        self.audits: list[CompressionAudit] = []

    async def listen(self, audit: CompressionAudit) -> None:
        self.audits.append(audit)


async def _fill(session: ContextSession, count: int = 12) -> None:
    for number in range(count):
        await session.add_user_turn(f"Question {number}. " + "Is it the valve or the pump? " * 4)
        await session.add_assistant_turn(f"Result: {number}. " + "It was the valve. It leaked for days. " * 10)
        await session.add_assistant_turn("It may be either. " * 6)


async def test_an_audit_has_ids_and_digests_before_and_after() -> None:
    store, listener = InMemoryContextStore(), _Listener()
    session = ContextSession("s-1", store=store, config=CONFIG, on_compression=listener.listen)
    await _fill(session)
    folded = [one for audit in listener.audits for one in audit.folded]
    kept = await store.get_turns("s-1", [one.resource_id for one in folded])
    seen: set[str] = set()
    for one in folded:
        if one.resource_id not in seen:
            assert one.digest_before == digest_of(kept[one.resource_id])
        assert (one.digest_after is not None) is (one.how.value == "summarized")
        seen.add(one.resource_id)
    assert {one.how.value for one in folded} == {"dropped", "summarized", "paged"}
    last = listener.audits[-1]
    assert len(listener.audits) == session.compressions
    assert last.tokens_after < last.tokens_before
    assert last.digest_after != last.digest_before


async def test_a_compression_of_many_turns_is_told_in_parts_that_fit_into_packets() -> None:
    listener = _Listener()
    session = ContextSession("s-1", config=SessionConfig(max_tokens=100_000), on_compression=listener.listen)
    await session.add_user_turn("go")
    for number in range(MAX_FOLDED_PER_PACKET + 10):
        await session.add_tool_turn(f"number {number}")
    await session.compress(0.0)
    parts = [metadata["context"] for metadata in listener.audits[-1].metadata()]
    assert [(one["part"], one["parts"], len(one["folded"])) for one in parts] == [(1, 2, 500), (2, 2, 9)], (
        "the user's turn is shorter than a placeholder"
    )


async def test_dropping_a_turn_is_told_too() -> None:
    listener = _Listener()
    session = ContextSession("s-1", on_compression=listener.listen)
    await session.add_user_turn("go")
    turn = await session.add_assistant_turn("gone")
    await session.drop(turn.resource_id)
    (audit,) = listener.audits
    assert (audit.cause, [one.digest_before for one in audit.folded]) == ("dropped", [turn.digest])


agent = Agent("talker-1", role="talker", swarm="demo")
STORE = InMemoryContextStore()


@agent.on(PacketType.IDEA)
async def talk(idea: Packet, ctx: HandlerContext) -> None:
    session = ContextSession(
        ctx.session_id,
        store=STORE,
        config=CONFIG,
        clock=lambda: ctx.packet.created_at,
        on_compression=emit_compressions(ctx),
    )
    await _fill(session)
    if not await STORE.load(ctx.session_id):
        await session.save()


async def test_an_agent_tells_its_compressions_to_the_log_and_to_nobody_else(idea: MakeIdea) -> None:
    async with AgentTestClient(agent) as client:
        await client.send(idea(), phase=RunPhase.DISCOVERY)
        await client.settled()
        told = [packet for packet in client.emitted if packet.channel is Channel.INTRA_AGENT]
    session = await ContextSession.open("session-1", store=STORE, config=CONFIG)
    assert len(told) == session.compressions
    for packet in told:
        assert packet.packet_type is PacketType.SIGNAL
        assert packet.payload_as(SignalFields).signal is Signal.QUERY
        assert [one.agent_id for one in packet.recipients] == ["talker-1"]
        assert len(seal(packet).body) < 256 * 1024
    listed = {one["id"] for packet in told for one in _context(packet)["folded"]}
    assert set(session.window.folded) <= listed
    assert all({"before"} <= one.keys() for packet in told for one in _context(packet)["folded"])
    expanded = await session.expand()
    assert set(expanded.restored) <= listed


async def test_a_handler_that_runs_again_tells_the_same(idea: MakeIdea, make_packet: MakePacket) -> None:
    cause, told = make_packet(idea(), to="talker-1"), list[list[Packet]]()
    for _ in range(2):
        async with AgentTestClient(agent) as client:
            await client.deliver(cause)
            await client.settled()
            told.append([one for one in client.emitted if one.channel is Channel.INTRA_AGENT])
    first, second = ([(one.packet_id, one.payload_as(SignalFields).reason) for one in run] for run in told)
    assert first == second
    assert len(set(first)) == len(first)


def _context(packet: Packet) -> Mapping[str, Any]:
    assert packet.metadata is not None
    context: Mapping[str, Any] = packet.metadata["context"]  # type: ignore[assignment]
    return context
