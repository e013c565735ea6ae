"""An agent for research: it answers an IDEA with a CLAIM about its open risks."""

from apc_agents import Agent, HandlerContext
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType, ProofBundle

agent = Agent("reviewer-1", role="reviewer", swarm="review")


@agent.on(PacketType.IDEA)
async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    risks = [mode.id for mode in idea.payload.failure_modes]
    ctx.state["reviewed"] = [*ctx.state.get("reviewed", []), idea.payload.method_id]
    claim = ClaimPayload(
        claim_id=f"{idea.payload.method_id}-holds",
        hypothesis_id=idea.payload.method_id,
        text=f"The author names {len(risks)} ways to fail: {', '.join(risks) or 'none'}.",
        confidence_pre=idea.confidence,
        confidence_post=idea.confidence / (1 + len(risks)),
    )
    await ctx.emit(claim, proof_bundle=ProofBundle(evidence_refs=(f"packet:{idea.packet_id}",)))
