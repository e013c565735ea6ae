"""The librarian: one session, however often it starts; briefs that differ; untouched data for the sentinel alone."""

from itertools import combinations
from pathlib import Path
from uuid import uuid4

import pandas
import pytest

from apc_agents.testing import AgentTestClient
from apc_automl.model.model_file import load_model
from apc_automl.run.form import DEFAULT_TARGET
from apc_automl.settings import AutomlSettings
from apc_automl.swarm import role_payloads
from apc_automl.swarm.briefs import BUILDERS, SENTINEL, UNTOUCHED, read_brief
from apc_automl.swarm.librarian import make_librarian
from apc_automl.training.recipes import FAMILIES, Recipe, default_settings
from apc_automl.training.workbench import Workbench
from apc_contracts.packet import Actor, ProofBundle
from apc_contracts.payloads.by_type import ArtifactPayload, SignalFields, SignalPayload, TaskIrPayload
from apc_contracts.payloads.session_signals import SessionSpec, SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase, Signal


@pytest.fixture
def settings(default_table: Path) -> AutomlSettings:
    return AutomlSettings(data=default_table, target=DEFAULT_TARGET, session_id="session-1", generations=12)


def session_open() -> SignalPayload:
    state = SessionState(
        state="SESSION_OPEN",
        run_phase=RunPhase.RESEARCH,
        round=1,
        generation=0,
        step=0,
        paused=False,
        scores={},
        subjects=(),
    )
    return SignalPayload(signal=Signal.SYNC, session=state)


async def test_a_restarted_librarian_repeats_the_same_start(settings: AutomlSettings, workbench: Workbench) -> None:
    starts = []
    for _ in range(2):
        async with AgentTestClient(make_librarian(settings, workbench)) as client:
            starts += client.emitted
    first, again = starts
    assert first.packet_id == again.packet_id == settings.start_id
    assert first.payload == again.payload
    spec = first.payload_as(SignalFields).session
    assert isinstance(spec, SessionSpec)
    assert spec.generation_limit == settings.generations - 1 - settings.convergence_generations
    assert [recipient.agent_id for recipient in first.recipients] == [ORCHESTRATOR]


async def test_another_session_has_another_start(settings: AutomlSettings) -> None:
    other = settings.model_copy(update={"session_id": "session-2"})
    assert other.start_id != settings.start_id
    assert settings.start_id.version == 8


async def test_everyone_gets_its_own_brief_once(settings: AutomlSettings, workbench: Workbench) -> None:
    async with AgentTestClient(make_librarian(settings, workbench)) as client:
        for step in range(2):
            await client.send(session_open(), sender=ORCHESTRATOR, phase=RunPhase.RESEARCH, round=1, step=step)
        tasks = [packet for packet in client.emitted if packet.packet_type is PacketType.TASK_IR]
    assert [task.recipients[0].agent_id for task in tasks] == [*BUILDERS, SENTINEL]
    for one, other in combinations(tasks, 2):
        shared = set(one.symbolic_keys) & set(other.symbolic_keys)
        assert len(shared) <= min(len(one.symbolic_keys), len(other.symbolic_keys)) / 2
    briefs = [read_brief(task.payload_as(TaskIrPayload)) for task in tasks]
    knowing = [any(name.startswith(UNTOUCHED) for name in brief.slices) for brief in briefs if brief]
    assert knowing == [False, False, False, True]


async def test_the_promoted_recipe_is_trained_on_every_row_once(settings: AutomlSettings, workbench: Workbench) -> None:
    space = FAMILIES["logistic"]
    recipe = Recipe(
        family="logistic",
        preprocessing=default_settings(space.preprocessing),
        parameters=default_settings(space.parameters),
    )
    async with AgentTestClient(make_librarian(settings, workbench)) as client:
        await client.send(session_open(), sender=ORCHESTRATOR, phase=RunPhase.RESEARCH, round=1)
        hashes = [await client.artifacts.put(part) for part in (b"measured", b"model", recipe.canonical())]
        final = role_payloads.model_artifact("linear-r1-final", hashes[1], "memory:///model")
        proof = ProofBundle(evidence_refs=tuple(hashes))
        subject = uuid4()
        said = session_open().session
        assert isinstance(said, SessionState)
        done = said.model_copy(update={"state": "PROMOTION", "run_phase": RunPhase.PROMOTION, "subjects": (subject,)})
        sync = SignalPayload(signal=Signal.SYNC, session=done)
        await client.send(
            final,
            sender=Actor(agent_id=BUILDERS[0], role="builder", swarm_id="linear"),
            phase=RunPhase.EXECUTION,
            packet_id=subject,
            proof_bundle=proof,
            round=1,
        )
        for step in (5, 6):
            await client.send(sync, sender=ORCHESTRATOR, phase=RunPhase.PROMOTION, round=1, step=step)
        made = [packet for packet in client.emitted if packet.packet_type is PacketType.ARTIFACT]
        (payload,) = [packet.payload_as(ArtifactPayload) for packet in made]
        model = load_model(await client.artifacts.get(payload.artifact_hash))
    assert payload.adapter is not None and "never scored" in payload.adapter
    rows = pandas.read_csv(str(settings.data))
    assert model["columns"].named_transformers_["numeric"]["scaling"].n_samples_seen_ == len(rows)


async def test_a_table_that_went_bad_stops_the_session(settings: AutomlSettings, workbench: Workbench) -> None:
    broken = settings.model_copy(update={"target": "no such column"})
    async with AgentTestClient(make_librarian(broken, workbench)) as client:
        stop = await client.send(session_open(), sender=ORCHESTRATOR, phase=RunPhase.RESEARCH, round=1)
    assert stop is not None
    said = stop.payload_as(SignalFields)
    assert said.signal is Signal.STOP
    assert said.reason is not None and "no such column" in said.reason


async def test_a_librarian_without_a_table_opens_nothing(workbench: Workbench) -> None:
    async with AgentTestClient(make_librarian(AutomlSettings(data=None), workbench)) as client:
        assert client.emitted == []
