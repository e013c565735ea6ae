"""Assumptions and ways to fail are those of the current table and method."""

from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.swarm import forecast
from apc_automl.swarm.briefs import TableProfile
from apc_automl.swarm.notebook import Entry
from apc_automl.training.recipes import FAMILIES, Recipe
from apc_automl.training.search import Trial

RECIPE = Recipe(
    family="logistic", preprocessing={"missing": "median", "rare_category_share": 0.05}, parameters={"penalty": 1.0}
)


def schema(*columns: Column) -> Schema:
    return Schema(target="kind", problem=ProblemKind.CLASSIFICATION, label_type="text", columns=columns)


def number(name: str, has_missing: bool = False) -> Column:
    return Column(name=name, kind=ColumnKind.NUMERIC, has_missing=has_missing)


def profile(rows: int, spread: float = 1.0, missing_share: float = 0.0) -> TableProfile:
    return TableProfile(
        problem=ProblemKind.CLASSIFICATION,
        rows=rows,
        numeric_columns=2,
        categorical_columns=0,
        missing_share=missing_share,
        classes=3,
        spread=spread,
    )


def test_a_method_assumes_what_its_family_and_its_preparation_need() -> None:
    plain = forecast.assumptions_of(RECIPE, schema(number("a")), profile(1000))
    assert plain == (forecast.INDEPENDENT, FAMILIES["logistic"].assumption)
    holed = schema(number("a", has_missing=True), Column(name="b", kind=ColumnKind.CATEGORICAL, categories=4))
    more = forecast.assumptions_of(RECIPE, holed, profile(1000, missing_share=0.125))
    assert more[:2] == plain
    assert "1 columns have some (12.5% of all cells), the median stands" in more[2]
    assert "less than 5% of the rows" in more[3]


def test_every_family_says_what_it_assumes() -> None:
    assert all(family.assumption for family in FAMILIES.values())
    assert len(forecast.assumptions_of_plan(list(FAMILIES))) > 10


def test_a_large_even_table_gives_no_reason_to_fail() -> None:
    assert forecast.failure_modes_of(schema(number("a"), number("b")), profile(1000)) == ()
    assert forecast.failure_modes_of(schema(number("a")), None) == ()


def test_few_rows_and_uneven_classes_are_ways_to_fail() -> None:
    modes = forecast.failure_modes_of(schema(number("a"), number("b")), profile(15, spread=0.4))
    assert [mode.id for mode in modes] == ["overfits", "uneven-classes"]
    assert "15 rows of 2 numbers each" in modes[0].description


def test_what_the_most_similar_method_was_short_of_is_a_way_to_fail() -> None:
    nearest = Entry(
        name="linear-r1-g3",
        round=1,
        generation=3,
        trial=Trial(recipe=RECIPE, outcome=0.8),
        stability=0.9,
        shortfalls={"stability": 0.1, "drift_risk": 0.2, "learnability": 0.0, "generalization_ratio": 0.01},
    )
    modes = forecast.failure_modes_of(schema(number("a")), profile(1000), nearest)
    assert [mode.id for mode in modes] == ["drift_risk", "stability"]
    assert "of linear-r1-g3, is 0.2 short" in modes[0].description


def test_the_volume_is_that_of_the_table() -> None:
    assert [forecast.volume_class(schema(number("a")), profile(rows)) for rows in (10, 50_000, 10**9)] == [
        "XS",
        "S",
        "XL",
    ]
