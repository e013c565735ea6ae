"""Transfers: what a builder offers to the other swarms, and what it keeps of what it is offered."""

from apc_agents.handling.handler_context import HandlerContext
from apc_automl.swarm.members import builder_id
from apc_automl.swarm.notebook import Entry, Import, Notebook
from apc_automl.training.recipes import Recipe
from apc_automl.training.spaces import SWARMS
from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import TransferWindow
from apc_contracts.packet import Lineage, Packet
from apc_contracts.payloads.by_type import TransferPayload, TransferPolicy
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import RunPhase, TransferMode

TOP_K = 2
"""Where the window asks for none."""
MODES = {
    RunPhase.REFINEMENT: TransferMode.SELECTIVE_IMPORT,
    RunPhase.CONVERGENCE: TransferMode.WINNER_TO_LOSERS,
    RunPhase.PROMOTION: TransferMode.COMMONS_SEED,
}


async def send_transfers(swarm: str, best: Entry | None, session: SessionState, ctx: HandlerContext) -> None:
    """Offer a recipe of the swarm to every swarm that is behind by as much as the phase asks for."""
    mode = MODES.get(session.run_phase)
    own = session.scores.get(swarm)
    window = ctx.contract.window(session.generation)
    if not window.is_open or mode is None or best is None or own is None:
        return
    factor = _factor(session.run_phase, window, ctx.contract)
    recipe = best.trial.recipe
    protocol = await ctx.artifacts.put(recipe.canonical())
    for other in SWARMS:
        score = session.scores.get(other)
        if other == swarm or score is None or not own > score * factor:
            continue
        await ctx.emit(
            TransferPayload(
                protocol_id=protocol,
                from_swarm=swarm,
                to_swarm=other,
                sender_score=own,
                receiver_score=score,
                transfer_policy=TransferPolicy(mode=mode, top_k=window.top_k_limit or TOP_K),
            ),
            to=builder_id(other),
            run_phase=session.run_phase,
            generation=session.generation,
            confidence=best.stability,
            symbolic_keys=(recipe.family, protocol),
            lineage=lineage_of(recipe).model_copy(update={"transfer_mode": mode}),
        )


def lineage_of(recipe: Recipe) -> Lineage:
    """Return the lineage of a packet about a recipe; an EVAL that has it counts for the recipe's protocol."""
    return Lineage(protocol_id=recipe.hash, parent_protocol_ids=recipe.parents, ancestor_swarms=recipe.ancestor_swarms)


def _factor(phase: RunPhase, window: TransferWindow, contract: Contract) -> float:
    """Return how far ahead the sender must be; from generation 21 the throttle of discovery is off."""
    if phase is RunPhase.REFINEMENT:
        return score_factor(contract)
    return window.score_multiplier or 1.0


def score_factor(contract: Contract) -> float:
    """Return how far ahead a swarm must be to offer anything: the strictest of the windows, whichever is open."""
    return max((window.score_multiplier or 1.0 for window in contract.windows if window.is_open), default=1.0)


async def remember_import(transfer: Packet[TransferPayload], ctx: HandlerContext) -> None:
    """Fetch the recipe of an accepted TRANSFER by its hash and note it. Raises ArtifactError."""
    notebook = Notebook.read(ctx.state)
    recipe = Recipe.read(await ctx.artifacts.get(transfer.payload.protocol_id))
    known = {(one.recipe.hash, one.from_swarm, one.round) for one in notebook.imports}
    if (recipe.hash, transfer.payload.from_swarm, ctx.round) in known:
        return
    notebook.imports.append(
        Import(
            recipe=recipe,
            from_swarm=transfer.payload.from_swarm,
            score=transfer.payload.sender_score,
            round=ctx.round,
            generation=transfer.trace.generation,
        )
    )
    notebook.write(ctx.state)
