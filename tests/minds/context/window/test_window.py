"""A window of turns: positions, classes, pressure, stored form."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.minds.context.windows import CONTENTS, ticking, windows

from apc_minds.context import (
    ArgumentInvalid,
    ContextSnapshot,
    ContextWindow,
    EstimatedTokens,
    Folding,
    LinearityError,
    ResourceClass,
    Turn,
    TurnInvalid,
    TurnRole,
    UnknownResource,
)
from apc_minds.context.turns import CLASS_OF_MARKER, Turns, classify, classify_by_content, classify_by_role


def _dialogue() -> ContextWindow:
    window = ContextWindow(100, clock=ticking())
    window.append("system", "You are terse.")
    window.append("user", "How far is Rome?")
    window.append("assistant", "Far.")
    return window


def test_a_turn_has_the_fields_of_the_protocol() -> None:
    turn = _dialogue().all_turns()[1]
    assert (turn.role, turn.content, turn.resource_id) == (TurnRole.USER, "How far is Rome?", "t2")
    assert turn.timestamp.isoformat() == "2026-01-01T00:00:01+00:00"
    assert turn.metadata == {}


def test_positions_go_from_before_the_first_turn_to_the_newest() -> None:
    window = _dialogue()
    assert (window.position, len(window)) == (3, 3)
    assert window.seek(0).extract() is None
    seen = [window.seek(position).extract() for position in (1, 2, 3)]
    assert seen == window.all_turns()
    assert window.position == 3, "seek gives another window and leaves this one where it was"


@pytest.mark.parametrize("position", [-1, 4, 1.0, "1", True, None])
def test_a_position_that_is_none_is_refused(position: Any) -> None:
    window = _dialogue()
    with pytest.raises(ArgumentInvalid, match=r"give 0 .* to 3"):
        window.seek(position)
    assert window == _dialogue()


def test_a_new_turn_takes_the_focus() -> None:
    window = _dialogue().seek(1)
    window.append("user", "And Paris?")
    assert window.position == 4


def test_a_snapshot_tells_where_it_was_taken() -> None:
    window = _dialogue()
    snapshots: list[ContextSnapshot[Turn | None]] = window.duplicate()
    assert [one.position for one in snapshots] == [0, 1, 2, 3]
    assert snapshots[0].timestamp is None
    assert snapshots[3].timestamp == window.all_turns()[2].timestamp
    assert snapshots[3].linearity_map.get_class("t1") is ResourceClass.PRESERVED


@pytest.mark.parametrize(
    ("role", "resource_class"),
    [
        (TurnRole.USER, ResourceClass.PRESERVED),
        (TurnRole.SYSTEM, ResourceClass.REQUIRED),
        (TurnRole.ASSISTANT, ResourceClass.DROPPABLE),
        (TurnRole.TOOL, ResourceClass.DROPPABLE),
    ],
)
def test_a_role_gives_a_class(role: TurnRole, resource_class: ResourceClass) -> None:
    window = ContextWindow()
    window.append(TurnRole.USER, "first")
    assert window.class_of(window.append(role, "plain words")) is resource_class
    assert classify_by_role(role) is resource_class


def test_the_initial_system_prompt_is_preserved_and_later_ones_are_required() -> None:
    window = _dialogue()
    later = window.append("system", "Now be verbose.")
    assert window.class_of(window.turn("t1")) is ResourceClass.PRESERVED
    assert window.class_of(later) is ResourceClass.REQUIRED


@pytest.mark.parametrize("marker", CLASS_OF_MARKER)
def test_a_marker_at_the_beginning_of_a_line_raises(marker: str) -> None:
    assert classify_by_content(f"Well.\n  {marker.upper()}: yes") is CLASS_OF_MARKER[marker]
    assert classify_by_content(f"there is no {marker}: here") is ResourceClass.DROPPABLE


@pytest.mark.parametrize(
    ("line", "resource_class"),
    [
        ("- Constraint: no jokes", ResourceClass.PRESERVED),
        ("**Decision:** go", ResourceClass.REQUIRED),
        ("# Result: 0.9", ResourceClass.REQUIRED),
        ("### __Result__: 0.9", ResourceClass.REQUIRED),
        ("> * _Remember_ : the key", ResourceClass.PRESERVED),
        ("2. **Important**: both", ResourceClass.REQUIRED),
        ("```python\nx = 1\n```", ResourceClass.REQUIRED),
        ("  ~~~\nx = 1\n  ~~~", ResourceClass.REQUIRED),
        ("- no Constraint: here", ResourceClass.DROPPABLE),
        ("**Decisions:** none", ResourceClass.DROPPABLE),
        ("call `run()` twice", ResourceClass.DROPPABLE),
    ],
)
def test_markdown_around_a_marker_is_read(line: str, resource_class: ResourceClass) -> None:
    assert classify_by_content(line) is resource_class
    assert classify_by_content(f"Well.\n\n{line}\nSo be it.") is resource_class


def test_a_long_line_of_marks_is_read_in_one_pass() -> None:
    hostile = "- #*_ \t>`" * 20_000
    assert classify_by_content(f"{hostile}x\n{hostile}1. decision{hostile}") is ResourceClass.DROPPABLE


@given(st.sampled_from(TurnRole), CONTENTS, st.booleans())
def test_markers_only_raise(role: TurnRole, content: str, is_first: bool) -> None:
    resource_class, _ = classify(role, content, is_first=is_first)
    assert not resource_class < classify_by_role(role)
    assert not resource_class < classify_by_content(content)


def test_a_class_is_tagged_promoted_and_explained() -> None:
    window = _dialogue()
    window.tag("t3", ResourceClass.REQUIRED, "the reviewer")
    window.promote("t3", ResourceClass.PRESERVED, "the user asked")
    assert [one.source for one in window.linearity.provenance("t3")] == [
        "role assistant",
        "the reviewer",
        "the user asked",
    ]
    with pytest.raises(UnknownResource, match="t9"):
        window.tag("t9", ResourceClass.REQUIRED)


def test_a_droppable_turn_can_be_dropped_and_no_other() -> None:
    window = _dialogue()
    with pytest.raises(LinearityError, match="PRESERVED"):
        window.drop("t2")
    dropped = window.drop("t3")
    assert window.all_turns() == _dialogue().all_turns()[:2]
    assert (window.position, window.total_tokens) == (2, 8)
    assert window.folded["t3"].how is Folding.DROPPED
    assert window.folded["t3"].digest == dropped.digest
    with pytest.raises(UnknownResource):
        window.drop("t3")


def test_pressure_is_the_share_of_tokens_in_use() -> None:
    window = ContextWindow(20)
    assert (window.pressure, window.needs_compression) == (0.0, False)
    window.append("user", "a" * 56)
    assert (window.total_tokens, window.pressure, window.needs_compression) == (14, 0.7, False)
    window.append("user", "b")
    assert (window.pressure, window.needs_compression, window.overflow_tokens) == (0.75, True, 0)
    window.append("user", "c" * 400)
    assert (window.pressure, window.overflow_tokens) == (1.0, 95)


def test_a_window_of_no_tokens_has_no_pressure_and_tells_its_overflow() -> None:
    window = ContextWindow(0)
    window.append("user", "hello")
    assert (window.pressure, window.needs_compression, window.overflow_tokens) == (0.0, False, 2)


@pytest.mark.parametrize("max_tokens", [-1, 1.5, "100", True, None])
def test_a_size_that_is_none_is_refused(max_tokens: Any) -> None:
    with pytest.raises(ArgumentInvalid, match="max_tokens"):
        ContextWindow(max_tokens)


@pytest.mark.parametrize(
    ("role", "content", "metadata", "place"),
    [
        ("robot", "hello", None, "role"),
        (None, "hello", None, "role"),
        ("user", b"hello", None, "content"),
        ("user", "a\0b", None, "content"),
        ("user", "\ud800", None, "content"),
        ("user", "hello", {"when": object()}, "metadata.when"),
        ("user", "hello", {"score": float("nan")}, "metadata.score"),
        ("user", "hello", {"count": [2**70]}, "metadata.count[0]"),
        ("user", "hello", {1: "a"}, "metadata"),
        ("user", "hello", ["a"], "metadata"),
    ],
)
def test_a_turn_that_no_store_can_hold_is_refused(role: Any, content: Any, metadata: Any, place: str) -> None:
    window = _dialogue()
    with pytest.raises(TurnInvalid) as refused:
        window.append(role, content, metadata)
    assert refused.value.place == place
    assert window == _dialogue()


def test_a_turn_from_elsewhere_is_refused() -> None:
    window = _dialogue()
    with pytest.raises(TurnInvalid, match="measured"):
        window.append_turn(window.all_turns()[0])


def test_metadata_is_a_copy() -> None:
    window, given_metadata = ContextWindow(), {"a": [1]}
    turn = window.append("tool", "ok", {"a": [1]})
    given_metadata["a"].append(2)
    assert turn.metadata == {"a": [1]}


@given(windows(max_turns=30))
def test_a_stored_window_is_the_same_again(window: ContextWindow) -> None:
    again = ContextWindow.from_document(orjson.loads(orjson.dumps(window.to_document())), clock=ticking())
    assert again == window
    assert again.total_tokens == window.total_tokens
    assert [turn.to_bytes() for turn in again.all_turns()] == [turn.to_bytes() for turn in window.all_turns()]


@given(windows())
def test_a_cleared_window_gives_no_id_twice(window: ContextWindow) -> None:
    used = {turn.resource_id for turn in window.all_turns()}
    cleared = window.cleared()
    assert len(cleared) == cleared.total_tokens == cleared.position == 0
    assert cleared.append("user", "again").resource_id not in used


@given(st.lists(st.integers(0, 3), max_size=200), st.data())
def test_a_shared_sequence_is_a_sequence(steps: list[int], data: st.DataObject) -> None:
    window, expected, turns = ContextWindow(), [], Turns()
    for step in steps:
        turn = window.append(TurnRole.USER, str(step))
        expected.append(turn)
        turns = turns.append(turn)
    assert list(turns) == expected
    assert turns == Turns(expected)
    assert (len(turns), turns[:5]) == (len(expected), tuple(expected[:5]))
    if expected:
        index = data.draw(st.integers(-len(expected), len(expected) - 1))
        assert turns[index] is expected[index]
    with pytest.raises(IndexError):
        turns[len(expected)]


@given(CONTENTS)
def test_the_estimate_grows_with_the_text(text: str) -> None:
    count = EstimatedTokens().count
    assert count("") == 0
    assert count(text) <= count(text + "x") <= count(text) + 1
    assert count("four" * 10) == 10
