"""The measured gates of a model (docs/specification/agents.md section 7): numbers from data, nothing declared.

Loss: logarithmic loss of the class probabilities, or mean squared error. Outcome: how much of the trivial
baseline's loss a model takes away, in 0..1. All results are rounded, so that they read well in a packet.

Drift: each column, and the errors, are compared by the largest distance between two empirical distributions
(Kolmogorov and Smirnov). How far apart two samples of the same rows may lie by chance is known, so the bar grows for
few rows and for many columns: of independent splits at most one in two hundred is refused, whatever the table is.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, mean_squared_error

from apc_automl.data.columns import as_numbers
from apc_automl.data.table_schema import Schema

LOWEST_PROBABILITY = 0.002
"""Class probabilities are clipped here: one wrong row at probability 0 must not cost an endless loss."""
DIGITS = 6
NONE_PASSED = {
    "rtf": 0.0,
    "stability": 0.0,
    "audit": 0.0,
    "outcome": 0.0,
    "learnability": 0.0,
    "generalization_ratio": 0.0,
    "drift_risk": 1.0,
}
"""The gates of a model that cannot be read."""

Numbers = np.ndarray[Any, Any]


def loss_of(labels: Numbers, predictions: Numbers, classes: Sequence[int | str]) -> float:
    """Return the mean loss of predictions: probabilities (rows, classes), or numbers (rows,) if `classes` is empty."""
    if not classes:
        return float(mean_squared_error(labels, predictions))
    clipped = np.clip(predictions, LOWEST_PROBABILITY, 1.0)
    return float(log_loss(labels, clipped / clipped.sum(axis=1, keepdims=True), labels=list(classes)))


def baseline_loss(train_labels: Numbers, labels: Numbers, classes: Sequence[int | str]) -> float:
    """Return the loss of the trivial baseline on `labels`: class shares, or the mean, of the training labels."""
    return loss_of(labels, trivial_predictions(train_labels, len(labels), classes), classes)


def trivial_predictions(train_labels: Numbers, rows: int, classes: Sequence[int | str]) -> Numbers:
    """Return what the trivial baseline says of so many rows: the class shares, or the mean, of the training labels."""
    if not classes:
        return np.full(rows, train_labels.mean())
    return np.tile([(train_labels == name).mean() for name in classes], (rows, 1))


def score_words(labels: Numbers, predictions: Numbers, classes: Sequence[int | str]) -> str:
    """Return the score in a unit that people know: the accuracy, or the usual error in the target's unit."""
    if not classes:
        return f"root mean squared error {np.sqrt(mean_squared_error(labels, predictions)):.4g}"
    named = np.array(classes, dtype=object)[predictions.argmax(axis=1)]
    return f"accuracy {np.mean(named == labels):.1%}"


def outcome_of(loss: float, baseline: float) -> float:
    """Return max(0, 1 - loss / loss of the trivial baseline); 0 if the baseline has no loss."""
    return round(min(1.0, max(0.0, 1.0 - loss / baseline)), DIGITS) if baseline > 0 else 0.0


def stability_of(fold_outcomes: Sequence[float]) -> float:
    """Return 1 - the standard error of the outcomes over the folds.

    The deviation is normalised by the root of the number of folds: it says how far the cross-validated
    outcome, whose whole range is 1, would move with other folds.
    """
    error = float(np.std(fold_outcomes, ddof=1) / np.sqrt(len(fold_outcomes)))
    return round(max(0.0, 1.0 - error), DIGITS)


def learnability_of(curve: Sequence[float]) -> float:
    """Return how little of what was learned is lost again as training data grow; 1 = no step of the curve falls.

    Args:
        curve: outcomes on held-out data with ever more training rows; the last one uses them all.
    """
    if curve[-1] <= 0:
        return 0.0
    kept = [min(1.0, later / earlier) for earlier, later in pairwise(curve) if earlier > 0]
    return round(min(kept, default=1.0), DIGITS)


def generalization_of(unseen_outcome: float, cross_validated_outcome: float) -> float:
    """Return the outcome on unseen data over the cross-validated one, 0..2; 0 if cross-validation found nothing."""
    if cross_validated_outcome <= 0:
        return 0.0
    return round(min(2.0, unseen_outcome / cross_validated_outcome), DIGITS)


def errors_of(labels: Numbers, predictions: Numbers, classes: Sequence[int | str]) -> Numbers:
    """Return the error of each row: of a class minus the logarithm of its probability, of a number the distance."""
    if not classes:
        return np.asarray(np.abs(predictions - labels))
    place = {name: number for number, name in enumerate(classes)}
    own = predictions[np.arange(len(labels)), [place[label] for label in labels.tolist()]]
    return np.asarray(-np.log(np.clip(own, LOWEST_PROBABILITY, 1.0)))


def agreement_of(first: Numbers, second: Numbers) -> float:
    """Return the share of rows on which two sets of predictions are identical, bit for bit."""
    same = first == second
    return round(float(np.mean(same.all(axis=1) if same.ndim == 2 else same)), DIGITS)


DRIFT_LIMIT = 0.3
"""The promotion gate's bar (contract): the risk of a distance that is just allowed."""
REFUSED_BY_CHANCE = 0.005
"""Of independent splits, by all comparisons of a table together, at most."""
NEGLIGIBLE = 0.1
"""A distance that is no drift, however many rows prove it."""
ERRORS = "errors"
ERROR_STEP = 0.05
"""Resolution of errors, as a fraction of the mean error of the trivial baseline."""


def column_distances(known: pd.DataFrame, unseen: pd.DataFrame, schema: Schema) -> dict[str, float]:
    """Return column -> distance between the known and the unseen rows, in 0..1."""
    found = {}
    for column in schema.columns:
        if column.name == schema.time:
            continue  # Later rows are later.
        # Together, so that a category has one number on both sides.
        values = pd.concat([known[column.name], unseen[column.name]], ignore_index=True)
        numbers = as_numbers(values, column).fillna(-np.inf).to_numpy()
        found[column.name] = drift_distance(numbers[: len(known)], numbers[len(known) :])
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
    return drift_distance(np.round(known / step), np.round(unseen / step), is_one_sided=True)


def drift_distance(known: Numbers, unseen: Numbers, *, is_one_sided: bool = False) -> float:
    """Return the largest distance between two empirical distributions; one-sided: where unseen values are larger."""
    known, unseen = np.sort(known), np.sort(unseen)
    places = np.concatenate([known, unseen])
    below = np.searchsorted(known, places, side="right") / len(known)
    below = below - np.searchsorted(unseen, places, side="right") / len(unseen)
    return float(max(0.0, below.max()) if is_one_sided else np.abs(below).max())


def risk_of(distances: Mapping[str, float], known: int, unseen: int) -> tuple[float, str]:
    """Return the risk in 0..1, and what drifted most; a risk of `DRIFT_LIMIT` is the largest that chance explains.

    Args:
        distances: of each column and of the errors.
        known: number of rows.
        unseen: number of rows.
    """
    allowed = max(NEGLIGIBLE, _by_chance(REFUSED_BY_CHANCE / len(distances), known, unseen))
    name = max(distances, key=lambda one: (distances[one], one))
    # Up to half of what is allowed there is nothing to say.
    return min(1.0, DRIFT_LIMIT * max(0.0, 2 * distances[name] / allowed - 1)), name


def _by_chance(share: float, known: int, unseen: int) -> float:
    """Return the distance that this share of pairs of samples exceeds by chance."""
    return math.sqrt(-math.log(share / 2) / 2 * (known + unseen) / (known * unseen))
