"""What a model says of rows, in the form that everything here is measured on."""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.table_schema import ProblemKind, Schema
from apc_automl.errors import ModelFileRefused

Numbers = np.ndarray[Any, Any]


def predict(model: Any, schema: Schema, features: pd.DataFrame) -> Numbers:
    """Return numbers (rows,), or probabilities (rows, classes) in the schema's order of classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if schema.problem is ProblemKind.REGRESSION:
            return np.asarray(model.predict(features), dtype=float)
        known = list(model.classes_)
        found = model.predict_proba(features)
    probabilities = np.zeros((len(features), len(schema.classes)))
    for position, name in enumerate(schema.classes):
        if name in known:
            probabilities[:, position] = found[:, known.index(name)]
    return np.nan_to_num(probabilities)


def write_predictions(predictions: Numbers) -> bytes:
    """Write predictions as plain numbers, row by row: reading them runs no code."""
    return np.ascontiguousarray(predictions, dtype="<f8").tobytes()


def read_predictions(data: bytes, schema: Schema, rows: int) -> Numbers:
    """Return the inverse of `write_predictions`.

    Raises:
        ModelFileRefused: these are not the predictions for so many rows, or not finite.
    """
    shape = (rows, len(schema.classes)) if schema.classes else (rows,)
    if len(data) != 8 * rows * max(1, len(schema.classes)):
        raise ModelFileRefused(f"the model gave {len(data)} bytes of predictions for {rows} rows; it is not judged")
    predictions = np.frombuffer(data, dtype="<f8").reshape(shape)
    if not np.isfinite(predictions).all():
        raise ModelFileRefused("the model predicts what is no number; it is not judged")
    return predictions
