"""The window is a store comonad."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.minds.context.windows import windows

from apc_minds.context import ContextWindow, Turn, TurnRole, verify_comonad_laws
from apc_minds.context.window import Store

LAWS = settings(max_examples=100)


@given(windows())
@LAWS
def test_left_identity(window: ContextWindow) -> None:
    here = window.duplicate()[window.position]
    assert here.value == window.extract()
    assert here.window == window


@given(windows())
@LAWS
def test_right_identity(window: ContextWindow) -> None:
    positions = range(len(window) + 1)
    assert [one.value for one in window.duplicate()] == [window.seek(position).extract() for position in positions]
    assert [one.value for one in window.duplicate()] == [None, *window.all_turns()]


@given(windows())
@LAWS
def test_associativity_with_nested_windows(window: ContextWindow) -> None:
    views = window.views()
    outside_in: Store[Store[ContextWindow]] = views.duplicate()
    inside_out: Store[Store[ContextWindow]] = views.map(ContextWindow.views)
    assert outside_in.position == inside_out.position == window.position
    for outer, (left, right) in enumerate(zip(outside_in.values(), inside_out.values(), strict=True)):
        assert left.position == right.position == outer
        for inner, (one, other) in enumerate(zip(left.values(), right.values(), strict=True)):
            assert one == other
            assert one.position == inner
            assert one.extract() == ([None, *window.all_turns()])[inner]


@given(windows())
@LAWS
def test_the_check_of_the_protocol_agrees(window: ContextWindow) -> None:
    assert verify_comonad_laws(window)


def _seen(window: ContextWindow) -> tuple[int, str]:
    turn = window.extract()
    return window.position, turn.content if turn else ""


@given(windows(), st.integers(1, 3))
@LAWS
def test_extend_composes(window: ContextWindow, width: int) -> None:
    def before(view: ContextWindow) -> str:
        return "|".join(turn.content for turn in view.all_turns()[max(0, view.position - width) : view.position])

    def longest(store: Store[str]) -> int:
        return max(len(text) for text in store.values()[: store.position + 1])

    views = window.views()
    at_once = views.extend(lambda view: longest(view.extend(lambda one: before(one.extract()))))
    one_after_the_other = views.extend(lambda one: before(one.extract())).extend(longest)
    assert at_once.values() == one_after_the_other.values()
    assert window.extend(_seen) == [_seen(one.window) for one in window.duplicate()]


@given(windows())
@LAWS
def test_what_a_function_does_to_its_view_reaches_no_other(window: ContextWindow) -> None:
    def spoil(view: ContextWindow) -> int:
        view.append(TurnRole.USER, "spoiled")
        return len(view)

    before = (window.all_turns(), window.position, window.total_tokens)
    assert window.extend(spoil) == [len(window) + 1] * (len(window) + 1)
    assert (window.all_turns(), window.position, window.total_tokens) == before


@given(windows(max_turns=30))
@LAWS
def test_extend_and_duplicate_share_every_turn(window: ContextWindow) -> None:
    turns = window.all_turns()
    snapshots = window.duplicate()
    assert all(one.window._contents.turns is window._contents.turns for one in snapshots)
    assert all(one.linearity_map is window.linearity for one in snapshots)
    assert all(mine is its for one in snapshots[:3] for mine, its in zip(turns, one.window.all_turns(), strict=True))
    assert all(view._contents.turns is window._contents.turns for view in window.extend(lambda view: view))


class _Broken(ContextWindow):
    """A window that forgets its focus when it is looked at from elsewhere."""

    def seek(self, position: int) -> ContextWindow:
        return super().seek(0 if position == len(self) else position)


def test_a_window_that_breaks_a_law_is_found() -> None:
    window = _Broken(100)
    window.append(TurnRole.USER, "hello")
    with pytest.raises(AssertionError, match="left identity"):
        verify_comonad_laws(window)


def test_versions_share_their_chunks() -> None:
    window = ContextWindow()
    for number in range(100):
        window.append(TurnRole.ASSISTANT, f"turn {number}")
    older = window.copy()
    newest: Turn = window.append(TurnRole.USER, "one more")
    shared = zip(older._contents.turns._chunks, window._contents.turns._chunks, strict=True)
    assert all(one is other for one, other in shared)
    assert (len(older), older.position) == (100, 100)
    assert window.extract() is newest
