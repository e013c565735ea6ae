"""The librarian's narrative: bounded, told once, kept across restarts, the same for the same run, and word for word."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from apc_agents.testing import AgentTestClient
from apc_automl.run.form import DEFAULT_TARGET
from apc_automl.settings import AutomlSettings
from apc_automl.swarm.briefs import LIBRARIAN
from apc_automl.swarm.librarian import make_librarian
from apc_automl.swarm.narrative import NARRATIVE_TOKENS, read_narrative
from apc_automl.training.material import Prepared
from apc_automl.training.workbench import Workbench
from apc_contracts.packet import Actor
from apc_contracts.payloads.by_type import (
    ArbitrationPayload,
    Candidate,
    DecisionPayload,
    ExpectedImpact,
    IdeaPayload,
    Payload,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, Channel, CommitmentLevel, RunPhase, Signal
from apc_minds.context import ContextSession, MemoryContextStore, SessionConfig
from apc_minds.memory import BaseMemoryStore, InMemoryMemoryStore

SESSION = "session-1"
SWARMS = ("linear", "trees", "neighbours")
GENERATIONS = 24
GATE = Actor(agent_id=ORCHESTRATOR, role="orchestrator", swarm_id="substrate")


class Run:
    """What the gate and the builders send to a librarian in a run."""

    def __init__(self, client: AgentTestClient, session_id: str = SESSION) -> None:
        self.client = client
        self.session_id = session_id

    async def sync(self, state: str, phase: RunPhase, generation: int, *, round: int = 1, paused: bool = False) -> None:
        scores = {swarm: round_score(swarm, generation) for swarm in SWARMS} if generation else {}
        told = SessionState(
            state=state,
            run_phase=phase,
            round=round,
            generation=generation,
            step=generation,
            paused=paused,
            scores=scores,
            subjects=(),
        )
        signal = SignalPayload(signal=Signal.SYNC, session=told)
        await self._send(signal, GATE, phase, round=round, generation=generation)

    async def idea(self, swarm: str, generation: int) -> None:
        idea = IdeaPayload(
            method_id=f"{swarm}-r1-g{generation}",
            intent=f"a method of {swarm}: family_{generation} ({', '.join(f'setting_{n}={n}' for n in range(6))})",
            assumptions=(),
            required_capabilities=(),
            expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
            failure_modes=(),
        )
        builder = Actor(agent_id=f"builder-{swarm}", role="builder", swarm_id=swarm)
        await self._send(idea, builder, RunPhase.DISCOVERY, generation=generation)

    async def generations(self, numbers: Sequence[int], order: Sequence[str] = SWARMS) -> None:
        for generation in numbers:
            await self.sync("INDEPENDENT_DISCOVERY", RunPhase.DISCOVERY, generation)
            for swarm in order:
                await self.idea(swarm, generation)

    async def ending(self) -> None:
        await self.sync("ARBITRATION", RunPhase.ARBITRATION, GENERATIONS)
        await self._send(candidates(), GATE, RunPhase.ARBITRATION)
        for level, words in ((CommitmentLevel.APPROVED, "execute linear.1.0"), (CommitmentLevel.DONE, "promote")):
            decision = DecisionPayload(
                decision_id=f"decision-{level}",
                recommendation=words,
                priority_distribution={"linear.1.0": 1.0},
                next_actions=(),
                commitment_level=level,
            )
            await self._send(decision, GATE, RunPhase.ARBITRATION)

    async def opening(self) -> None:
        await self.sync("SESSION_OPEN", RunPhase.RESEARCH, 0)

    async def _send(self, payload: Payload, sender: Actor, phase: RunPhase, **place: Any) -> None:
        await self.client.send(payload, sender=sender, phase=phase, session_id=self.session_id, **place)


def round_score(swarm: str, generation: int) -> float:
    """Return a score that moves in every third generation."""
    return 1.0 if swarm == "linear" else round(0.5 + generation // 3 / 100, 3)


def candidates() -> ArbitrationPayload:
    names = ("linear.1.0", "trees.1.5", "baseline")
    return ArbitrationPayload(
        arbitration_id="candidates-1",
        candidates=tuple(
            Candidate(candidate_id=name, total_score=0.5, score_components={}, packet_ref_ids=()) for name in names
        ),
        winner_candidate_id="linear.1.0",
        scoring={},
    )


class Ready(Workbench):
    """A workbench whose one job is done: no process is started, and none is waited for."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self._prepared = prepared

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._prepared


@pytest.fixture
def workbench(prepared: Prepared) -> Workbench:
    return Ready(prepared)


@pytest.fixture
def settings(default_table: Path) -> AutomlSettings:
    return AutomlSettings(data=default_table, target=DEFAULT_TARGET, session_id=SESSION, generations=GENERATIONS)


