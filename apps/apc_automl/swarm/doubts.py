"""What a method takes for granted, and how it may fail: by the table, the recipe, and the trial most like it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from apc_automl.data.table_profile import TableProfile
from apc_automl.data.table_schema import Schema
from apc_automl.swarm.notebook import Entry
from apc_automl.training.recipes import Recipe
from apc_automl.training.spaces import FAMILIES
from apc_contracts.payloads.by_type import FailureMode

VolumeClass = Literal["XS", "S", "M", "L", "XL"]

ROWS_FOR_A_FEATURE = 10
"""With fewer rows for each number of a row, a method can learn the table by heart (a rule of thumb)."""
UNEVEN = 0.8
"""Classes whose entropy is below this share of that of equal ones."""
NEGLIGIBLE = 0.02
"""What a gate may be short of without being a way to fail."""
CELLS: Mapping[VolumeClass, int] = {"XS": 10_000, "S": 100_000, "M": 1_000_000, "L": 10_000_000}
"""Class of a data volume -> the numbers that it has at most."""


INDEPENDENT = "the rows are drawn independently of each other"


def assumptions_of(recipe: Recipe, schema: Schema, profile: TableProfile | None) -> tuple[str, ...]:
    """Return what must hold of this table for this method to be any good."""
    return (INDEPENDENT, FAMILIES[recipe.family].assumption, *_of_preparation(recipe, schema, profile))


def assumptions_of_plan(families: Sequence[str]) -> tuple[str, ...]:
    """Return what must hold of a table for one of these families to be any good."""
    return (INDEPENDENT, *dict.fromkeys(FAMILIES[family].assumption for family in families))


def failure_modes_of(
    schema: Schema, profile: TableProfile | None, nearest: Entry | None = None
) -> tuple[FailureMode, ...]:
    """Return how a method may fail on this table; empty where nothing that is known speaks for a failure."""
    return (*_by_table(schema, profile), *_by_trial(nearest))


def volume_class(schema: Schema, profile: TableProfile) -> VolumeClass:
    """Return how large the table is once its categories are spelled out."""
    cells = profile.rows * schema.feature_count
    return next((name for name, most in CELLS.items() if cells <= most), "XL")


def _of_preparation(recipe: Recipe, schema: Schema, profile: TableProfile | None) -> Iterator[str]:
    holes = sum(column.has_missing for column in schema.columns)
    if holes:
        share = "" if profile is None else f" ({profile.missing_share:.1%} of all cells)"
        fill = recipe.preprocessing.get("missing")
        yield f"a missing number tells nothing: {holes} columns have some{share}, the {fill} stands for them"
    rare = recipe.preprocessing.get("rare_category_share")
    if isinstance(rare, float) and rare and any(column.categories for column in schema.columns):
        yield f"categories of less than {rare:.0%} of the rows can be taken together"


def _by_table(schema: Schema, profile: TableProfile | None) -> Iterator[FailureMode]:
    if profile is None:
        return
    if profile.rows < ROWS_FOR_A_FEATURE * schema.feature_count:
        yield FailureMode(
            id="overfits",
            description=f"it learns the table by heart: {profile.rows} rows of {schema.feature_count} numbers each",
            mitigation="generalization_ratio and learnability are measured on held-out data",
        )
    if profile.classes and profile.spread < UNEVEN:
        yield FailureMode(
            id="uneven-classes",
            description=f"it neglects the rare ones of {profile.classes} classes, whose evenness is {profile.spread}",
            mitigation="the logarithmic loss counts each row by the probability of its class",
        )


def _by_trial(nearest: Entry | None) -> Iterator[FailureMode]:
    """Yield the gates that the most similar method came closest to failing."""
    if nearest is None:
        return
    for name, shortfall in sorted(nearest.shortfalls.items()):
        if shortfall > NEGLIGIBLE:
            yield FailureMode(
                id=name,
                description=f"{WHAT_FAILS[name]}: the method most like it, of {nearest.name}, is {shortfall:g} short",
                mitigation=f"the gate measures {name} again for each model",
            )


WHAT_FAILS: Mapping[str, str] = {
    "stability": "its quality depends on which rows it is trained on",
    "learnability": "more rows make it worse",
    "generalization_ratio": "it does worse on rows that it has not seen",
    "drift_risk": "it says other things of new rows than of those it knows",
}
"""Gate -> what it means that a model is short of the best there can be."""
