"""The adaptive threshold stays in its range and moves the way it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_minds.context import AdaptiveThreshold, ArgumentInvalid

FRACTIONS = st.floats(0, 1)
THRESHOLDS = st.builds(
    AdaptiveThreshold,
    base_threshold=FRACTIONS,
    task_progress=st.none() | FRACTIONS,
    error_rate=FRACTIONS,
    loop_detected=st.booleans(),
)


def test_a_task_of_which_nothing_is_known_has_the_threshold_of_the_protocol() -> None:
    assert AdaptiveThreshold().effective_threshold == 0.7


@given(THRESHOLDS)
def test_it_stays_in_its_range(threshold: AdaptiveThreshold) -> None:
    assert 0.5 <= threshold.effective_threshold <= 0.95


@given(THRESHOLDS, FRACTIONS, FRACTIONS)
def test_it_falls_with_progress_and_loops_and_rises_with_errors(
    threshold: AdaptiveThreshold, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    def moved(**changes: float | bool) -> float:
        return threshold.update(**changes).effective_threshold

    assert moved(task_progress=low) >= moved(task_progress=high)
    assert moved(error_rate=low) <= moved(error_rate=high)
    assert moved(loop_detected=False) >= moved(loop_detected=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_threshold", 1.1),
        ("base_threshold", None),
        ("task_progress", -0.1),
        ("error_rate", float("nan")),
        ("error_rate", "high"),
        ("loop_detected", 1),
        ("mood", 0.5),
    ],
)
def test_a_value_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentInvalid) as refused:
        AdaptiveThreshold().update(**{name: value})
    assert refused.value.place == name
