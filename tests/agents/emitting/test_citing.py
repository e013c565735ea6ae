"""Evidence that a handler cites stands in what it emits afterwards."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from apc_agents import Agent, AgentError, AgentTestClient, HandlerContext, HandlerFailed, message
from apc_contracts import AckPayload, Packet, ProofBundle, RetractionPayload

FIRST, SECOND = UUID(int=1 << 76 | 0x8 << 60), UUID(int=2 << 76 | 0x8 << 60)
ARTIFACT = f"sha256:{'0' * 64}"


@message("finding/1")
class Finding(BaseModel):
    text: str = "down"


@message("action/1")
class Action(BaseModel):
    kind: str = "restart"


def evidence_of(packet: Packet) -> tuple[str, ...] | None:
    return None if packet.proof_bundle is None else packet.proof_bundle.evidence_refs


async def evidence_after(handler: Any) -> list[tuple[str, ...] | None]:
    """Return the evidence of each packet that a handler of a Finding emits."""
    agent = Agent("fixer", role="fixer", swarm="sre")
    agent.on(Finding)(handler)
    async with AgentTestClient(agent) as client:
        await client.send(Finding())
        await client.settled()
        return [evidence_of(one) for one in client.emitted]


async def test_what_is_cited_goes_into_all_that_is_emitted_afterwards() -> None:
    handled: list[str] = []

    async def propose(finding: Finding, ctx: HandlerContext) -> Action:
        handled.append(f"packet:{ctx.packet.packet_id}")
        await ctx.emit(Action(kind="before"))
        assert ctx.cite(ctx.packet, str(FIRST)) == (handled[0], f"packet:{FIRST}")
        await ctx.emit(Action(kind="one"))
        ctx.cite(f"packet:{FIRST}", SECOND)
        return Action(kind="two")

    before, one, two = await evidence_after(propose)
    assert before is None
    assert one == (handled[0], f"packet:{FIRST}")
    assert two == (*one, f"packet:{SECOND}")


async def test_a_bundle_of_the_emission_comes_first_and_nothing_twice() -> None:
    async def propose(finding: Finding, ctx: HandlerContext) -> None:
        ctx.cite(FIRST, SECOND)
        bundle = ProofBundle(evidence_refs=("a note", ARTIFACT, str(SECOND).upper()))
        await ctx.emit(Action(), proof_bundle=bundle)

    assert await evidence_after(propose) == [("a note", ARTIFACT, str(SECOND).upper(), f"packet:{FIRST}")]


async def test_answers_and_other_sessions_have_no_evidence() -> None:
    async def propose(finding: Finding, ctx: HandlerContext) -> None:
        ctx.cite(FIRST)
        await ctx.answer(AckPayload(acked_packet_id=ctx.packet.packet_id, ack_status="ACCEPTED"))
        await ctx.emit(RetractionPayload(target_packet_id=SECOND, reason="wrong"))
        await ctx.emit(Action(), to="b-1", session_id="session-2", run_phase=ctx.run_phase)

    assert await evidence_after(propose) == [None, None, None]


async def test_a_pipeline_cites_for_itself_and_the_handler_for_all_that_it_starts() -> None:
    async def propose(finding: Finding, ctx: HandlerContext) -> None:
        ctx.cite(FIRST)

        async def side(kind: str) -> None:
            if kind == "cites":
                ctx.cite(SECOND)
            await ctx.emit(Action(kind=kind))

        await asyncio.gather(side("cites"), side("silent"))
        await ctx.emit(Action(kind="last"))

    found = await evidence_after(propose)
    assert sorted(one or () for one in found) == [
        (f"packet:{FIRST}",),
        (f"packet:{FIRST}",),
        (f"packet:{FIRST}", f"packet:{SECOND}"),
    ]
    assert found[-1] == (f"packet:{FIRST}",)


async def test_the_next_packet_begins_without_evidence() -> None:
    agent = Agent("fixer", role="fixer", swarm="sre")

    @agent.on(Finding)
    async def propose(finding: Finding, ctx: HandlerContext) -> Action:
        if finding.text == "first":
            ctx.cite(ctx.packet)
        return Action()

    async with AgentTestClient(agent) as client:
        for text in ("first", "second"):
            await client.send(Finding(text=text))
        await client.settled()
        assert [evidence_of(one) is None for one in client.emitted] == [False, True]


@pytest.mark.parametrize("cited", ["finding 7", ARTIFACT, None, "", f"claim:{FIRST}"])
async def test_what_is_no_packet_id_is_refused_and_named(cited: Any) -> None:
    async def propose(finding: Finding, ctx: HandlerContext) -> None:
        ctx.cite(FIRST, cited)

    with pytest.raises(HandlerFailed) as failed:
        await evidence_after(propose)
    assert isinstance(failed.value.__cause__, AgentError)
    assert f"ctx.cite({cited!r}) names no packet: give a packet or its packet_id" in str(failed.value.__cause__)
