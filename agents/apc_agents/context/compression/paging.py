"""Takes the oldest turns out verbatim when what compression must not touch is too much already.

Source: docs/specification/agents.md section 4.
"""

from dataclasses import replace

from apc_agents.context.compression.projector import CompressionResult, FoldedTurn, fits, folded_turn
from apc_agents.context.window.classification import INITIAL_PROMPT
from apc_agents.context.window.contents import Folding
from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.placeholder import is_placeholder, with_placeholder
from apc_agents.context.window.turns import Turn
from apc_agents.context.window.window import ContextWindow

PLACEHOLDER_TOKENS = 32
"""Room that is kept for the placeholder."""


def page_out(result: CompressionResult, down_to: float, keep_recent: int) -> CompressionResult:
    """Return what a compression left above its target, less its oldest turns, until the pressure is `down_to`.

    REQUIRED turns go before PRESERVED ones. The initial system prompt stays, the newest `keep_recent` turns too.
    The turns stay whole in the store, and a placeholder with their ids stays in the window.
    """
    window, chosen = result.window, dict[str, Turn]()
    has_placeholder = any(is_placeholder(turn) for turn in window.all_turns())
    total = window.total_tokens + (0 if has_placeholder else PLACEHOLDER_TOKENS)
    for turn in _candidates(window, keep_recent):
        if fits(total, window, down_to):
            break
        chosen[turn.resource_id] = turn
        total -= turn.tokens
    if not chosen:
        return result
    paged = {key: folded_turn(turn, Folding.PAGED, window.class_of(turn)) for key, turn in chosen.items()}
    since = next(turn.timestamp for turn in window.all_turns() if is_placeholder(turn) or turn.resource_id in chosen)
    left = (turn for turn in window.all_turns() if turn.resource_id not in chosen)
    changed = with_placeholder(window.with_folds({key: one.fold for key, one in paged.items()}), left, since)
    if changed.total_tokens >= window.total_tokens:
        return result  # The placeholder would take more room than the turns that it stands for.
    return replace(
        result,
        window=changed,
        target_met=fits(changed.total_tokens, changed, result.target_pressure),
        compressed_tokens=changed.total_tokens,
        folded=merged(result.folded, tuple(paged.values())),
    )


def merged(before: tuple[FoldedTurn, ...], after: tuple[FoldedTurn, ...]) -> tuple[FoldedTurn, ...]:
    """Merge two rounds of folding: each turn as it was before the first round, with its end in the last."""
    folded = {one.turn.resource_id: one for one in before}
    for one in after:
        first = folded.get(one.turn.resource_id)
        folded[one.turn.resource_id] = one if first is None else replace(one, turn=first.turn, stored=first.stored)
    return tuple(sorted(folded.values(), key=lambda one: one.turn.ordinal))


def is_pinned(window: ContextWindow, turn: Turn) -> bool:
    """Return whether a turn is the initial system prompt."""
    return window.linearity.provenance(turn.resource_id)[0].source == INITIAL_PROMPT


def _candidates(window: ContextWindow, keep_recent: int) -> list[Turn]:
    turns = window.all_turns()
    old = turns[: max(0, len(turns) - keep_recent)]
    movable = [turn for turn in old if not is_placeholder(turn) and not is_pinned(window, turn)]
    ranked = {ResourceClass.REQUIRED: 0, ResourceClass.PRESERVED: 1}
    return sorted(
        (turn for turn in movable if window.class_of(turn) in ranked), key=lambda turn: ranked[window.class_of(turn)]
    )
