"""New rows of a user for a model that is there: the same features as in training, and the predictions beside them."""

from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.features import derive_all
from apc_automl.data.schema import ColumnKind, Schema
from apc_automl.errors import TableInvalid


def encode_features(frame: pd.DataFrame, schema: Schema) -> bytes:
    """Return the features of new rows as the reader of models takes them; the target is not needed.

    Raises:
        TableInvalid: columns are missing, or a column of numbers has something else.
    """
    missing = sorted({one.source or one.name for one in schema.columns} - set(frame.columns))
    if missing:
        known = ", ".join(map(repr, frame.columns[:12]))
        raise TableInvalid(f"the table lacks the columns {', '.join(map(repr, missing))}; it has {known}")
    features = derive_all(frame, schema.columns)
    for column in schema.columns:
        if column.kind is ColumnKind.NUMERIC and column.part is None:
            lost = features[column.name].isna() & frame[column.name].notna()
            if lost.any():
                value = frame.loc[lost, column.name].iloc[0]
                raise TableInvalid(
                    f"column {column.name!r} holds numbers in the model; row {lost.argmax() + 1} has {value!r}"
                )
    filler = schema.classes[0] if schema.classes else 0.0
    return features.assign(**{schema.target: filler}).to_csv(index=False, lineterminator="\n").encode()


def with_predictions(frame: pd.DataFrame, schema: Schema, predictions: np.ndarray[Any, Any]) -> bytes:
    """Return the table as CSV with the column `predicted TARGET`, and for classes a probability each."""
    name = f"predicted {schema.target}"
    if not schema.classes:
        return frame.assign(**{name: predictions}).to_csv(index=False, lineterminator="\n").encode()
    classes = np.array(schema.classes, dtype=object)[predictions.argmax(axis=1)]
    shares = {f"probability of {one}": predictions[:, place] for place, one in enumerate(schema.classes)}
    return frame.assign(**{name: classes}, **shares).to_csv(index=False, lineterminator="\n").encode()
