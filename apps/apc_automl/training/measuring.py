"""The work of the training processes: pure functions from bytes to bytes and numbers, one thread each.

Slices travel as bytes with their hash; a process keeps the few it parsed last.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.checks import choose_words, judge_fairly, leakage_notes, narrow, profile_table
from apc_automl.data.split import keep_together, make_folds, sample_notes, split_rows
from apc_automl.data.table import Table, decode_groups, decode_rows, encode_rows, read_table, take_ahead
from apc_automl.data.table_schema import NO_TIME, ProblemKind, Schema, TableOptions
from apc_automl.model.model_file import dump_model, load_model, predict, read_predictions
from apc_automl.training import gates
from apc_automl.training.material import Blob, JsonObject, Measured, Prepared, Study
from apc_automl.training.models import build_baseline, build_pipeline
from apc_automl.training.recipes import Recipe

FOLDS = 4
CURVE_SHARES = (1 / 3, 2 / 3)
WARM_UP_ROWS = 60
TIMINGS, SHORT_SECONDS = 2, 0.1
BUSY = 2.0
"""As if no more than two processes shared a core."""

Numbers = np.ndarray[Any, Any]


def prepare(
    path: str,
    target: str,
    problem: str | None,
    seed: int,
    rounds: int,
    maximum_rows: int,
    options: TableOptions | None = None,
) -> Prepared:
    """Read, profile and split the user's table, which `check` may have read already. Raises TableInvalid."""
    table = keep_together(take_ahead(path, target, problem, options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Constant columns of the train part have no score; that is an answer.
        is_in_time = options is None or options.time != NO_TIME
        table = table if options is not None and options.group else judge_fairly(table, is_in_time=is_in_time)
        parts = split_rows(table, seed, rounds, maximum_rows)
        table = narrow(choose_words(table, parts.train), parts.train)
        table = table.noting(*sample_notes(table, parts), *leakage_notes(table, parts.train))
    return Prepared(
        schema=table.schema.model_dump_json().encode(),
        train=encode_rows(table, parts.train),
        held_out=encode_rows(table, parts.held_out),
        untouched=tuple(encode_rows(table, rows) for rows in parts.untouched),
        rest=encode_rows(table, parts.rest) if len(parts.rest) else b"",
        profile=profile_table(table, parts),
    )


def measure(recipe_bytes: bytes, study: Study) -> Measured:
    """Cross-validate a recipe on the train part, train it there, judge it on the held-out part."""
    return _measure(_Trial.of(study, recipe_bytes), study)[0]


def score_folds(recipe_bytes: bytes, study: Study, folds: Sequence[int]) -> list[float]:
    """Return 1 - loss / loss of the trivial baseline on these folds; below 0 where it is worse.

    The folds are of train and held-out part together: no model of these is kept, and on more rows fewer methods look
    good by chance.
    """
    blobs = [study.train, study.held_out]
    parts = [_decoded(part.hash, part.data, study.schema.data) for part in blobs]
    groups = [_groups(part, study.schema.data) for part in blobs]
    trial = replace(
        _Trial.of(study, recipe_bytes),
        features=pd.concat([features for features, _ in parts], ignore_index=True),
        labels=np.concatenate([labels for _, labels in parts]),
        groups=np.concatenate([one for one in groups if one is not None]) if groups[0] is not None else None,
    )
    every = trial.folds()
    scores = []
    for train, test in (every[number] for number in folds):
        model = trial.fit(trial.features.iloc[train], trial.labels[train])
        predictions = trial.predict(model, trial.features.iloc[test])
        loss, baseline, _ = trial.judge(trial.labels[test], predictions, trial.labels[train])
        scores.append(round(1.0 - loss / baseline, gates.DIGITS) if baseline > 0 else 0.0)
    return scores


def time_training(recipe_bytes: bytes, study: Study) -> float:
    """Return how many seconds this recipe takes to train on the train part and to predict the held-out part once.

    Before, it is trained on a few rows, so that the time to load libraries does not count. A busy moment of the machine
    says nothing about the search: a short training is timed twice and the shorter time taken, and most of the time in
    which the machine did something else does not count.
    """
    trial = _Trial.of(study, recipe_bytes)
    features, _ = _decoded(study.held_out.hash, study.held_out.data, study.schema.data)
    # Not the first rows: in a table that is sorted by its target these are of one class.
    few = slice(None, None, max(1, len(trial.labels) // WARM_UP_ROWS))
    trial.predict(trial.fit(trial.features[few], trial.labels[few]), features[:1])
    shortest, spent = math.inf, 0.0
    for _ in range(TIMINGS):
        began, computed = time.perf_counter(), time.process_time()
        trial.predict(trial.fit(trial.features, trial.labels), features)
        seconds, computing = time.perf_counter() - began, time.process_time() - computed
        shortest, spent = min(shortest, without_stalls(seconds, computing)), spent + seconds
        if spent > SHORT_SECONDS:
            break
    return shortest


def without_stalls(seconds: float, computing: float) -> float:
    """Return a time without most of what the process has waited, not computed; it has one thread.

    A machine that is busy all the time makes a search slower, and its timer ends it. A stall that is over when the
    search begins must not make it small.
    """
    return min(seconds, BUSY * computing)


def _measure(trial: "_Trial", study: Study) -> tuple[Measured, Numbers]:
    outcomes, errors, cross_validated = trial.cross_validate()
    model = trial.fit(trial.features, trial.labels)
    data = dump_model(model)
    features, labels = _decoded(study.held_out.hash, study.held_out.data, study.schema.data)
    predictions = trial.predict(model, features)
    loss, baseline, outcome = trial.judge(labels, predictions)
    risk, drifted = trial.drift(study, study.held_out, errors, predictions)
    metrics = {
        "rtf": gates.agreement_of(predictions, trial.predict(load_model(data), features)),
        "stability": gates.stability_of(outcomes),
        "audit": _audit(study.schema, study.train, study.held_out),
        "outcome": outcome,
        "learnability": gates.learnability_of([*trial.learning_curve(features, labels), outcome]),
        "generalization_ratio": gates.generalization_of(outcome, cross_validated),
        "drift_risk": risk,
    }
    document = trial.document(metrics, outcomes, cross_validated, loss, baseline, len(labels))
    score = gates.score_words(labels, predictions, trial.schema.classes)
    said = {"model_bytes": len(data), "score": score, "most_drifted": drifted}
    return Measured(data, document | said), errors


def refit(recipe_bytes: bytes, study: Study) -> Measured:
    """Return the winner's last training, on train and held-out part and the rest together; measured as by `measure`.

    Its `rtf` is that of the new model; the other gates are those of the recipe: data that a model was trained
    on cannot judge it, that is what the untouched slice is for.
    """
    trial = _Trial.of(study, recipe_bytes)
    measured, _ = _measure(trial, study)
    parts = [study.train, study.held_out, *([study.rest] if study.rest else [])]
    decoded = [_decoded(part.hash, part.data, study.schema.data) for part in parts]
    features = pd.concat([part for part, _ in decoded], ignore_index=True)
    model = trial.fit(features, np.concatenate([labels for _, labels in decoded]))
    data = dump_model(model)
    again = trial.predict(load_model(data), features)
    metrics = measured.document["gates"] | {"rtf": gates.agreement_of(trial.predict(model, features), again)}
    return Measured(
        data, measured.document | {"gates": metrics, "rows_refitted": len(features), "model_bytes": len(data)}
    )


def train_on_all(
    path: str,
    problem: str | None,
    schema_bytes: bytes,
    recipe_bytes: bytes,
    seed: int,
    options: TableOptions | None = None,
) -> bytes:
    """Return the model of a recipe that is trained on every row of the user's table. Raises TableInvalid.

    Args:
        schema_bytes: the schema of the run: its columns, and the words of its texts.
    """
    schema = Schema.model_validate_json(schema_bytes)
    table = read_table(Path(path), schema.target, ProblemKind(problem) if problem else None, options)
    frame = table.frame[[*(column.name for column in schema.columns), schema.target]]
    features, labels = decode_rows(encode_rows(Table(schema, frame)), schema)
    return dump_model(_Trial(schema, features, labels, seed, Recipe.read(recipe_bytes)).fit(features, labels))


def rescore(model: Blob, predictions: bytes, study: Study) -> JsonObject:
    """Return what the sentinel measures of a model by hash: outcome and losses on the held-out part, audit.

    Args:
        predictions: what the model says of the held-out part, as `ModelReader.predict` gives it.
    """
    trial = _Trial.of(study)
    _, labels = _decoded(study.held_out.hash, study.held_out.data, study.schema.data)
    loss, baseline, outcome = trial.judge(labels, read_predictions(predictions, trial.schema, len(labels)))
    audit = _audit(model, study.schema, study.train, study.held_out)
    return {"outcome": outcome, "loss": loss, "baseline_loss": baseline, "audit": audit}


def validate(
    model: Blob, predictions: bytes, again: bytes, recipe_bytes: bytes, study: Study, untouched: Blob
) -> JsonObject:
    """Judge the refitted model on a slice that nobody has seen; every gate is measured again.

    Stability, learnability and the cross-validated outcome are those of the recipe, measured again here.

    Args:
        predictions: what the model says of the slice, as `ModelReader.predict` gives it.
        again: what it says after it was serialized and loaded once more.
    """
    trial = _Trial.of(study, recipe_bytes)
    measured, known = _measure(trial, study)
    cross_validated = measured.document["cross_validated_outcome"]
    _, labels = _decoded(untouched.hash, untouched.data, study.schema.data)
    first, second = (read_predictions(one, trial.schema, len(labels)) for one in (predictions, again))
    loss, baseline, outcome = trial.judge(labels, first)
    risk, drifted = trial.drift(study, untouched, known, first)
    metrics = measured.document["gates"] | {
        "rtf": gates.agreement_of(first, second),
        "audit": _audit(model, study.schema, study.train, study.held_out, untouched),
        "outcome": outcome,
        "generalization_ratio": gates.generalization_of(outcome, cross_validated),
        "drift_risk": risk,
    }
    score = gates.score_words(labels, first, trial.schema.classes)
    judged = {"loss": loss, "baseline_loss": baseline, "score": score, "rows_judged": len(labels), "gates": metrics}
    return measured.document | judged | {"most_drifted": drifted}


def unusable(recipe_bytes: bytes, study: Study, untouched: Blob) -> JsonObject:
    """Describe a model that cannot be read: no better than the baseline, and no gate passed."""
    trial = _Trial.of(study, recipe_bytes)
    _, labels = _decoded(untouched.hash, untouched.data, study.schema.data)
    baseline = round(gates.baseline_loss(trial.labels, labels, trial.schema.classes), gates.DIGITS)
    return trial.document(gates.NONE_PASSED, [0.0] * FOLDS, 0.0, baseline, baseline, len(labels))


@lru_cache(maxsize=8)
def _decoded(hash_: str, data: bytes, schema: bytes) -> tuple[pd.DataFrame, Numbers]:
    return decode_rows(data, Schema.model_validate_json(schema))


@lru_cache(maxsize=8)
def _groups(part: Blob, schema: bytes) -> Numbers | None:
    return decode_groups(part.data, Schema.model_validate_json(schema))


@lru_cache(maxsize=8)
def _column_distances(train: Blob, unseen: Blob, schema: bytes) -> Mapping[str, float]:
    (known, _), (others, _) = (_decoded(one.hash, one.data, schema) for one in (train, unseen))
    return gates.column_distances(known, others, Schema.model_validate_json(schema))


def _audit(*blobs: Blob) -> float:
    """Return the share of the hashes that verify."""
    return round(sum(blob.is_authentic for blob in blobs) / len(blobs), gates.DIGITS)


@dataclass(frozen=True)
class _Trial:
    """One recipe over one train part."""

    schema: Schema
    features: pd.DataFrame
    labels: Numbers
    seed: int
    recipe: Recipe | None
    groups: Numbers | None = None
    """Rows with the same number are judged together."""

    @classmethod
    def of(cls, study: Study, recipe_bytes: bytes | None = None) -> "_Trial":
        features, labels = _decoded(study.train.hash, study.train.data, study.schema.data)
        recipe = None if recipe_bytes is None else Recipe.read(recipe_bytes)
        groups = _groups(study.train, study.schema.data)
        return cls(Schema.model_validate_json(study.schema.data), features, labels, study.seed, recipe, groups)

    def fit(self, features: pd.DataFrame, labels: Numbers) -> Any:
        """Return a fitted model; a recipe that this data cannot carry becomes the trivial model, outcome 0."""
        assert self.recipe is not None
        if self.schema.classes and len(np.unique(labels)) == 1:
            return build_baseline(self.schema).fit(features, labels)  # Some models train on one class and then fail.
        with warnings.catch_warnings():
            # Not converged, constant after a split: the measured outcome tells, a log line does not.
            warnings.simplefilter("ignore")
            try:
                return build_pipeline(self.recipe, self.schema, self.seed, len(features)).fit(features, labels)
            except (ValueError, ArithmeticError):  # LinAlgError is a ValueError
                return build_baseline(self.schema).fit(features, labels)

    def predict(self, model: Any, features: pd.DataFrame) -> Numbers:
        return predict(model, self.schema, features)

    def judge(
        self, labels: Numbers, predictions: Numbers, train_labels: Numbers | None = None
    ) -> tuple[float, float, float]:
        """Return (loss, loss of the trivial baseline, outcome)."""
        reference = self.labels if train_labels is None else train_labels
        loss = gates.loss_of(labels, predictions, self.schema.classes)
        baseline = gates.baseline_loss(reference, labels, self.schema.classes)
        return round(loss, gates.DIGITS), round(baseline, gates.DIGITS), gates.outcome_of(loss, baseline)

    def drift(self, study: Study, unseen: Blob, known: Numbers, predictions: Numbers) -> tuple[float, str]:
        """Return (drift_risk of unseen rows and of what the model says of them, what drifted most).

        Args:
            known: the errors of cross-validated rows.
        """
        _, labels = _decoded(unseen.hash, unseen.data, study.schema.data)
        classes = self.schema.classes
        errors = gates.errors_of(labels, predictions, classes)
        trivial = gates.trivial_predictions(self.labels, len(self.labels), classes)
        scale = float(gates.errors_of(self.labels, trivial, classes).mean())
        distances = {
            **_column_distances(study.train, unseen, study.schema.data),
            gates.ERRORS: gates.error_distance(known, errors, scale),
        }
        risk, name = gates.risk_of(distances, len(known), len(errors))
        return round(risk, gates.DIGITS), name

    def cross_validate(self) -> tuple[list[float], Numbers, float]:
        """Return (outcome of each fold, error of each row that a fold judged, outcome over these rows)."""
        classes = len(self.schema.classes)
        predictions = np.zeros((len(self.labels), classes) if classes else len(self.labels))
        outcomes = []
        folds = self.folds()
        for train, test in folds:
            model = self.fit(self.features.iloc[train], self.labels[train])
            predictions[test] = self.predict(model, self.features.iloc[test])
            outcomes.append(self.judge(self.labels[test], predictions[test], self.labels[train])[2])
        judged = np.sort(np.concatenate([test for _, test in folds]))  # Of rows in time the first are never judged.
        labels, predictions = self.labels[judged], predictions[judged]
        errors = gates.errors_of(labels, predictions, self.schema.classes)
        return outcomes, errors, self.judge(labels, predictions)[2]

    def folds(self) -> list[tuple[Numbers, Numbers]]:
        """Return the (rows to train on, rows to judge) of each fold."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_folds(self.schema, self.labels, self.groups, FOLDS, self.seed)

    def learning_curve(self, features: pd.DataFrame, labels: Numbers) -> list[float]:
        """Return the outcomes on these rows after training on growing shares of the train part."""
        order = np.random.default_rng([self.seed, 0xC0DE]).permutation(len(self.labels))
        outcomes = []
        for share in CURVE_SHARES:
            rows = np.sort(order[: max(FOLDS, round(share * len(order)))])
            model = self.fit(self.features.iloc[rows], self.labels[rows])
            outcomes.append(self.judge(labels, self.predict(model, features))[2])
        return outcomes

    def document(
        self,
        metrics: JsonObject,
        fold_outcomes: Sequence[float],
        cross_validated: float,
        loss: float,
        baseline: float,
        rows: int,
    ) -> JsonObject:
        """Return the measurement document: enough to recompute each gate from."""
        assert self.recipe is not None
        return {
            "recipe": self.recipe.hash,
            "loss_name": "logarithmic loss" if self.schema.classes else "mean squared error",
            "loss": loss,
            "baseline_loss": baseline,
            "rows_judged": rows,
            "fold_outcomes": list(fold_outcomes),
            "cross_validated_outcome": cross_validated,
            "gates": metrics,
        }