async def whole_run(
    settings: AutomlSettings, workbench: Workbench, memory: BaseMemoryStore, order: Sequence[str] = SWARMS
) -> list[Any]:
    """Return a run from its opening to its decision; returns the packets of the librarian to itself."""
    async with AgentTestClient(make_librarian(settings, workbench), memory=memory) as client:
        run = Run(client, settings.session_id)
        await run.opening()
        await run.generations(range(GENERATIONS), order)
        await run.ending()
        await client.settled()
        return [packet for packet in client.emitted if packet.channel is Channel.INTRA_AGENT]


async def test_a_long_run_is_told_within_its_window_and_kept_word_for_word(
    settings: AutomlSettings, workbench: Workbench
) -> None:
    memory = InMemoryMemoryStore()
    audits = await whole_run(settings, workbench, memory)
    narrative = await read_narrative(memory, SESSION)
    assert narrative is not None
    first, *_, last = narrative.notes
    assert first.startswith("Find the best model: classification of 'diagnosis'")
    assert narrative.notes[1].startswith("Decision: everyone is briefed. linear searches logistic")
    assert last == "Decision: execute linear.1.0."
    assert any("Decision: linear.1.0 wins the arbitration of linear.1.0 0.500, trees.1.5 0.500" in one
               for one in narrative.notes)  # fmt: skip
    assert narrative.folded > 10
    session = await ContextSession.open(
        SESSION, store=MemoryContextStore(memory, LIBRARIAN), config=SessionConfig(max_tokens=100_000)
    )
    assert session.window.total_tokens < 0.7 * NARRATIVE_TOKENS
    assert len(audits) == session.compressions > 1
    told = {one["id"]: one["before"] for audit in reversed(audits) for one in audit.metadata["context"]["folded"]}
    assert {key: fold.digest for key, fold in session.window.folded.items()}.items() <= told.items()
    assert (await session.expand()).missing == ()
    notes = [turn.content for turn in session.window.all_turns()]
    assert len(notes) == 2 + GENERATIONS + 2
    assert notes[2].startswith("Result: generation 0 of round 1 moved the scores: linear 1.000")
    assert notes[3].startswith("Generation 1 of round 1 moved nothing")
    assert "\ntrees: a method of trees: family_1 (" in notes[3]
    kept = [one for one in narrative.notes if one.startswith("Result:")]
    assert len(kept) == len([one for one in notes if one.startswith("Result:")]), "what moved something is not dropped"


async def test_a_restarted_librarian_goes_on_and_tells_nothing_twice(
    settings: AutomlSettings, workbench: Workbench
) -> None:
    whole, broken = InMemoryMemoryStore(), InMemoryMemoryStore()
    await whole_run(settings, workbench, whole)
    first = AgentTestClient(make_librarian(settings, workbench), memory=broken)
    async with first as client:
        run = Run(client)
        await run.opening()
        await run.generations(range(10))
    async with AgentTestClient(make_librarian(settings, workbench), memory=broken, states=first.states) as client:
        run = Run(client)
        await run.sync("INDEPENDENT_DISCOVERY", RunPhase.DISCOVERY, 9, paused=True)
        await run.generations(range(9, GENERATIONS))
        await run.ending()
        await run.ending()
    assert await read_narrative(broken, SESSION) == await read_narrative(whole, SESSION)


async def test_the_same_run_tells_the_same_whatever_comes_first(settings: AutomlSettings, workbench: Workbench) -> None:
    other = settings.model_copy(update={"session_id": "session-2"})
    one = await whole_run(settings, workbench, InMemoryMemoryStore())
    two = await whole_run(other, workbench, InMemoryMemoryStore(), order=SWARMS[::-1])
    assert [packet.payload for packet in one] == [packet.payload for packet in two]
    assert [(packet.trace.generation, packet.run_phase) for packet in one] == [
        (packet.trace.generation, packet.run_phase) for packet in two
    ]
    assert [packet.packet_id for packet in one] != [packet.packet_id for packet in two]


async def test_what_others_decide_is_not_noted(settings: AutomlSettings, workbench: Workbench) -> None:
    memory = InMemoryMemoryStore()
    async with AgentTestClient(make_librarian(settings, workbench), memory=memory) as client:
        await Run(client).opening()
        await client.send(candidates(), sender="somebody", phase=RunPhase.ARBITRATION)
    narrative = await read_narrative(memory, SESSION)
    assert narrative is not None and len(narrative.notes) == 2


async def test_a_session_without_a_narrative_has_none() -> None:
    assert await read_narrative(InMemoryMemoryStore(), "nobody") is None
