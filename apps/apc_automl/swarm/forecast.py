"""What a swarm expects of a method before it is measured, from what it has measured so far.

Each sound trial speaks for a method as loudly as the two are alike. What is not known speaks too: as one trial of
middling quality that is a little like everything.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from apc_automl.swarm.notebook import Entry
from apc_automl.training.recipes import Recipe
from apc_contracts.payloads.by_type import ExpectedImpact

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
