"""What a model is told where turns were dropped, so that a question without its answer is not read as unanswered.

Source: docs/reference/conformance/context-engineering.md, section 2.2.
"""

from bisect import bisect
from collections.abc import Iterable
from typing import Final

from apc_agents.context.window.contents import Folding
from apc_agents.context.window.turns import Turn, TurnRole
from apc_agents.context.window.window import ContextWindow

NOTE_ID: Final = "dropped"
"""The resource_id of every note; a note is in no window."""


def with_gaps_told(window: ContextWindow) -> list[Turn]:
    """Return the turns of a window, and a note in each place where turns were dropped.

    One note tells of all places when the notes would lead above max_tokens; none does when even that one would.
    """
    turns = window.all_turns()
    gaps = _gaps(window, turns) if turns else []
    for told in (gaps, [[one for gap in gaps for one in gap]] if gaps else []):
        notes = [_note(window, gap) for gap in told]
        if window.total_tokens + sum(note.tokens for note in notes) <= window.max_tokens:
            return sorted([*turns, *notes], key=lambda turn: turn.ordinal)
    return turns


def _gaps(window: ContextWindow, turns: Iterable[Turn]) -> list[list[tuple[int, str]]]:
    """Return ordinals and ids of dropped turns, by the place between the remaining turns."""
    left, dropped = [turn.ordinal for turn in turns], Folding.DROPPED
    gaps: dict[int, list[tuple[int, str]]] = {}
    for ordinal, key in sorted((fold.ordinal, key) for key, fold in window.folded.items() if fold.how is dropped):
        gaps.setdefault(bisect(left, ordinal), []).append((ordinal, key))
    return list(gaps.values())


def _note(window: ContextWindow, gap: list[tuple[int, str]]) -> Turn:
    (ordinal, first), (_, last) = gap[0], gap[-1]
    which = f"turn, {first}, is" if len(gap) == 1 else f"turns, {first} to {last}, are"
    content = f"[{len(gap)} {which} left out]"
    turns = window.all_turns()
    since = next((turn.timestamp for turn in reversed(turns) if turn.ordinal < ordinal), None)
    return Turn(
        role=TurnRole.SYSTEM,
        content=content,
        timestamp=since or turns[0].timestamp,
        resource_id=NOTE_ID,
        ordinal=ordinal,
        tokens=window.counter.count(content),
    )
