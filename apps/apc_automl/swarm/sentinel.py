"""The sentinel: believes no number but its own, and has the last word on untouched data."""

from typing import Any
from uuid import UUID

import rfc8785

from apc_agents.agent import Agent
from apc_agents.errors import Reject
from apc_agents.handling.handler_context import HandlerContext
from apc_automl.errors import ModelFileRefused
from apc_automl.swarm import role_payloads
from apc_automl.swarm.briefs import SENTINEL, SENTINEL_SWARM, Brief, StudyCache, fetch, read_brief
from apc_automl.training import work
from apc_automl.training.material import Blob, JsonObject, Study
from apc_automl.training.workbench import Workbench
from apc_bus.errors import ArtifactCorrupt, ArtifactMissing, ArtifactTooLarge
from apc_bus.telemetry import get_logger
from apc_contracts.packet import Lineage, Packet
from apc_contracts.payloads.by_type import (
    ArbitrationPayload,
    ArtifactPayload,
    EvalPayload,
    Payload,
    SignalPayload,
    TaskIrPayload,
)
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase, Signal

COMPETING_PHASES = frozenset({RunPhase.DISCOVERY, RunPhase.REFINEMENT, RunPhase.CONVERGENCE})

log = get_logger("apc_automl")


def make_sentinel(workbench: Workbench) -> Agent:
    """Return the sentinel of one deployment."""
    agent = Agent(SENTINEL, role="sentinel", swarm=SENTINEL_SWARM, rights=("veto", "validate"))
    desk = _Desk(workbench)

    @agent.on(PacketType.TASK_IR)
    async def take_brief(task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
        brief = read_brief(task.payload)
        if brief is not None:
            ctx.state["brief"] = brief.model_dump(mode="json")

    @agent.on(PacketType.EVAL)
    async def check(evaluation: Packet[EvalPayload], ctx: HandlerContext) -> None:
        if evaluation.run_phase in COMPETING_PHASES:
            await desk.check(evaluation, ctx)

    @agent.on(PacketType.ARTIFACT)
    async def remember(artifact: Packet[ArtifactPayload], ctx: HandlerContext) -> None:
        if artifact.run_phase is RunPhase.EXECUTION:
            await desk.remember(artifact, ctx)

    @agent.on(PacketType.SIGNAL, signal=Signal.SYNC)
    async def follow(sync: Packet[SignalPayload], ctx: HandlerContext) -> None:
        session = sync.payload.session
        if isinstance(session, SessionState) and session.state == "VALIDATION" and not session.paused:
            await desk.validate(session, ctx)

    @agent.on(PacketType.ARBITRATION)
    async def watch(arbitration: Packet[ArbitrationPayload], ctx: HandlerContext) -> None:
        await desk.veto_falsified(arbitration, ctx)

    return agent


class _Desk:
    """What it does. `ctx.state`: brief, falsified EVALs, works by swarm, final models by ARTIFACT, what is judged."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._studies = StudyCache()

    async def check(self, evaluation: Packet[EvalPayload], ctx: HandlerContext) -> None:
        """Load the model by its hash, score it again, and say whether the declared outcome is true."""
        brief = _brief(ctx)
        evidence = evaluation.proof_bundle.evidence_refs if evaluation.proof_bundle else ()
        if brief is None or len(evidence) != 3:
            raise Reject("give measurement, model and recipe by hash, in this order, as evidence")
        declared = evaluation.payload.metric_set
        measured = await self._rescore(brief, evidence[1], ctx)
        is_reproduced = role_payloads.is_reproduced(declared.outcome, measured)
        if not is_reproduced:
            ctx.state.setdefault("falsified", []).append(str(evaluation.packet_id))
        swarm = evaluation.sender.swarm_id
        name = role_payloads.work_id(swarm, ctx.round, evaluation.trace.generation)
        trust = _trust(swarm, name, is_reproduced, ctx)
        statement: Payload = role_payloads.verdict_claim(name, evidence[1], declared.outcome, measured, trust)
        if evaluation.run_phase is RunPhase.CONVERGENCE:
            # No CLAIM in this phase: the same verdict as an EVAL, with what was measured again in it.
            again = {"outcome": measured["outcome"], "audit": measured["audit"]}
            gates = declared.model_dump(exclude_none=True) | again
            statement = role_payloads.evaluation(gates, "outcome and audit measured again from the artifacts")
        gates = {"outcome": measured["outcome"], "audit": measured["audit"]}
        await ctx.emit(
            statement,
            run_phase=evaluation.run_phase,
            generation=evaluation.trace.generation,
            confidence=measured["audit"],
            proof_bundle=role_payloads.proof(gates, *evidence),
            lineage=evaluation.lineage if isinstance(statement, EvalPayload) else None,
        )

    async def remember(self, artifact: Packet[ArtifactPayload], ctx: HandlerContext) -> None:
        """Note a final model; judge it at once if its VALIDATION has overtaken it."""
        evidence = artifact.proof_bundle.evidence_refs if artifact.proof_bundle else ()
        if len(evidence) != 3:
            raise Reject("give measurement, model and recipe by hash, in this order, as evidence")
        models: dict[str, Any] = ctx.state.setdefault("final_models", {})
        models[str(artifact.packet_id)] = {"model": artifact.payload.artifact_hash, "recipe": evidence[2]}
        awaited = ctx.state.get("awaited")
        if awaited is not None:
            await self.validate(SessionState.model_validate(awaited), ctx)

    async def validate(self, session: SessionState, ctx: HandlerContext) -> None:
        """Judge the ARTIFACT of EXECUTION, once, on the round's untouched slice."""
        brief = _brief(ctx)
        judged: list[str] = ctx.state.setdefault("judged", [])
        subject = next((one for one in session.subjects if str(one) not in judged), None)
        if brief is None or subject is None:
            return
        final = ctx.state.get("final_models", {}).get(str(subject))
        if final is None:
            ctx.state["awaited"] = session.model_dump(mode="json")
            return
        await self._judge(subject, final["model"], final["recipe"], brief, session, ctx)
        judged.append(str(subject))
        ctx.state.pop("awaited", None)

    async def veto_falsified(self, arbitration: Packet[ArbitrationPayload], ctx: HandlerContext) -> None:
        """Send a VETO against a winner whose outcome could not be reproduced."""
        payload = arbitration.payload
        winner = next(one for one in payload.candidates if one.candidate_id == payload.winner_candidate_id)
        falsified = ctx.state.get("falsified", [])
        if any(str(packet_id) in falsified for packet_id in winner.packet_ref_ids):
            reason = "the winner's outcome could not be reproduced from its artifacts"
            await ctx.emit(SignalPayload(signal=Signal.VETO, reason=reason), to=ORCHESTRATOR)

    async def _rescore(self, brief: Brief, model_hash: str, ctx: HandlerContext) -> JsonObject:
        study = await self._studies.study(brief, ctx.artifacts)
        try:
            model = await fetch(ctx.artifacts, model_hash)
            [predictions] = await self._workbench.predict(model, study, study.held_out)
            return await self._workbench.run(work.rescore, model, predictions, study)
        except (ArtifactMissing, ArtifactCorrupt, ArtifactTooLarge, ModelFileRefused) as error:
            log.warning("model_unusable", artifact_hash=model_hash, reason=str(error))
            return {"outcome": 0.0, "audit": 0.0}

    async def _judge(
        self,
        artifact_id: UUID,
        model_hash: str,
        recipe_hash: str,
        brief: Brief,
        session: SessionState,
        ctx: HandlerContext,
    ) -> None:
        study = await self._studies.study(brief, ctx.artifacts)
        model = await fetch(ctx.artifacts, model_hash)
        recipe = await fetch(ctx.artifacts, recipe_hash)
        untouched = await fetch(ctx.artifacts, brief.untouched(session.round))
        judged = await self._validated(model, recipe, study, untouched)
        document = {**judged, "model": model_hash, "untouched": untouched.hash}
        document_hash = await ctx.artifacts.put(rfc8785.dumps(document))
        gates = document["gates"]
        await ctx.emit(
            role_payloads.evaluation(gates, role_payloads.loss_note(document, "untouched")),
            to=ORCHESTRATOR,
            parent=artifact_id,
            run_phase=RunPhase.VALIDATION,
            generation=session.generation,
            confidence=gates["stability"],
            proof_bundle=role_payloads.proof(gates, document_hash, model_hash, recipe_hash, untouched.hash),
            lineage=Lineage(protocol_id=recipe_hash),
        )

    async def _validated(self, model: Blob, recipe: Blob, study: Study, untouched: Blob) -> JsonObject:
        """Return the measurement document; a model that cannot be read fails every gate."""
        try:
            first, again = await self._workbench.predict(model, study, untouched, again=True)
            return await self._workbench.run(work.validate, model, first, again, recipe.data, study, untouched)
        except ModelFileRefused as error:
            log.warning("model_unusable", artifact_hash=model.hash, reason=str(error))
            return await self._workbench.run(work.unusable, recipe.data, study, untouched)


def _trust(swarm: str, name: str, is_reproduced: bool, ctx: HandlerContext) -> float:
    """Return the share of a swarm's works that could be reproduced, by the rule of succession; record this one."""
    works: dict[str, bool] = ctx.state.setdefault("works", {}).setdefault(swarm, {})
    earlier = [verdict for work_name, verdict in works.items() if work_name != name]
    works[name] = is_reproduced
    return round((sum(earlier) + 1) / (len(earlier) + 2), 6)


def _brief(ctx: HandlerContext) -> Brief | None:
    stored = ctx.state.get("brief")
    return None if stored is None else Brief.model_validate(stored)
