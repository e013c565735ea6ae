"""The librarian's last work: the promoted recipe, trained on every row. It alone may read the whole table."""

from apc_agents.agent import Agent
from apc_agents.handling.handler_context import HandlerContext
from apc_automl.errors import TableInvalid, TrainingUnavailable
from apc_automl.settings import AutomlSettings
from apc_automl.swarm import role_payloads
from apc_automl.training import work
from apc_automl.training.workbench import Workbench
from apc_bus.telemetry import get_logger
from apc_contracts.packet import Packet, ProofBundle
from apc_contracts.payloads.by_type import ArtifactPayload
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase

log = get_logger("apc_automl")


def take_final_models(agent: Agent, settings: AutomlSettings, workbench: Workbench) -> None:
    """Let the librarian note the recipe of each final model by the ARTIFACT of EXECUTION that names it."""

    @agent.on(PacketType.ARTIFACT)
    async def note_final_model(artifact: Packet[ArtifactPayload], ctx: HandlerContext) -> None:
        evidence = artifact.proof_bundle.evidence_refs if artifact.proof_bundle else ()
        if ctx.session_id == settings.session_id and len(evidence) == 3:
            ctx.state.setdefault("final_recipes", {})[str(artifact.packet_id)] = evidence[2]
            await _train_on_every_row(settings, workbench, ctx)


async def train_when_promoted(
    session: SessionState, settings: AutomlSettings, workbench: Workbench, ctx: HandlerContext
) -> None:
    """Note which final model was promoted, and train its recipe on every row."""
    if session.state == "PROMOTION" and session.subjects:
        ctx.state["promoted"] = [str(subject) for subject in session.subjects]
        await _train_on_every_row(settings, workbench, ctx)


async def _train_on_every_row(settings: AutomlSettings, workbench: Workbench, ctx: HandlerContext) -> None:
    """Train the promoted recipe on the whole table, once, in PROMOTION, and say so in an ARTIFACT.

    A table that cannot be read any more costs this model alone: the promoted one stands.
    """
    recipes: dict[str, str] = ctx.state.get("final_recipes", {})
    promoted = next((one for one in ctx.state.get("promoted", ()) if one in recipes), None)
    if promoted is None or ctx.state.get("has_trained_all") or settings.data is None:
        return
    schema, recipe = [await ctx.artifacts.get(name) for name in (ctx.state["schema"], recipes[promoted])]
    try:
        path, seed = str(settings.data), settings.seed
        model = await workbench.run(work.train_on_all, path, settings.problem, schema, recipe, seed, settings.options)
    except (TableInvalid, TrainingUnavailable, KeyError) as error:
        log.warning("not_trained_on_every_row", reason=str(error), session_id=ctx.session_id)
        return
    model_hash = await ctx.artifacts.put(model)
    await ctx.emit(
        role_payloads.all_rows_artifact(model_hash, ctx.artifacts.uri(model_hash)),
        to=ORCHESTRATOR,
        run_phase=RunPhase.PROMOTION,
        confidence=0.0,
        proof_bundle=ProofBundle(evidence_refs=(recipes[promoted],)),
    )
    ctx.state["has_trained_all"] = True
