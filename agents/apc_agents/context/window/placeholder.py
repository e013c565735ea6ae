"""The turn that stands for those that were paged out: it keeps their ids in the window."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from apc_agents.context.window.contents import Folding
from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.turns import Turn, TurnRole
from apc_agents.context.window.window import ContextWindow

PLACEHOLDER_ID: Final = "paged"
"""The resource_id of a window's one placeholder."""


def is_placeholder(turn: Turn) -> bool:
    """Return whether a turn stands for others."""
    return turn.resource_id == PLACEHOLDER_ID


def with_placeholder(window: ContextWindow, turns: Iterable[Turn], since: datetime) -> ContextWindow:
    """Return the window with these turns, and a placeholder for what it has paged out, where the oldest of it stood.

    Args:
        window: its folds tell what is paged out; its own placeholder is replaced.
        turns: what it shall hold, in any order, the placeholder aside.
        since: the time of the placeholder.
    """
    held = {turn.ordinal: turn for turn in turns if not is_placeholder(turn)}
    waiting = sorted((fold.ordinal, key) for key, fold in window.folded.items() if fold.how is Folding.PAGED)
    if not waiting:
        return window.with_turns(held[ordinal] for ordinal in sorted(held))
    held[waiting[0][0]] = _placeholder(window, [resource_id for _, resource_id in waiting], waiting[0][0], since)
    known = window.copy()
    if PLACEHOLDER_ID not in known.linearity:
        known.know(PLACEHOLDER_ID, ResourceClass.PRESERVED, "placeholder")
    return known.with_turns(held[ordinal] for ordinal in sorted(held))


def _placeholder(window: ContextWindow, resource_ids: list[str], ordinal: int, since: datetime) -> Turn:
    count, first, last = len(resource_ids), resource_ids[0], resource_ids[-1]
    which = f"turn, {first}, is" if count == 1 else f"turns, {first} to {last}, are"
    content = f"[{count} earlier {which} kept verbatim in memory]"
    return Turn(
        role=TurnRole.SYSTEM,
        content=content,
        timestamp=since,
        resource_id=PLACEHOLDER_ID,
        ordinal=ordinal,
        tokens=window.counter.count(content),
        metadata={"paged": list(resource_ids)},
    )
