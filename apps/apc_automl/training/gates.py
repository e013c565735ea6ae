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
INDEX_BINS = 10
ROWS_PER_BIN = 15
DRIFT_SCALE = 1.2
"""Population stability index x 1.2: the customary alarm at 0.25 becomes the promotion limit of 0.3."""
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
    if not classes:
        return loss_of(labels, np.full(len(labels), train_labels.mean()), classes)
    shares = np.array([(train_labels == name).mean() for name in classes])
    return loss_of(labels, np.tile(shares, (len(labels), 1)), classes)


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


def drift_risk_of(reference: Numbers, unseen: Numbers) -> float:
    """Compute the population stability index between two sets of predictions, in 0..1; the mean over the classes.

    What chance alone adds to the index, (bins - 1) (1/n + 1/m), is taken off first: else small tables would
    always look as if they drifted (Yurdakul, Statistical Properties of the Population Stability Index, 2018).
    """
    columns = zip(np.atleast_2d(reference.T), np.atleast_2d(unseen.T), strict=True)
    index = float(np.mean([_stability_index(first, second) for first, second in columns]))
    return round(min(1.0, DRIFT_SCALE * index), DIGITS)


def agreement_of(first: Numbers, second: Numbers) -> float:
    """Return the share of rows on which two sets of predictions are identical, bit for bit."""
    same = first == second
    return round(float(np.mean(same.all(axis=1) if same.ndim == 2 else same)), DIGITS)


def _stability_index(reference: Numbers, unseen: Numbers) -> float:
    smaller = min(len(reference), len(unseen))
    bins = max(2, min(INDEX_BINS, smaller // ROWS_PER_BIN))
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]))
    expected, observed = (_shares(values, edges) for values in (reference, unseen))
    index = float(np.sum((observed - expected) * np.log(observed / expected)))
    return max(0.0, index - len(edges) * (1 / len(reference) + 1 / len(unseen)))


def _shares(values: Numbers, edges: Numbers) -> Numbers:
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    # Half a row in every bin: an empty one must not make the index endless.
    return np.asarray((counts + 0.5) / (len(values) + 0.5 * len(counts)))
