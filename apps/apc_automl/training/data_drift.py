"""Drift: do unseen rows look like those that the model knows, and is it more often wrong on them?

Each column, and the errors, are compared by the largest distance between two empirical distributions (Kolmogorov and
Smirnov). How far apart two samples of the same rows may lie by chance is known, so the bar grows for few rows and for
many columns: of independent splits at most one in two hundred is refused, whatever the table looks like.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.table import as_numbers
from apc_automl.data.table_schema import Schema

LIMIT = 0.3
"""The promotion gate's bar (contract): the risk of a distance that is just allowed."""
REFUSED_BY_CHANCE = 0.005
"""Of independent splits, by all comparisons of a table together, at most."""
NEGLIGIBLE = 0.1
"""A distance that is no drift, however many rows prove it."""
ERRORS = "errors"
ERROR_STEP = 0.05
"""Errors are told apart in such shares of the mean error that the trivial baseline makes."""

Numbers = np.ndarray[Any, Any]


def column_distances(known: pd.DataFrame, unseen: pd.DataFrame, schema: Schema) -> dict[str, float]:
    """Return column -> distance between the known and the unseen rows, in 0..1."""
    found = {}
    for column in schema.columns:
        if column.name == schema.time:
            continue  # Later rows are later.
        # Together, so that a category has one number on both sides.
        values = pd.concat([known[column.name], unseen[column.name]], ignore_index=True)
        numbers = as_numbers(values, column).fillna(-np.inf).to_numpy()
        found[column.name] = distance(numbers[: len(known)], numbers[len(known) :])
    return found


def error_distance(known: Numbers, unseen: Numbers, scale: float) -> float:
    """Return how far the errors of unseen rows lie above those of known ones, in 0..1; smaller ones are no drift.

    0 where they are no larger on average: a model that was trained on more rows is wrong less often and less sure.

    Args:
        known: error of each row that a cross-validation predicted.
        unseen: error of each unseen row.
        scale: the mean error of the trivial baseline.
    """
    if unseen.mean() <= known.mean():
        return 0.0
    step = max(scale * ERROR_STEP, 1e-12)
    return distance(np.round(known / step), np.round(unseen / step), is_one_sided=True)


def distance(known: Numbers, unseen: Numbers, *, is_one_sided: bool = False) -> float:
    """Return the largest distance between two empirical distributions; one-sided: where unseen values are larger."""
    known, unseen = np.sort(known), np.sort(unseen)
    places = np.concatenate([known, unseen])
    below = np.searchsorted(known, places, side="right") / len(known)
    below = below - np.searchsorted(unseen, places, side="right") / len(unseen)
    return float(max(0.0, below.max()) if is_one_sided else np.abs(below).max())


def risk_of(distances: Mapping[str, float], known: int, unseen: int) -> tuple[float, str]:
    """Return the risk in 0..1, and what drifted most; a risk of `LIMIT` is the largest that chance explains.

    Args:
        distances: of each column and of the errors.
        known: number of rows.
        unseen: number of rows.
    """
    allowed = max(NEGLIGIBLE, _by_chance(REFUSED_BY_CHANCE / len(distances), known, unseen))
    name = max(distances, key=lambda one: (distances[one], one))
    # Up to half of what is allowed there is nothing to say.
    return min(1.0, LIMIT * max(0.0, 2 * distances[name] / allowed - 1)), name


def _by_chance(share: float, known: int, unseen: int) -> float:
    """Return the distance that this share of pairs of samples exceeds by chance."""
    return math.sqrt(-math.log(share / 2) / 2 * (known + unseen) / (known * unseen))
