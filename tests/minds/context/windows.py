"""Generated windows: every role, class, focus and pressure."""

from datetime import UTC, datetime, timedelta
from itertools import count

from hypothesis import strategies as st

from apc_minds.context import CompressionResult, ContextWindow, ResourceClass, TurnRole
from apc_minds.context.window import Clock

CONTENTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
    st.lists(st.sampled_from(["We looked. ", "It rains in Rome! ", "Decision: go. ", "remember: 7\n", "naïve ☂ "]))
    .map("".join)
    .map(lambda text: text * 3),
)
TARGETS = st.floats(0, 1)


def ticking() -> Clock:
    """Return a clock that goes one second on every time it is read."""
    seconds = count()
    return lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds))


@st.composite
def windows(draw: st.DrawFn, max_turns: int = 12) -> ContextWindow:
    """Return a window of 0..max_turns turns, some of them promoted, focused anywhere."""
    window = ContextWindow(draw(st.integers(0, 400)), clock=ticking())
    for _ in range(draw(st.integers(0, max_turns))):
        turn = window.append(draw(st.sampled_from(TurnRole)), draw(CONTENTS))
        asked = draw(st.sampled_from(ResourceClass))
        if draw(st.booleans()) and not asked < window.class_of(turn):
            window.promote(turn.resource_id, asked)
    return window.seek(draw(st.integers(0, len(window))))


def stored(*results: CompressionResult) -> dict[str, bytes]:
    """Return what a store holds after these compressions of one conversation: each turn as it first came."""
    kept: dict[str, bytes] = {}
    for result in results:
        for folded in result.folded:
            kept.setdefault(folded.turn.resource_id, folded.turn.to_bytes())
    return kept
