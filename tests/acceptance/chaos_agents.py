"""Two agents for `apc up --chaos`: one asks forty questions, the other answers; the file `done` says when all is."""

from pathlib import Path

from apc_agents import Agent, HandlerContext
from apc_contracts import ORCHESTRATOR, Packet, PacketType, ProofBundle, RunPhase, Signal, SignalPayload, new_packet_id
from apc_contracts.payloads.by_type import ClaimPayload, ExpectedImpact, IdeaPayload
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec

QUESTIONS = 40
asker = Agent("asker", role="asker", swarm="ask", rights=("operate",))
answerer = Agent("answerer", role="answerer", swarm="answer")


@asker.on_start
async def begin(ctx: HandlerContext) -> None:
    """Opens the session of the two."""
    swarms = (SwarmSpec(swarm_id="ask", agents=("asker",)), SwarmSpec(swarm_id="answer", agents=("answerer",)))
    spec = SessionSpec(swarms=swarms, generation_limit=1, generation_deadline_ms=600_000, state_deadline_ms=600_000)
    await ctx.emit(
        SignalPayload(signal=Signal.START, session=spec),
        to=ORCHESTRATOR,
        session_id="chaos",
        run_id="run-1",
        task_id="task-1",
        packet_id=new_packet_id(),
        run_phase=RunPhase.RESEARCH,
        generation=0,
    )


@asker.on(PacketType.SIGNAL, signal=Signal.SYNC)
async def ask(sync: Packet[SignalPayload], ctx: HandlerContext) -> None:
    """Asks, once."""
    if ctx.state.get("asked"):
        return
    ctx.state["asked"] = True
    for number in range(QUESTIONS):
        impact = ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0)
        idea = IdeaPayload(
            method_id=f"method-{number}",
            intent="try it",
            assumptions=(),
            required_capabilities=(),
            expected_impact=impact,
            failure_modes=(),
        )
        await ctx.emit(idea, to="answerer")


@answerer.on(PacketType.IDEA)
async def answer(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """One claim for each idea."""
    method = idea.payload.method_id
    claim = ClaimPayload(
        claim_id=f"c-{method}", hypothesis_id=method, text="It may hold.", confidence_pre=0.5, confidence_post=0.6
    )
    await ctx.emit(claim, proof_bundle=ProofBundle(evidence_refs=(f"packet:{idea.packet_id}",)))


@asker.on(PacketType.CLAIM)
async def note(claim: Packet[ClaimPayload], ctx: HandlerContext) -> None:
    """Counts each answer, however often it comes."""
    answered = sorted({*ctx.state.get("answered", []), claim.payload.claim_id})
    ctx.state["answered"] = answered
    if len(answered) == QUESTIONS:
        Path("done").touch()  # noqa: ASYNC240 - nothing else runs here
