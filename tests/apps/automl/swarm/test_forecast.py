"""What a swarm expects of a method comes from what it has measured, and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_automl.swarm.forecast import MIDDLING, Forecast, likeness
from apc_automl.swarm.notebook import Entry
from apc_automl.training.recipes import Recipe
from apc_automl.training.search import Trial

SETTINGS = {"penalty": 1.0, "depth": 4}


def recipe(family: str = "ridge", **changed: float) -> Recipe:
    return Recipe(family=family, preprocessing={"missing": "median"}, parameters={**SETTINGS, **changed})


def entry(of: Recipe, outcome: float, risk: float = 0.1, model_bytes: int = 1000, **trial: bool) -> Entry:
    return Entry(
        name="work",
        round=1,
        generation=0,
        trial=Trial(recipe=of, outcome=outcome, **trial),
        stability=0.9,
        shortfalls={"stability": risk},
        model_bytes=model_bytes,
    )


def test_who_has_measured_nothing_expects_the_middle_and_is_sure_of_nothing() -> None:
    expected = Forecast.of(recipe(), [])
    assert (expected.impact.quality_gain, expected.confidence, expected.nearest) == (MIDDLING, 0.0, None)
    assert (expected.impact.cost_change, expected.impact.risk_change) == (0.0, 0.0)


def test_a_method_is_expected_to_do_as_those_most_like_it() -> None:
    good, poor = entry(recipe(), 0.9, 0.05), entry(recipe("forest"), 0.2, 0.6)
    near, far = Forecast.of(recipe(penalty=2.0), [good, poor]), Forecast.of(recipe("forest", depth=8), [good, poor])
    assert far.impact.quality_gain < near.impact.quality_gain < 0
    assert far.impact.risk_change > near.impact.risk_change > 0
    assert (near.nearest, far.nearest) == (good, poor)


def test_the_cost_is_that_of_the_models_size() -> None:
    small, large = entry(recipe(), 0.9, model_bytes=1_000), entry(recipe("forest"), 0.8, model_bytes=100_000)
    assert Forecast.of(recipe("forest", depth=8), [small, large]).impact.cost_change > 0.9
    assert Forecast.of(recipe(penalty=2.0), [small]).impact.cost_change == 0.0
    assert Forecast.of(recipe(penalty=2.0), [entry(recipe(), 0.9, model_bytes=0)]).impact.cost_change == 0.0


def test_trials_that_agree_make_sure_and_others_do_not() -> None:
    agreeing = Forecast.of(recipe(), [entry(recipe(), 0.8), entry(recipe(penalty=2.0), 0.8)])
    contrary = Forecast.of(recipe(), [entry(recipe(), 1.0), entry(recipe(penalty=2.0), 0.1)])
    assert agreeing.confidence > contrary.confidence > 0


def test_what_was_falsified_says_nothing() -> None:
    assert Forecast.of(recipe(), [entry(recipe(), 1.0, is_falsified=True)]) == Forecast.of(recipe(), [])


def test_a_plan_is_as_sure_as_it_knows_methods_from_elsewhere() -> None:
    assert Forecast.of_plan(0).confidence == 0.0
    assert 0 < Forecast.of_plan(1).confidence < Forecast.of_plan(3).confidence < 1


@given(
    st.lists(
        st.tuples(st.sampled_from(("ridge", "forest")), st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**9)),
        max_size=6,
    )
)
def test_every_figure_is_within_its_bounds(trials: list[tuple[str, float, float, int]]) -> None:
    entries = [entry(recipe(family), outcome, risk, size) for family, outcome, risk, size in trials]
    expected = Forecast.of(recipe(depth=8), entries)
    for change in expected.impact.model_dump().values():
        assert -1 <= change <= 1
    assert 0 <= expected.confidence <= 1


@pytest.mark.parametrize(
    ("other", "alike"), [(recipe(), 1.0), (recipe("forest"), 0.1), (recipe(penalty=2.0), pytest.approx(0.8))]
)
def test_likeness_is_a_matter_of_family_and_settings(other: Recipe, alike: float) -> None:
    assert likeness(recipe(), other) == alike
