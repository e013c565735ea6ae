"""The measured gates of a model (docs/specification/agents.md section 7): numbers from data, nothing declared.

Loss: logarithmic loss of the class probabilities, or mean squared error. Outcome: how much of the trivial
baseline's loss a model takes away, in 0..1. All results are rounded, so that they read well in a packet.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, mean_squared_error

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
