"""Strategy priors: a distance between tables, a choice among what worked, and a search that begins with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_automl.data.table_schema import ProblemKind, Schema
from apc_automl.swarm.briefs import INCOMPARABLE, Brief, TableProfile, brief_payload, distance, read_brief
from apc_automl.swarm.priors import PastTrial, choose_priors
from apc_automl.training.material import Prepared
from apc_automl.training.recipes import Recipe, families_of
from apc_automl.training.search import Place, Trial, next_recipe

SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 10**6)
PROFILES = st.builds(
    TableProfile,
    problem=st.sampled_from(ProblemKind),
    rows=COUNTS,
    numeric_columns=COUNTS,
    categorical_columns=COUNTS,
    missing_share=SHARES,
    classes=COUNTS,
    spread=SHARES,
)
HERE = TableProfile(
    problem=ProblemKind.CLASSIFICATION,
    rows=500,
    numeric_columns=20,
    categorical_columns=0,
    missing_share=0.0,
    classes=2,
    spread=0.9,
)
FAR = HERE.model_copy(update={"rows": 50_000, "numeric_columns": 2})
LINEAR = families_of("linear", ProblemKind.CLASSIFICATION)


def trial(run: str, family: str, recipe: str, outcome: float, profile: TableProfile = HERE) -> PastTrial:
    return PastTrial(run, profile, family, recipe, outcome)


@given(PROFILES, PROFILES)
def test_distance(one: TableProfile, other: TableProfile) -> None:
    assert distance(one, one) == 0.0
    assert distance(one, other) == distance(other, one)
    if one.problem is other.problem:
        assert 0.0 <= distance(one, other) <= 1.0
    else:
        assert distance(one, other) == INCOMPARABLE


@given(PROFILES)
def test_profile_is_read_back(profile: TableProfile) -> None:
    assert TableProfile.read(profile.expression) == profile


def test_profile_of_a_table(prepared: Prepared) -> None:
    profile = TableProfile.of(prepared.profile)

    assert (profile.rows, profile.numeric_columns, profile.classes) == (569, 30, 2)
    assert profile.spread == pytest.approx(0.95, abs=0.01)


def test_best_of_each_family_best_first_and_nothing_of_other_swarms() -> None:
    trials = [
        trial("r", "logistic", "good", 0.7),
        trial("r", "logistic", "better", 0.8),
        trial("r", "discriminant", "best", 0.9),
        trial("r", "random_forest", "forest", 1.0),
    ]

    assert choose_priors(HERE, trials, LINEAR) == ["best", "better"]


def test_tables_that_differ_teach_nothing() -> None:
    assert distance(HERE, FAR) > 0.15
    assert choose_priors(HERE, [trial("r", "logistic", "far", 0.9, FAR)], LINEAR) == []
    regression = HERE.model_copy(update={"problem": ProblemKind.REGRESSION})
    assert choose_priors(HERE, [trial("r", "logistic", "other", 0.9, regression)], LINEAR) == []


def test_what_worked_twice_goes_before_what_worked_once() -> None:
    trials = [
        trial("r1", "logistic", "lucky", 0.80),
        trial("r1", "logistic", "steady", 0.78),
        trial("r2", "logistic", "steady", 0.60),
    ]

    assert choose_priors(HERE, trials, LINEAR) == ["steady"]


@given(st.permutations([trial(f"r{n % 3}", LINEAR[n % 2], f"recipe-{n % 4}", n / 12) for n in range(12)]))
def test_choice_does_not_depend_on_the_order_of_the_log(trials: list[PastTrial]) -> None:
    assert choose_priors(HERE, trials, LINEAR) == choose_priors(
        HERE, sorted(trials, key=lambda one: (one.run_id, one.recipe_hash, one.outcome)), LINEAR
    )


def test_a_brief_carries_them_beside_the_slices() -> None:
    slices = {"schema": "sha256:1", "train": "sha256:2", "held-out": "sha256:3"}
    brief = Brief(seed=7, slices=slices, priors=("sha256:b", "sha256:a"))

    payload = brief_payload("linear", "task", "run", HERE, brief, ["a fact"])

    assert read_brief(payload) == brief.model_copy(update={"profile": HERE})


def test_a_swarm_begins_with_its_priors_then_with_what_it_does_not_know(prepared: Prepared) -> None:
    schema = Schema.model_validate_json(prepared.schema)
    families = families_of("linear", schema.problem)
    place = Place(seed=7, swarm="linear", round=1, generation=0)
    default = next_recipe(place, schema, [], [])
    prior = Recipe(
        family=families[1],
        preprocessing={"scaling": "robust", "missing": "median", "rare_category_share": 0.01},
        parameters={"shrinkage": 0.4},
        ancestor_swarms=("linear",),
    )

    first = next_recipe(place, schema, [], [], [prior])
    second = next_recipe(place, schema, [Trial(recipe=first, outcome=0.5)], [], [prior])

    assert first == prior
    assert second == default


def test_a_prior_is_fitted_to_the_options_of_this_table(prepared: Prepared) -> None:
    schema = Schema.model_validate_json(prepared.schema)
    prior = Recipe(
        family="discriminant",
        preprocessing={"scaling": "robust", "missing": "mean", "rare_category_share": 0.05},
        parameters={"shrinkage": 0.4},
    )

    fitted = next_recipe(Place(seed=7, swarm="linear", round=1, generation=0), schema, [], [], [prior])

    assert fitted.preprocessing == {"scaling": "robust", "missing": "median", "rare_category_share": 0.01}
    assert fitted.parameters == prior.parameters
    assert fitted.parents == (prior.hash,)
