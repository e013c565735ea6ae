"""The polynomial: states, what each takes, what follows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_minds.context import (
    CONTEXT_POLYNOMIAL,
    VALID_DIRECTIONS,
    ArgumentInvalid,
    ContextInput,
    ContextOutput,
    ContextPressureError,
    ContextState,
    ContextWindow,
    InvalidTransition,
    TurnInvalid,
    context_transition,
)
from apc_minds.context.polynomial import ADDED_DIRECTIONS, SEED_DIRECTIONS

from .windows import ticking

INPUTS = {
    "user_turn": ContextInput.user_turn("hello"),
    "assistant_turn": ContextInput.assistant_turn("well, hello"),
    "tool_turn": ContextInput.tool_turn("42"),
    "system": ContextInput.system("be brief"),
    "compress": ContextInput.compress(),
    "clear": ContextInput.clear(),
}
EMPTY, ACCUMULATING, PRESSURED, COMPRESSED = ContextState


def test_the_states_and_directions_are_those_of_the_protocol() -> None:
    assert [state.name for state in ContextState] == ["EMPTY", "ACCUMULATING", "PRESSURED", "COMPRESSED"]
    assert SEED_DIRECTIONS == {
        EMPTY: {"user_turn", "system"},
        ACCUMULATING: {"user_turn", "assistant_turn", "compress", "clear"},
        PRESSURED: {"compress", "clear"},
        COMPRESSED: {"user_turn", "assistant_turn", "clear"},
    }


def test_what_was_added_to_the_protocol_is_listed() -> None:
    added = {state: VALID_DIRECTIONS[state] - SEED_DIRECTIONS[state] for state in ContextState}
    assert {state: kinds for state, kinds in added.items() if kinds} == ADDED_DIRECTIONS
    assert {state: kinds for state, kinds in ADDED_DIRECTIONS.items()} == {
        ACCUMULATING: {"tool_turn", "system"},
        COMPRESSED: {"tool_turn", "system", "compress"},
    }


def test_the_polynomial_joins_them() -> None:
    assert CONTEXT_POLYNOMIAL.positions == set(ContextState)
    assert {state: CONTEXT_POLYNOMIAL.directions(state) for state in ContextState} == VALID_DIRECTIONS
    assert CONTEXT_POLYNOMIAL.transition is context_transition


def _window(tokens: int = 0) -> ContextWindow:
    window = ContextWindow(100, clock=ticking())
    if tokens:
        window.append("assistant", "x" * (4 * tokens))
    return window


@pytest.mark.parametrize("state", ContextState)
@pytest.mark.parametrize("kind", INPUTS)
def test_a_state_takes_what_it_lists_and_nothing_else(state: ContextState, kind: str) -> None:
    window = _window(0 if state is EMPTY else 10)
    before = window.copy()
    if kind in VALID_DIRECTIONS[state]:
        reached, output = context_transition(state, INPUTS[kind], window)
        assert output.state is reached
        return
    expected = ContextPressureError if state is PRESSURED else InvalidTransition
    with pytest.raises(expected):
        context_transition(state, INPUTS[kind], window)
    assert window == before


@pytest.mark.parametrize(
    ("state", "kind", "tokens", "reached"),
    [
        (EMPTY, "user_turn", 0, ACCUMULATING),
        (EMPTY, "system", 0, ACCUMULATING),
        (ACCUMULATING, "user_turn", 60, ACCUMULATING),
        (ACCUMULATING, "user_turn", 69, PRESSURED),
        (ACCUMULATING, "assistant_turn", 69, PRESSURED),
        (ACCUMULATING, "tool_turn", 70, PRESSURED),
        (ACCUMULATING, "compress", 50, COMPRESSED),
        (ACCUMULATING, "clear", 50, EMPTY),
        (PRESSURED, "compress", 90, COMPRESSED),
        (PRESSURED, "clear", 90, EMPTY),
        (COMPRESSED, "user_turn", 50, ACCUMULATING),
        (COMPRESSED, "user_turn", 70, PRESSURED),
        (COMPRESSED, "assistant_turn", 50, ACCUMULATING),
        (COMPRESSED, "system", 50, ACCUMULATING),
        (COMPRESSED, "compress", 50, COMPRESSED),
        (COMPRESSED, "clear", 50, EMPTY),
    ],
)
def test_a_transition_leads_where_the_pressure_says(
    state: ContextState, kind: str, tokens: int, reached: ContextState
) -> None:
    assert context_transition(state, INPUTS[kind], _window(tokens))[0] is reached


def test_a_transition_shows_what_a_frontend_may_see() -> None:
    window = _window()
    state, _ = context_transition(EMPTY, ContextInput.system("secret prompt"), window)
    state, output = context_transition(state, ContextInput.user_turn("hello"), window)
    assert isinstance(output, ContextOutput)
    assert [message["content"] for message in output.messages] == ["hello"]
    assert (output.pressure, output.state, output.compressed) == (0.06, ACCUMULATING, False)
    _, output = context_transition(state, ContextInput.compress(0.0), window)
    assert output.compressed


@pytest.mark.parametrize(
    ("given_input", "error"),
    [
        (ContextInput("user_turn", 7), TurnInvalid),
        (ContextInput("user_turn"), TurnInvalid),
        (ContextInput("compress", 1.5), ArgumentInvalid),
        (ContextInput("compress", float("nan")), ArgumentInvalid),
        (ContextInput("compress", None), ArgumentInvalid),
        (ContextInput("clear", "all"), TurnInvalid),
        (ContextInput("shout", "hello"), InvalidTransition),
    ],
)
def test_an_input_with_a_payload_that_does_not_fit_changes_nothing(
    given_input: ContextInput, error: type[Exception]
) -> None:
    window = _window(50)
    before = window.copy()
    with pytest.raises(error):
        context_transition(ACCUMULATING, given_input, window)
    assert window == before


@given(st.lists(st.sampled_from(sorted(INPUTS)), max_size=30), st.integers(0, 60))
@settings(max_examples=100)
def test_no_walk_takes_an_input_that_its_state_does_not_list(kinds: list[str], max_tokens: int) -> None:
    state, window = EMPTY, ContextWindow(max_tokens)
    for kind in kinds:
        before = window.copy()
        try:
            reached, output = context_transition(state, INPUTS[kind], window)
        except (ContextPressureError, InvalidTransition):
            assert kind not in VALID_DIRECTIONS[state]
            assert window == before
            continue
        assert kind in VALID_DIRECTIONS[state]
        assert (reached is EMPTY) is (kind == "clear")
        assert (reached is COMPRESSED) is (kind == "compress")
        assert (reached is PRESSURED) is (kind not in ("clear", "compress") and window.pressure > 0.7)
        assert output.pressure == window.pressure
        state = reached
