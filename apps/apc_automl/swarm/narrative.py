"""The librarian's narrative of a run: what was asked, tried, found and decided, as turns of an engineered context.

It has the same size however long the run is: what moved nothing is dropped first, what moved something is shortened,
and everything stays word for word in the memory store. The report shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from apc_agents.errors import EmitRefused, Retry
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.ports import MEMORY_AWAY_AFTER
from apc_automl.swarm.briefs import LIBRARIAN, WORKING_STATES
from apc_bus.telemetry import get_logger
from apc_contracts.payloads.by_type import ArbitrationPayload, DecisionPayload
from apc_contracts.payloads.session_signals import SessionState
from apc_minds.context import (
    ContextError,
    ContextSession,
    ContextStale,
    MemoryContextStore,
    SessionConfig,
    TurnRole,
    emit_compressions,
)
from apc_minds.memory import BaseMemoryStore, MemoryUnavailable
from apc_minds.text import ExtractiveSummarizer

NARRATIVE_TOKENS: Final = 2_000
"""About two pages of the report."""
NOTE_TOKENS: Final = 300
"""Of one note; what is longer is shortened."""
CONFIG: Final = SessionConfig(max_tokens=NARRATIVE_TOKENS)
NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""A narrative counts rounds and generations, not hours: the same seed gives the same turns with the same digests, and
so the same audit in the log (docs/specification/agents.md section 7)."""

Scores = Mapping[str, float]
"""Verified scores by swarm, 1 = the best."""

log = get_logger("apc_automl")


@dataclass(frozen=True, slots=True)
class Note:
    """One turn. `key` names what it tells: it is told once. A text that begins with a marker outlives others."""

    key: str
    role: TurnRole
    text: str


@dataclass(frozen=True, slots=True)
class Narrative:
    """What a report shows: the notes as they stand in the window, and how many are folded."""

    notes: tuple[str, ...]
    folded: int


async def narrate(ctx: HandlerContext, *notes: Note) -> None:
    """Add notes to the narrative of the packet's session; one that is there already is not told twice.

    The session is saved before the outcome of the packet: a handler that runs again finds its notes.

    Raises:
        Retry: the memory store does not answer.
        EmitUnconfirmed: an audit could not be sent; nothing was added.
    """
    if not notes:
        return
    store = MemoryContextStore(ctx.memory, ctx.agent.agent_id)
    try:
        session = await ContextSession.open(
            ctx.session_id,
            store=store,
            config=CONFIG,
            clock=lambda: NO_TIME,
            on_compression=emit_compressions(ctx),
        )
        known = {turn.metadata.get("note") for turn in session.window.all_turns()}
        for note in notes:
            if note.key not in known:
                await _add(session, note)
        await session.save()
    except (MemoryUnavailable, ContextStale) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error
    except (EmitRefused, ContextError) as refused:
        # Such as an audit for a session that has ended meanwhile. A run does not fail for want of its narrative.
        log.warning("note_refused", session_id=ctx.session_id, reason=str(refused))


async def _add(session: ContextSession, note: Note) -> None:
    text = ExtractiveSummarizer().extract(note.text, min(NOTE_TOKENS, session.message_limit))
    add = {
        TurnRole.SYSTEM: session.add_system_turn,
        TurnRole.ASSISTANT: session.add_assistant_turn,
        TurnRole.TOOL: session.add_tool_turn,
    }[note.role]
    await add(text, {"note": note.key})


async def read_narrative(memory: BaseMemoryStore, session_id: str) -> Narrative | None:
    """Return the narrative of a session; None without one. Raises as the store."""
    session = await ContextSession.open(session_id, store=MemoryContextStore(memory, LIBRARIAN), config=CONFIG)
    if not session.revision:
        return None
    window = session.window
    return Narrative(tuple(turn.content for turn in window.all_turns()), len(window.folded))


def opening_notes(
    facts: Sequence[str], generations: int, seed: int, families: Mapping[str, Sequence[str]]
) -> list[Note]:
    """Return what is asked: by the user of the librarian, and by the librarian of the swarms."""
    task = f"Find the best model: {'; '.join(facts)}. {generations} generations a round, seed {seed}."
    briefed = "; ".join(f"{swarm} searches {', '.join(names)}" for swarm, names in families.items())
    return [
        Note("task", TurnRole.SYSTEM, task),
        Note("briefs", TurnRole.ASSISTANT, f"Decision: everyone is briefed. {briefed}."),
    ]


def generation_note(place: Sequence[int], ideas: Mapping[str, str], before: Scores, after: Scores) -> Note:
    """Return what a generation has brought: kept longer when it moved a score.

    Args:
        place: round and generation that have closed.
        ideas: by swarm, what it tried.
        before, after: the scores when it began and when it closed.
    """
    round_number, generation = place
    stands = ", ".join(f"{swarm} {score:.3f}" for swarm, score in sorted(after.items())) or "nobody has a score"
    name = f"generation {generation} of round {round_number}"
    opening = f"Result: {name} moved the scores" if before != after else f"{name.capitalize()} moved nothing"
    tried = "".join(f"\n{swarm}: {idea}" for swarm, idea in sorted(ideas.items()))
    return Note(f"generation/{round_number}/{generation}", TurnRole.TOOL, f"{opening}: {stands}.{tried}")


def round_note(round_number: int) -> Note:
    """Return a validation that failed."""
    text = f"Result: the model of round {round_number - 1} was not promoted. Round {round_number} begins."
    return Note(f"round/{round_number}", TurnRole.TOOL, text)


def arbitration_note(arbitration: ArbitrationPayload) -> Note:
    """Return what was compared, and what won. Packets are counted, not named: their ids differ from run to run."""
    named = [one for one in arbitration.candidates if one.candidate_id.rpartition(".")[2].isdigit()]
    if named:
        compared = ", ".join(f"{one.candidate_id} {one.total_score:.3f}" for one in named)
        text = f"Decision: {arbitration.winner_candidate_id} wins the arbitration of {compared} and the baseline."
    else:
        offered = sum(bool(one.packet_ref_ids) for one in arbitration.candidates)
        taken = sum(name.startswith("selected:") for name in arbitration.scoring)
        text = f"Decision: {arbitration.arbitration_id} takes {taken} of {offered} transfers over."
    return Note(f"arbitration/{arbitration.arbitration_id}", TurnRole.TOOL, text)


def decision_note(decision: DecisionPayload) -> Note:
    """Return what shall be done."""
    return Note(f"decision/{decision.decision_id}", TurnRole.TOOL, f"Decision: {decision.recommendation}.")


class Watch:
    """What the librarian remembers from SYNC to SYNC, in `ctx.state`: the open generation, its ideas, the scores."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def hear(self, swarm: str, idea: str) -> None:
        """Note that a swarm has told its method of the open generation."""
        self._state.setdefault("ideas", {})[swarm] = idea

    def notes(self, session: SessionState) -> list[Note]:
        """Return what a SYNC tells: the generation that it closes, a round that it opens."""
        place, is_working = [session.round, session.generation], session.state in WORKING_STATES
        was: list[int] | None = self._state.get("open")
        notes = []
        if was is not None and (was != place or not is_working):
            notes.append(generation_note(was, self._state.get("ideas", {}), self._state["scores"], session.scores))
        if is_working and was is None and session.round > 1:
            notes.append(round_note(session.round))
        return notes

    def follow(self, session: SessionState) -> None:
        """Wait for the next SYNC: this one is told."""
        place = [session.round, session.generation] if session.state in WORKING_STATES else None
        if place != self._state.get("open"):
            self._state |= {"open": place, "scores": dict(session.scores), "ideas": {}}
