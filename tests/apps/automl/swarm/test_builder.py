"""The builders: each generation once, the same work in every run, transfers where the rule asks for them."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from apc_agents.testing import AgentTestClient
from apc_automl.swarm.briefs import LIBRARIAN, SENTINEL, Brief, TableProfile, brief_payload
from apc_automl.swarm.builder import make_builder
from apc_automl.training.material import Prepared
from apc_automl.training.recipes import Recipe
from apc_automl.training.workbench import Workbench
from apc_bus.artifacts import ArtifactStore
from apc_contracts.packet import Lineage, Packet, ProofBundle
from apc_contracts.payloads.by_type import (
    ArtifactPayload,
    ClaimPayload,
    EvalPayload,
    IdeaPayload,
    SignalPayload,
    TransferPayload,
    TransferPolicy,
)
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase, Signal, TransferMode

PHASES = {
    "INDEPENDENT_DISCOVERY": RunPhase.DISCOVERY,
    "SELECTIVE_TRANSFER": RunPhase.REFINEMENT,
    "CONTROLLED_CONVERGENCE": RunPhase.CONVERGENCE,
    "EXECUTION": RunPhase.EXECUTION,
}


async def start(client: AgentTestClient, prepared: Prepared, swarm: str) -> None:
    """Give the builder its brief."""
    store = client.artifacts
    slices = {
        "schema": await store.put(prepared.schema),
        "train": await store.put(prepared.train),
        "held-out": await store.put(prepared.held_out),
    }
    brief = brief_payload(swarm, "task-1", "run-1", TableProfile.of(prepared.profile), Brief(seed=7, slices=slices), ())
    await client.send(brief, sender=LIBRARIAN, phase=RunPhase.RESEARCH, round=1)


async def sync(
    client: AgentTestClient,
    state: str,
    generation: int,
    *,
    scores: dict[str, float] | None = None,
    subjects: Iterable[UUID] = (),
    paused: bool = False,
    packet_id: UUID | None = None,
) -> list[Packet]:
    """Return what the builder emits on a SYNC."""
    before = len(client.emitted)
    session = SessionState(
        state=state,
        run_phase=PHASES[state],
        round=1,
        generation=generation,
        step=generation + 2,
        paused=paused,
        scores=scores or {},
        subjects=tuple(subjects),
    )
    await client.send(
        SignalPayload(signal=Signal.SYNC, session=session),
        sender=ORCHESTRATOR,
        phase=PHASES[state],
        generation=generation,
        round=1,
        step=generation + 2,
        packet_id=packet_id,
    )
    await client.settled()
    return client.emitted[before:]


def types(packets: list[Packet]) -> list[PacketType]:
    return [packet.packet_type for packet in packets]


def said(packets: list[Packet]) -> list[dict[str, Any]]:
    return [packet.payload.model_dump(mode="json", exclude={"artifact_uri"}) for packet in packets]


async def test_after_its_brief_a_builder_has_a_plan_and_is_ready(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        await client.settled()
        idea, ready = client.emitted
    assert idea.packet_type is PacketType.IDEA
    assert ready.payload == SignalPayload(signal=Signal.SYNC, reason="ready for generation 0")
    assert ready.recipients[0].agent_id == ORCHESTRATOR
    assert ready.trace.generation == 0
    assert idea.confidence == 0.0, "nothing is known of this table yet"
    assert idea.payload_as(IdeaPayload).complexity is not None


async def test_a_method_is_announced_with_figures_that_come_from_what_was_measured(
    prepared: Prepared, workbench: Workbench
) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        first, artifact, measured = await sync(client, "INDEPENDENT_DISCOVERY", 0)
        second, *_ = await sync(client, "INDEPENDENT_DISCOVERY", 1)
        third, *_ = await sync(client, "INDEPENDENT_DISCOVERY", 2)
    assert artifact.confidence == measured.payload_as(EvalPayload).metric_set.rtf
    assert measured.confidence == measured.payload_as(EvalPayload).metric_set.stability
    assert first.confidence < second.confidence < 1
    ideas = (first, second, third)
    assert len({idea.payload_as(IdeaPayload).expected_impact.quality_gain for idea in ideas}) == 3
    assert (
        second.payload_as(IdeaPayload).expected_impact.quality_gain
        < first.payload_as(IdeaPayload).expected_impact.quality_gain
    )
    assert third.payload_as(IdeaPayload).expected_impact.cost_change != 0.0
    assert third.payload_as(IdeaPayload).expected_impact.risk_change != 0.0


async def test_a_generation_is_worked_on_once_whatever_repeats(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        assert await sync(client, "INDEPENDENT_DISCOVERY", 0, paused=True) == []
        idea, artifact, evaluation = await sync(client, "INDEPENDENT_DISCOVERY", 0)
        assert await sync(client, "INDEPENDENT_DISCOVERY", 0) == []
        model = await client.artifacts.get(artifact.payload_as(ArtifactPayload).artifact_hash)
    assert types([idea, artifact, evaluation]) == [PacketType.IDEA, PacketType.ARTIFACT, PacketType.EVAL]
    assert evaluation.trace.parent_packet_id == artifact.packet_id
    assert evaluation.proof_bundle is not None
    assert evaluation.proof_bundle.evidence_refs[1] == artifact.payload_as(ArtifactPayload).artifact_hash
    assert evaluation.payload_as(EvalPayload).metric_set.outcome > 0.5
    assert evaluation.recipients[0].agent_id == SENTINEL
    assert model


async def test_a_builder_that_lost_its_work_does_it_again_word_for_word(
    prepared: Prepared, workbench: Workbench
) -> None:
    packet_id = UUID("0199aaaa-0000-7000-8000-000000000001")
    runs = []
    for _ in range(2):
        async with AgentTestClient(make_builder("trees", workbench)) as client:
            await start(client, prepared, "trees")
            runs.append(await sync(client, "INDEPENDENT_DISCOVERY", 0, packet_id=packet_id))
    first, again = runs
    assert said(first) == said(again)
    assert [packet.packet_id for packet in first] == [packet.packet_id for packet in again]


async def test_transfers_go_to_swarms_that_are_clearly_behind(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        scores = {"linear": 0.9, "trees": 0.7, "neighbours": 0.8}
        assert PacketType.TRANSFER not in types(await sync(client, "INDEPENDENT_DISCOVERY", 10, scores=scores))
        emitted = await sync(client, "SELECTIVE_TRANSFER", 11, scores=scores)
        transfers = [packet for packet in emitted if packet.packet_type is PacketType.TRANSFER]
        recipe = Recipe.read(await client.artifacts.get(transfers[0].payload_as(TransferPayload).protocol_id))
    assert [packet.recipients[0].agent_id for packet in transfers] == ["builder-trees"]
    assert types(emitted)[-1] is PacketType.TRANSFER
    payload = transfers[0].payload_as(TransferPayload)
    assert (payload.sender_score, payload.receiver_score, payload.transfer_policy.top_k) == (0.9, 0.7, 2)
    assert payload.transfer_policy.mode is TransferMode.SELECTIVE_IMPORT
    assert recipe.family in ("logistic", "discriminant")


async def imported(client: AgentTestClient, store: ArtifactStore, generation: int) -> str:
    """Send the builder a TRANSFER of a forest."""
    recipe = Recipe(
        family="random_forest",
        preprocessing={"scaling": "none", "missing": "median", "rare_category_share": 0.01},
        parameters={"trees": 30, "leaf_rows": 4, "column_share": 0.5, "depth": 6},
        ancestor_swarms=("trees",),
    )
    protocol = await store.put(recipe.canonical())
    mode = TransferMode.SELECTIVE_IMPORT
    await client.send(
        TransferPayload(
            protocol_id=protocol,
            from_swarm="trees",
            to_swarm="linear",
            sender_score=0.9,
            receiver_score=0.5,
            transfer_policy=TransferPolicy(mode=mode, top_k=2),
        ),
        sender="builder-trees",
        phase=RunPhase.REFINEMENT,
        generation=generation,
        round=1,
        step=generation + 2,
        lineage=Lineage(protocol_id=protocol, transfer_mode=mode),
    )
    return protocol


async def test_an_import_is_used_two_generations_later(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        await sync(client, "SELECTIVE_TRANSFER", 11)
        protocol = await imported(client, client.artifacts, 11)
        next_one = await sync(client, "SELECTIVE_TRANSFER", 12)
        after = await sync(client, "SELECTIVE_TRANSFER", 13)
        proof = after[-1].proof_bundle
        assert proof is not None
        recipe = Recipe.read(await client.artifacts.get(proof.evidence_refs[2]))
    assert "random_forest" not in next_one[0].payload_as(IdeaPayload).intent
    assert recipe.family == "random_forest"
    assert recipe.parents == (protocol,)


async def test_convergence_has_no_ideas(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("neighbours", workbench)) as client:
        await start(client, prepared, "neighbours")
        await sync(client, "INDEPENDENT_DISCOVERY", 0)
        emitted = await sync(client, "CONTROLLED_CONVERGENCE", 22)
    assert types(emitted) == [PacketType.ARTIFACT, PacketType.EVAL]


async def test_what_the_sentinel_falsified_is_not_offered(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        await sync(client, "SELECTIVE_TRANSFER", 11)
        claim = ClaimPayload(
            claim_id="checked", hypothesis_id="linear-r1-g11", text="falsified", confidence_pre=0.5, confidence_post=0.0
        )
        await client.send(
            claim,
            sender=SENTINEL,
            phase=RunPhase.REFINEMENT,
            generation=11,
            round=1,
            step=13,
            proof_bundle=ProofBundle(evidence_refs=("sha256:0",)),
        )
        emitted = await sync(client, "SELECTIVE_TRANSFER", 12, scores={"linear": 0.9, "trees": 0.1})
        transfer = next(packet for packet in emitted if packet.packet_type is PacketType.TRANSFER)
        offered = Recipe.read(await client.artifacts.get(transfer.payload_as(TransferPayload).protocol_id))
        notebook = (await client.state())["notebook"]
    falsified, second = notebook["entries"]
    assert (falsified["trial"]["is_falsified"], second["trial"]["is_falsified"]) == (True, False)
    assert offered == Recipe.model_validate(second["trial"]["recipe"])


async def test_only_the_winner_refits_and_only_once(prepared: Prepared, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        await start(client, prepared, "linear")
        _, artifact, evaluation = await sync(client, "INDEPENDENT_DISCOVERY", 0)
        assert await sync(client, "EXECUTION", 1, subjects=[UUID(int=5)]) == []
        final, judged = await sync(client, "EXECUTION", 1, subjects=[evaluation.packet_id])
        assert await sync(client, "EXECUTION", 1, subjects=[evaluation.packet_id]) == []
    assert final.run_phase is RunPhase.EXECUTION
    assert final.payload_as(ArtifactPayload).artifact_hash != artifact.payload_as(ArtifactPayload).artifact_hash
    assert judged.trace.parent_packet_id == final.packet_id


@pytest.mark.parametrize("state", ["INDEPENDENT_DISCOVERY", "EXECUTION"])
async def test_without_a_brief_there_is_nothing_to_do(state: str, workbench: Workbench) -> None:
    async with AgentTestClient(make_builder("linear", workbench)) as client:
        assert await sync(client, state, 0) == []
