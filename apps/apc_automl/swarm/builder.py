"""The builders: one a swarm, each searching with its own families of models."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import rfc8785
from pydantic import ValidationError

from apc_agents.agent import Agent
from apc_agents.handling.handler_context import HandlerContext
from apc_automl.data.table_schema import Schema
from apc_automl.swarm import role_payloads
from apc_automl.swarm.briefs import (
    CONVERGENCE,
    LIBRARIAN,
    REST,
    SENTINEL,
    WORKING_STATES,
    Brief,
    StudyCache,
    builder_id,
    fetch,
    read_brief,
)
from apc_automl.swarm.forecast import Forecast
from apc_automl.swarm.notebook import Entry, Notebook, Tried, lineage_of, remember_import, send_transfers
from apc_automl.training import work
from apc_automl.training.material import Measured, Study
from apc_automl.training.recipes import Recipe, families_of
from apc_automl.training.search import Place, Trial, next_recipe, next_recipes
from apc_automl.training.workbench import Workbench
from apc_bus.errors import ArtifactCorrupt, ArtifactMissing, ArtifactTooLarge
from apc_bus.telemetry import get_logger
from apc_contracts.packet import Packet, SomePayload
from apc_contracts.payloads.by_type import (
    ClaimPayload,
    EvalPayload,
    SignalPayload,
    TaskIrPayload,
    TransferPayload,
)
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal

log = get_logger("apc_automl")


def make_builder(swarm: str, workbench: Workbench) -> Agent:
    """Return the builder of one swarm. It takes its data, its seed and its place in the run from packets."""
    agent = Agent(builder_id(swarm), role="builder", swarm=swarm)
    builder = _Builder(swarm, workbench)

    @agent.on(PacketType.TASK_IR)
    async def plan(task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
        await builder.plan(task, ctx)

    @agent.on(PacketType.SIGNAL, signal=Signal.SYNC)
    async def follow(sync: Packet[SignalPayload], ctx: HandlerContext) -> None:
        session = sync.payload.session
        if not isinstance(session, SessionState) or session.paused:
            return
        if (ctx.round, ctx.generation) > (session.round, session.generation):
            return  # The session has gone on without this swarm.
        if session.state in WORKING_STATES:
            await builder.work(session, ctx)
        elif session.state == "EXECUTION":
            await builder.execute(session, ctx)
        elif session.state == "PROMOTION":
            await builder.seed_commons(session, ctx)

    @agent.on(PacketType.TRANSFER)
    async def take_over(transfer: Packet[TransferPayload], ctx: HandlerContext) -> None:
        await remember_import(transfer, ctx)

    @agent.on(PacketType.CLAIM)
    async def heed_claim(claim: Packet[ClaimPayload], ctx: HandlerContext) -> None:
        if claim.payload.confidence_post < 0.5:
            _falsify(claim.payload.hypothesis_id, ctx)

    @agent.on(PacketType.EVAL)
    async def heed_evaluation(evaluation: Packet[EvalPayload], ctx: HandlerContext) -> None:
        notebook = Notebook.read(ctx.state)
        parent = evaluation.trace.parent_packet_id
        entry = notebook.entry_of([parent]) if parent else None
        if entry is not None and abs(evaluation.payload.metric_set.outcome - entry.trial.outcome) > 1e-6:
            _falsify(entry.name, ctx)

    return agent


def _falsify(name: str, ctx: HandlerContext) -> None:
    notebook = Notebook.read(ctx.state)
    notebook.falsify(name)
    notebook.write(ctx.state)


class _Builder:
    """What a builder does; everything that it must remember is in the notebook."""

    def __init__(self, swarm: str, workbench: Workbench) -> None:
        self._swarm = swarm
        self._workbench = workbench
        self._studies = StudyCache()

    async def plan(self, task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
        """Send the plan of the swarm in RESEARCH, then the sign that it is ready for generation 0."""
        brief = read_brief(task.payload)
        if brief is None:
            return
        notebook = Notebook.read(ctx.state)
        notebook.brief = brief
        notebook.priors = await self._priors(brief, ctx)
        notebook.write(ctx.state)
        study = await self._studies.study(brief, ctx.artifacts)
        schema = Schema.model_validate_json(study.schema.data)
        families = families_of(self._swarm, schema.problem)
        expected = Forecast.of_plan(len(notebook.priors))
        await ctx.emit(
            role_payloads.opening_idea(self._swarm, families, schema, brief, expected),
            to=LIBRARIAN,
            confidence=expected.confidence,
            symbolic_keys=tuple(dict.fromkeys((self._swarm, *families))),
        )
        ready = SignalPayload(signal=Signal.SYNC, reason="ready for generation 0")
        await ctx.emit(ready, to=ORCHESTRATOR, generation=0)

    async def _priors(self, brief: Brief, ctx: HandlerContext) -> list[Recipe]:
        """Return the recipes that the brief names. One that is gone from the store is only advice that is missing."""
        found = []
        for recipe_hash in brief.priors:
            try:
                found.append(Recipe.read(await ctx.artifacts.get(recipe_hash)))
            except (ArtifactMissing, ArtifactCorrupt, ArtifactTooLarge, ValidationError) as error:
                log.warning("prior_unusable", artifact_hash=recipe_hash, reason=str(error))
        return found

    async def work(self, session: SessionState, ctx: HandlerContext) -> None:
        """Work on one generation, once: a method, a model, its gates, and later transfers."""
        notebook = Notebook.read(ctx.state)
        if notebook.brief is None or notebook.has_worked(session.round, session.generation):
            return
        study = await self._studies.study(notebook.brief, ctx.artifacts)
        schema = Schema.model_validate_json(study.schema.data)
        recipe = await self._choose(notebook, study, session, schema)
        name = role_payloads.work_id(self._swarm, session.round, session.generation)
        if session.state != CONVERGENCE:
            expected = Forecast.of(recipe, notebook.entries)
            await self._say(
                ctx,
                session,
                role_payloads.method_idea(name, recipe, schema, notebook.brief, expected),
                to=LIBRARIAN,
                confidence=expected.confidence,
                symbolic_keys=(recipe.family, recipe.hash),
            )
        measured = await self._workbench.run(work.measure, recipe.canonical(), study)
        gates = measured.document["gates"]
        evaluation = await self._publish(name, recipe, measured, gates, session, ctx)
        entry = Entry(
            name=name,
            round=session.round,
            generation=session.generation,
            trial=Trial(recipe=recipe, outcome=gates["outcome"]),
            stability=gates["stability"],
            shortfalls=role_payloads.shortfalls_of(gates),
            model_bytes=measured.document["model_bytes"],
            eval_id=evaluation.packet_id,
        )
        notebook.entries.append(entry)
        notebook.write(ctx.state)
        await send_transfers(self._swarm, notebook.best(), session, ctx)

    async def _choose(self, notebook: Notebook, study: Study, session: SessionState, schema: Schema) -> Recipe:
        place = Place(
            seed=study.seed,
            swarm=self._swarm,
            round=session.round,
            generation=session.generation,
            converging=session.state == CONVERGENCE,
        )
        count = notebook.brief.candidates if notebook.brief is not None else 1
        return await choose_method(notebook, place, schema, study, self._workbench, count)

    async def execute(self, session: SessionState, ctx: HandlerContext) -> None:
        """Train the recipe of the swarm whose EVAL won once more, in EXECUTION, on all data that may be seen."""
        notebook = Notebook.read(ctx.state)
        entry = notebook.entry_of(session.subjects)
        if notebook.brief is None or entry is None or entry.eval_id in notebook.refits.values():
            return
        study = await self._studies.study(notebook.brief, ctx.artifacts)
        if REST in notebook.brief.slices:
            study = replace(study, rest=await fetch(ctx.artifacts, notebook.brief.slices[REST]))
        recipe = entry.trial.recipe
        refitted = await self._workbench.run(work.refit, recipe.canonical(), study)
        name = f"{self._swarm}-r{session.round}-final"
        evaluation = await self._publish(name, recipe, refitted, refitted.document["gates"], session, ctx)
        if entry.eval_id is not None and evaluation.trace.parent_packet_id is not None:
            notebook.refits[evaluation.trace.parent_packet_id] = entry.eval_id
        notebook.write(ctx.state)

    async def seed_commons(self, session: SessionState, ctx: HandlerContext) -> None:
        """Give the recipe of the promoted model to the other swarms in PROMOTION."""
        notebook = Notebook.read(ctx.state)
        promoted = notebook.promoted(session.subjects)
        if promoted is not None:
            await send_transfers(self._swarm, promoted, session, ctx)

    async def _publish(
        self,
        name: str,
        recipe: Recipe,
        measured: Measured,
        gates: dict[str, float],
        session: SessionState,
        ctx: HandlerContext,
    ) -> Packet[EvalPayload]:
        """Send an ARTIFACT, then an EVAL with it as parent, after recipe, model and measurement are stored."""
        recipe_hash = await ctx.artifacts.put(recipe.canonical())
        model_hash = await ctx.artifacts.put(measured.model)
        document = {**measured.document, "model": model_hash, "work": name, "declared": gates}
        document_hash = await ctx.artifacts.put(rfc8785.dumps(document))
        proof = role_payloads.proof(gates, document_hash, model_hash, recipe_hash)
        artifact = await self._say(
            ctx,
            session,
            role_payloads.model_artifact(name, model_hash, ctx.artifacts.uri(model_hash)),
            to=(SENTINEL, LIBRARIAN) if session.state == "EXECUTION" else SENTINEL,
            confidence=gates["rtf"],
            proof_bundle=proof,
        )
        note = role_payloads.loss_note(document, "held-out")
        return await self._say(
            ctx,
            session,
            role_payloads.evaluation(gates, recipe.describe(), note),
            to=SENTINEL,
            parent=artifact,
            proof_bundle=proof,
            confidence=gates["stability"],
            symbolic_keys=(recipe.family, recipe.hash),
            lineage=lineage_of(recipe),
        )

    async def _say(
        self, ctx: HandlerContext, session: SessionState, payload: SomePayload, **options: Any
    ) -> Packet[SomePayload]:
        """Emit for the generation that the SYNC named, also when the session has moved on in the meantime."""
        packet: Packet[SomePayload] = await ctx.emit(
            payload, run_phase=session.run_phase, generation=session.generation, **options
        )
        return packet


FIRST_FOLD, OTHER_FOLDS = (0,), (1, 2, 3)


async def choose_method(
    notebook: Notebook, place: Place, schema: Schema, study: Study, workbench: Workbench, count: int
) -> Recipe:
    """Return the method of a generation.

    Args:
        count: how many are tried; with 1 the next one is taken as it is.
    """
    imports = notebook.usable_imports(place.round, place.generation)
    if count == 1:
        return next_recipe(place, schema, notebook.trials, imports, notebook.priors)
    recipes = next_recipes(place, schema, [one.trial for one in notebook.tried], imports, notebook.priors, count)
    notebook.tried += await _try(recipes, study, workbench)
    best = notebook.best_untrained()
    return best or next_recipe(place, schema, notebook.trials, imports, notebook.priors)


async def _try(recipes: Sequence[Recipe], study: Study, workbench: Workbench) -> list[Tried]:
    """Return the methods with their scores, in the order given; scores of one fold are no scores to rely on."""

    async def score(recipe: Recipe, folds: Sequence[int]) -> list[float]:
        return await workbench.run(work.score_folds, recipe.canonical(), study, folds)

    first = [scores[0] for scores in await asyncio.gather(*(score(one, FIRST_FOLD) for one in recipes))]
    ranked = sorted(range(len(recipes)), key=lambda number: (-first[number], number))
    going_on = sorted(ranked[: (len(recipes) + 1) // 2])
    others = await asyncio.gather(*(score(recipes[number], OTHER_FOLDS) for number in going_on))
    whole = {number: fmean([first[number], *scores]) for number, scores in zip(going_on, others, strict=True)}
    return [
        Tried(recipe=recipe, score=whole.get(number, first[number]), is_whole=number in whole)
        for number, recipe in enumerate(recipes)
    ]
