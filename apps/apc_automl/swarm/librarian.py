"""The librarian: opens the session, profiles the table, dispatches the briefs, keeps catalogue and narrative."""

from collections.abc import Sequence
from typing import Any

import rfc8785

from apc_agents.agent import Agent
from apc_agents.handling.handler_context import HandlerContext
from apc_automl.errors import TableInvalid, TrainingUnavailable
from apc_automl.settings import AutomlSettings
from apc_automl.swarm import role_payloads
from apc_automl.swarm.briefs import (
    LIBRARIAN,
    LIBRARY_SWARM,
    REST,
    SENTINEL,
    SENTINEL_SWARM,
    SLICES,
    TABLE_PROFILE,
    UNTOUCHED,
    Brief,
    TableProfile,
    brief_keys,
    brief_payload,
    builder_id,
)
from apc_automl.swarm.narrative import Watch, arbitration_note, decision_note, narrate, opening_notes
from apc_automl.swarm.priors import PastRuns, PastTrial, chance_to_win, choose_priors
from apc_automl.training import work
from apc_automl.training.material import Prepared
from apc_automl.training.recipes import SWARMS, families_of
from apc_automl.training.workbench import Workbench, prepare_table
from apc_bus.telemetry import get_logger
from apc_contracts.packet import Packet, ProofBundle
from apc_contracts.payloads.by_type import (
    ArbitrationPayload,
    ArtifactPayload,
    DecisionPayload,
    IdeaPayload,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import Budgets, SessionSpec, SessionState, SwarmSpec
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, RunPhase, Signal

MAXIMUM_NOTES = 20
"""Notes on the table that go into each brief: a packet has a size limit, a table may have a thousand odd columns."""

log = get_logger("apc_automl")


def make_librarian(settings: AutomlSettings, workbench: Workbench, past: PastRuns | None = None) -> Agent:
    """Return the librarian of one run.

    Without `settings.data` it opens no session; without a `past` it has no priors.
    """
    agent = Agent(LIBRARIAN, role="librarian", swarm=LIBRARY_SWARM, rights=("operate",))

    take_final_models(agent, settings, workbench)

    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        if settings.data is not None:
            await _open_session(settings, ctx)

    @agent.on(PacketType.SIGNAL, signal=Signal.SYNC)
    async def dispatch(sync: Packet[SignalPayload], ctx: HandlerContext) -> None:
        session = sync.payload.session
        if not isinstance(session, SessionState) or ctx.session_id != settings.session_id:
            return
        if session.paused:
            return
        if session.state == "SESSION_OPEN" and not ctx.state.get("has_briefed"):
            await _brief_everyone(settings, workbench, past if settings.priors else None, ctx)
            ctx.state["has_briefed"] = True
        await train_when_promoted(session, settings, workbench, ctx)
        watch = Watch(ctx.state)
        await narrate(ctx, *watch.notes(session))
        watch.follow(session)

    @agent.on(PacketType.IDEA)
    async def catalogue(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        Watch(ctx.state).hear(idea.sender.swarm_id, idea.payload.intent)
        methods: dict[str, list[str]] = ctx.state.setdefault("methods", {})
        known = methods.setdefault(idea.sender.swarm_id, [])
        if idea.payload.method_id not in known:
            known.append(idea.payload.method_id)

    @agent.on(PacketType.ARBITRATION)
    async def note_arbitration(arbitration: Packet[ArbitrationPayload], ctx: HandlerContext) -> None:
        if arbitration.sender.agent_id == ORCHESTRATOR and ctx.session_id == settings.session_id:
            await narrate(ctx, arbitration_note(arbitration.payload))

    @agent.on(PacketType.DECISION)
    async def note_decision(decision: Packet[DecisionPayload], ctx: HandlerContext) -> None:
        # DONE comes when the session has ended: the report tells it better.
        is_last = decision.payload.commitment_level is CommitmentLevel.DONE
        if decision.sender.agent_id == ORCHESTRATOR and ctx.session_id == settings.session_id and not is_last:
            await narrate(ctx, decision_note(decision.payload))

    return agent


async def _open_session(settings: AutomlSettings, ctx: HandlerContext) -> None:
    """Send START. A restarted librarian sends the same one, which the gate recognizes by id and payload."""
    spec = SessionSpec(
        swarms=tuple(SwarmSpec(swarm_id=swarm, agents=(builder_id(swarm),)) for swarm in SWARMS),
        members=(LIBRARIAN, SENTINEL),
        task_ids=(settings.task_id,),
        generation_limit=settings.generations - 1 - settings.convergence_generations,
        convergence_generations=settings.convergence_generations,
        generation_deadline_ms=settings.generation_deadline_ms,
        state_deadline_ms=settings.state_deadline_ms,
        max_rounds=settings.maximum_rounds,
        search_ms=settings.budget_seconds * 1000,
        budgets=Budgets(wall_ms=settings.wall_ms),
        veto_window_ms=settings.veto_window_ms,
    )
    await ctx.emit(
        SignalPayload(signal=Signal.START, reason="find the best model for a table", session=spec),
        to=ORCHESTRATOR,
        session_id=settings.session_id,
        run_id=settings.run_id,
        task_id=settings.task_id,
        packet_id=settings.start_id,
        run_phase=RunPhase.RESEARCH,
        generation=0,
    )


async def _brief_everyone(
    settings: AutomlSettings, workbench: Workbench, past: PastRuns | None, ctx: HandlerContext
) -> None:
    try:
        prepared = await prepare_table(settings, workbench)
    except TableInvalid as error:
        log.error("table_invalid", reason=str(error), session_id=ctx.session_id)
        await ctx.emit(SignalPayload(signal=Signal.STOP, reason=str(error)), to=ORCHESTRATOR)
        return
    slices = await _store(prepared, ctx)
    public = {name: slices[name] for name in (*SLICES, REST) if name in slices}
    ctx.state["schema"] = slices["schema"]
    profile = TableProfile.of(prepared.profile)
    trials = [] if past is None else await past.trials(ctx.run_id, settings.resume)
    facts = _facts(prepared.profile)
    recipients = {swarm: builder_id(swarm) for swarm in SWARMS} | {SENTINEL_SWARM: SENTINEL}
    for swarm, recipient in recipients.items():
        # Only the sentinel learns where the untouched slices are: what is not named cannot be trained on.
        brief = Brief(
            seed=settings.seed,
            slices=slices if swarm == SENTINEL_SWARM else public,
            priors=tuple(choose_priors(profile, trials, families_of(swarm, profile.problem))),
            candidates=settings.candidates,
        )
        await ctx.emit(
            brief_payload(swarm, ctx.task_id, ctx.run_id, profile, brief, facts, _belief(swarm, profile, trials)),
            to=recipient,
            symbolic_keys=brief_keys(swarm, profile.problem),
        )
    families = {swarm: families_of(swarm, profile.problem) for swarm in SWARMS}
    await narrate(ctx, *opening_notes(facts, settings.generations, settings.seed, families))


def _belief(swarm: str, profile: TableProfile, trials: Sequence[PastTrial]) -> float:
    """Return how far to believe what a brief says: of the sentinel's reproductions nothing is known beforehand."""
    families = families_of(swarm, profile.problem)
    return chance_to_win(profile, trials, families, len(SWARMS)) if swarm in SWARMS else 0.5


async def _store(prepared: Prepared, ctx: HandlerContext) -> dict[str, str]:
    parts = {"schema": prepared.schema, "train": prepared.train, "held-out": prepared.held_out}
    parts |= {TABLE_PROFILE: rfc8785.dumps(prepared.profile)} | ({REST: prepared.rest} if prepared.rest else {})
    parts |= {f"{UNTOUCHED}{number}": rows for number, rows in enumerate(prepared.untouched, start=1)}
    return {name: await ctx.artifacts.put(data) for name, data in parts.items()}


def _columns(profile: dict[str, Any]) -> str:
    """Say how many columns of each kind there are: `3 numeric and 1 date columns`."""
    counts = {kind: profile[f"{kind}_columns"] for kind in ("numeric", "categorical", "date", "text")}
    *first, last = [f"{count} {kind}" for kind, count in counts.items() if count] or ["no"]
    return f"{', '.join(first)} and {last} columns" if first else f"{last} columns"


def _facts(profile: dict[str, Any]) -> list[str]:
    sizes = profile["parts"]
    return [
        f"{profile['problem']} of {profile['target']!r} from {_columns(profile)}",
        f"{sizes['train']} rows to train, {sizes['held_out']} held out, {sizes['untouched'][0]} untouched a round",
        *profile["notes"][:MAXIMUM_NOTES],
    ]


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
