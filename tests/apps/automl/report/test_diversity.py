"""Distance between recipes, diversity of a generation, and means with their uncertainty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_automl.bench.experiments import diversity, diversity_by_generation, recipe_distance
from apc_automl.bench.reference_runs import Interval
from apc_automl.training.recipes import Recipe

RECIPES = st.builds(
    Recipe,
    family=st.sampled_from(["ridge", "kernel"]),
    preprocessing=st.dictionaries(st.sampled_from(["scaling", "missing"]), st.sampled_from(["a", "b"])),
    parameters=st.dictionaries(st.sampled_from(["penalty", "width"]), st.sampled_from([0.1, 1.5])),
)
RIDGE = Recipe(family="ridge", preprocessing={"scaling": "standard"}, parameters={"penalty": 1.0})


@given(RECIPES, RECIPES)
def test_recipe_distance(one: Recipe, other: Recipe) -> None:
    assert recipe_distance(one, one) == 0.0
    assert recipe_distance(one, other) == recipe_distance(other, one)
    assert 0.0 <= recipe_distance(one, other) <= 1.0
    assert (recipe_distance(one, other) == 0.0) is (one.method == other.method)


def test_worked_distance() -> None:
    tuned = RIDGE.model_copy(update={"parameters": {"penalty": 3.0}})
    kernel = Recipe(family="kernel", preprocessing={"scaling": "standard"}, parameters={"width": 0.3})

    assert recipe_distance(RIDGE, tuned) == 0.5 * 1 / 2
    assert recipe_distance(RIDGE, kernel) == 0.5 + 0.5 * 2 / 3
    assert diversity([RIDGE, RIDGE, tuned]) == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert diversity_by_generation({1: {"a": RIDGE}, 0: {"a": RIDGE, "b": tuned}}) == {0: 0.25, 1: 0.0}


def test_interval_of_a_table() -> None:
    """Mean 10, standard deviation 2, n = 4: t(0.975, 3) = 3.182."""
    spread = 2 * 3**0.5 / 2
    interval = Interval.of([10 - spread, 10 - spread, 10 + spread, 10 + spread])

    assert interval.mean == pytest.approx(10)
    assert interval.high - interval.mean == pytest.approx(3.182 * 2 / 2, abs=2e-3)
    assert Interval.of([3.0]) == Interval(3.0, 3.0, 3.0, 1)
    with pytest.raises(ValueError, match="at least one"):
        Interval.of([])
