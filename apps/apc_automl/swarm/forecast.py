"""What a swarm expects of a method before it is measured, what the method takes for granted, and how it may fail.

Each sound trial speaks for a method as loudly as the two are alike. What is not known speaks too: as one trial of
middling quality that is a little like everything.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from apc_automl.data.table_schema import Schema
from apc_automl.swarm.briefs import TableProfile
from apc_automl.swarm.notebook import Entry
from apc_automl.training.recipes import FAMILIES, Recipe
from apc_contracts.payloads.by_type import ExpectedImpact, FailureMode

OTHER_FAMILY = 0.1
"""How alike two methods of different families are."""
SAME_FAMILY = 0.4
"""How alike two methods of a family are that share no setting."""
IGNORANCE = 0.25
"""How much the trial weighs that stands for what is not known."""
MIDDLING = 0.5
"""Its outcome and its risk: the middle of what there can be."""
DIGITS = 6


@dataclass(frozen=True)
class Forecast:
    """What is expected of a method."""

    impact: ExpectedImpact
    """Against the best method so far: outcome, size of the model (relative to the larger one), risk."""
    confidence: float
    """How much of the expectation rests on trials that are alike and agree; 0 where nothing is known."""
    nearest: Entry | None
    """The trial that is most alike, the newest of equals."""

    @classmethod
    def of(cls, recipe: Recipe, entries: Sequence[Entry]) -> Self:
        """Return the forecast for a method from the trials of a swarm."""
        sound = [entry for entry in entries if not entry.trial.is_falsified]
        weights = [likeness(recipe, entry.trial.recipe) for entry in sound]
        best = max(sound, key=lambda entry: entry.trial.outcome, default=None)
        outcome = _expected(sound, weights, lambda entry: entry.trial.outcome, MIDDLING)
        risk = _expected(sound, weights, lambda entry: entry.risk, MIDDLING)
        impact = ExpectedImpact(
            quality_gain=round(outcome - (best.trial.outcome if best else 0.0), DIGITS),
            cost_change=_cost_change(sound, weights, best),
            risk_change=round(risk - (best.risk if best else MIDDLING), DIGITS),
        )
        heard = sum(weights)
        spread = math.sqrt(sum(w * (e.trial.outcome - outcome) ** 2 for w, e in zip(weights, sound, strict=True)))
        confidence = heard / (heard + IGNORANCE) * max(0.0, 1.0 - spread)
        nearest = max(zip(weights, range(len(sound)), strict=True), default=None)
        return cls(impact, round(confidence, DIGITS), None if nearest is None else sound[nearest[1]])

    @classmethod
    def of_plan(cls, known_elsewhere: int) -> Self:
        """Return the forecast of a search without measurements, from how its methods did on similar tables."""
        heard = OTHER_FAMILY * known_elsewhere
        impact = ExpectedImpact(quality_gain=MIDDLING, cost_change=0.0, risk_change=0.0)
        return cls(impact, round(heard / (heard + IGNORANCE), DIGITS), None)


def likeness(one: Recipe, other: Recipe) -> float:
    """Return 1 for methods that train the same way, down to `OTHER_FAMILY`."""
    if one.family != other.family:
        return OTHER_FAMILY
    settings = {**one.preprocessing, **one.parameters}
    others = {**other.preprocessing, **other.parameters}
    equal = sum(others.get(name) == value for name, value in settings.items())
    return SAME_FAMILY + (1.0 - SAME_FAMILY) * equal / max(1, len(settings))


def _expected(
    entries: Sequence[Entry], weights: Sequence[float], figure: Callable[[Entry], float], unknown: float
) -> float:
    told = sum(weight * figure(entry) for weight, entry in zip(weights, entries, strict=True))
    return (told + IGNORANCE * unknown) / (sum(weights) + IGNORANCE)


def _cost_change(entries: Sequence[Entry], weights: Sequence[float], best: Entry | None) -> float:
    """Return the cost change from the size of the model; 0 if no size is known."""
    sized = [(weight, entry) for weight, entry in zip(weights, entries, strict=True) if entry.model_bytes]
    if best is None or not best.model_bytes or not sized:
        return 0.0
    expected = sum(weight * entry.model_bytes for weight, entry in sized) / sum(weight for weight, _ in sized)
    return round((expected - best.model_bytes) / max(expected, best.model_bytes), DIGITS)


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
