"""The sentinel: measures for itself, says so in the form the phase allows, and judges on untouched data."""

from uuid import UUID

import pytest
import rfc8785

from apc_agents.testing import AgentTestClient
from apc_automl.data.table_schema import Schema
from apc_automl.swarm import role_payloads
from apc_automl.swarm.briefs import LIBRARIAN, Brief, TableProfile, brief_payload
from apc_automl.swarm.sentinel import make_sentinel
from apc_automl.training.material import Measured, Prepared, Study
from apc_automl.training.measuring import measure, refit
from apc_automl.training.recipes import Recipe
from apc_automl.training.search import Place, next_recipe
from apc_automl.training.workbench import Workbench
from apc_contracts.packet import Actor, Packet, ProofBundle
from apc_contracts.payloads.by_type import (
    ArbitrationPayload,
    Candidate,
    ClaimPayload,
    EvalPayload,
    SignalFields,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase, Signal

BUILDER = Actor(agent_id="builder-linear", role="builder", swarm_id="linear")
ARTIFACT_ID = UUID("0199aaaa-0000-7000-8000-000000000002")
EVAL_ID = UUID("0199aaaa-0000-7000-8000-000000000003")


@pytest.fixture(scope="module")
def recipe(study: Study) -> Recipe:
    schema = Schema.model_validate_json(study.schema.data)
    return next_recipe(Place(seed=7, swarm="linear", round=1, generation=0), schema, [], [])


@pytest.fixture(scope="module")
def measured(recipe: Recipe, study: Study) -> Measured:
    return measure(recipe.canonical(), study)


async def brief(client: AgentTestClient, prepared: Prepared) -> None:
    parts = {"schema": prepared.schema, "train": prepared.train, "held-out": prepared.held_out}
    parts |= {f"untouched-{number}": rows for number, rows in enumerate(prepared.untouched, start=1)}
    slices = {name: await client.artifacts.put(data) for name, data in parts.items()}
    payload = brief_payload(
        "sentinel", "task-1", "run-1", TableProfile.of(prepared.profile), Brief(seed=7, slices=slices), ()
    )
    await client.send(payload, sender=LIBRARIAN, phase=RunPhase.RESEARCH, round=1)


async def evidence(client: AgentTestClient, measured: Measured, recipe: Recipe) -> ProofBundle:
    document = await client.artifacts.put(rfc8785.dumps(measured.document))
    model = await client.artifacts.put(measured.model)
    return ProofBundle(evidence_refs=(document, model, await client.artifacts.put(recipe.canonical())))


async def declare(
    client: AgentTestClient, measured: Measured, recipe: Recipe, outcome: float, phase: RunPhase, generation: int = 3
) -> Packet | None:
    """Return a builder's EVAL with this declared outcome."""
    return await client.send(
        role_payloads.evaluation({**measured.document["gates"], "outcome": outcome}),
        sender=BUILDER,
        phase=phase,
        generation=generation,
        round=1,
        step=5,
        proof_bundle=await evidence(client, measured, recipe),
        packet_id=UUID(int=EVAL_ID.int + generation - 3),
    )


async def test_a_true_outcome_is_confirmed(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        outcome = measured.document["gates"]["outcome"]
        claim = await declare(client, measured, recipe, outcome, RunPhase.DISCOVERY)
    assert claim is not None
    assert claim.packet_type is PacketType.CLAIM
    assert (claim.payload_as(ClaimPayload).confidence_pre, claim.payload_as(ClaimPayload).confidence_post) == (0.5, 1.0)
    assert claim.payload_as(ClaimPayload).hypothesis_id == "linear-r1-g3"
    assert claim.recipients[0].agent_id == BUILDER.agent_id


async def test_a_false_outcome_is_falsified_and_its_victory_vetoed(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        claim = await declare(client, measured, recipe, 0.99, RunPhase.REFINEMENT)
        veto = await client.send(arbitration(EVAL_ID), sender=ORCHESTRATOR, phase=RunPhase.ARBITRATION)
        assert await client.send(arbitration(UUID(int=9)), sender=ORCHESTRATOR, phase=RunPhase.ARBITRATION) is None
    assert claim is not None
    assert veto is not None
    assert claim.payload_as(ClaimPayload).confidence_post == 0.0
    assert veto.payload_as(SignalFields).signal is Signal.VETO


async def test_who_was_right_before_is_believed_more(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    outcome = measured.document["gates"]["outcome"]
    believed = []
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        for generation, declared in enumerate((outcome, outcome, 0.99, outcome)):
            claim = await declare(client, measured, recipe, declared, RunPhase.DISCOVERY, generation)
            assert claim is not None
            believed.append(claim.payload_as(ClaimPayload).confidence_pre)
    assert believed == [0.5, pytest.approx(2 / 3), 0.75, 0.6]


def arbitration(winner: UUID) -> ArbitrationPayload:
    baseline = Candidate(candidate_id="baseline", packet_ref_ids=(), score_components={}, total_score=0.0)
    best = Candidate(candidate_id="best", packet_ref_ids=(winner,), score_components={}, total_score=1.0)
    return ArbitrationPayload(
        arbitration_id="candidates", candidates=(best, baseline), winner_candidate_id="best", scoring={}
    )


async def test_in_convergence_the_verdict_is_an_evaluation(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        evaluation = await declare(client, measured, recipe, 0.99, RunPhase.CONVERGENCE)
    assert evaluation is not None
    assert evaluation.packet_type is PacketType.EVAL
    assert evaluation.payload_as(EvalPayload).metric_set.outcome == measured.document["gates"]["outcome"]


async def test_a_model_that_is_no_model_is_falsified(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        fake = Measured(b"no model", measured.document)
        claim = await declare(client, fake, recipe, 0.9, RunPhase.DISCOVERY)
    assert claim is not None
    assert claim.payload_as(ClaimPayload).confidence_post == 0.0


async def final_artifact(client: AgentTestClient, final: Measured, recipe: Recipe) -> Packet | None:
    proof = await evidence(client, final, recipe)
    return await client.send(
        role_payloads.model_artifact("linear-r1-final", proof.evidence_refs[1], "memory:///model"),
        sender=BUILDER,
        phase=RunPhase.EXECUTION,
        generation=11,
        round=1,
        step=20,
        proof_bundle=proof,
        packet_id=ARTIFACT_ID,
    )


async def validation(client: AgentTestClient) -> Packet | None:
    state = SessionState(
        state="VALIDATION",
        run_phase=RunPhase.VALIDATION,
        round=1,
        generation=11,
        step=21,
        paused=False,
        scores={},
        subjects=(ARTIFACT_ID,),
    )
    payload = SignalPayload(signal=Signal.SYNC, session=state)
    return await client.send(payload, sender=ORCHESTRATOR, phase=RunPhase.VALIDATION, generation=11, round=1, step=21)


@pytest.mark.parametrize("overtaken", [False, True])
async def test_the_final_model_is_judged_once_in_either_order(
    overtaken: bool, prepared: Prepared, study: Study, recipe: Recipe, workbench: Workbench
) -> None:
    final = refit(recipe.canonical(), study)
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        if overtaken:
            assert await validation(client) is None
            verdict = await final_artifact(client, final, recipe)
        else:
            assert await final_artifact(client, final, recipe) is None
            verdict = await validation(client)
        assert await validation(client) is None
    assert verdict is not None
    assert verdict.packet_type is PacketType.EVAL
    assert verdict.run_phase is RunPhase.VALIDATION
    assert verdict.trace.parent_packet_id == ARTIFACT_ID
    assert verdict.payload_as(EvalPayload).passed
    assert verdict.recipients[0].agent_id == ORCHESTRATOR
    notes = verdict.payload_as(EvalPayload).notes
    assert notes is not None and "untouched rows" in notes[0]


async def test_a_final_model_that_is_no_model_passes_no_gate(
    prepared: Prepared, measured: Measured, recipe: Recipe, workbench: Workbench
) -> None:
    async with AgentTestClient(make_sentinel(workbench)) as client:
        await brief(client, prepared)
        assert await final_artifact(client, Measured(b"no model", measured.document), recipe) is None
        verdict = await validation(client)
    assert verdict is not None
    assert not verdict.payload_as(EvalPayload).passed
    assert verdict.payload_as(EvalPayload).metric_set.outcome == verdict.payload_as(EvalPayload).metric_set.rtf == 0.0
