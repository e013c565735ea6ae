"""New rows of a user for a model that is there: the same columns as in training, and the predictions beside them."""

from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.features import as_numbers, as_stored
from apc_automl.data.table_schema import Column, ColumnKind, Schema
from apc_automl.errors import TableInvalid

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""

Numbers = np.ndarray[Any, Any]


def encode_features(frame: pd.DataFrame, schema: Schema) -> bytes:
    """Return the features of new rows as the reader of models takes them; the target is not needed.

    Raises:
        TableInvalid: columns are missing, or a column of numbers or dates has something else.
    """
    missing = [column.name for column in schema.columns if column.name not in frame.columns]
    if missing:
        known = ", ".join(map(repr, frame.columns[:12]))
        raise TableInvalid(f"the table lacks the columns {', '.join(map(repr, missing))}; it has {known}")
    features = pd.DataFrame({one.name: as_stored(frame[one.name], one) for one in schema.columns}, index=frame.index)
    for column in schema.columns:
        _check_cells(frame[column.name], features[column.name], column)
    filler = schema.classes[0] if schema.classes else 0.0
    return features.assign(**{schema.target: filler}).to_csv(index=False, lineterminator="\n").encode()


def differences(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """Say what new rows have that the model does not use, or lack that it has been trained with."""
    used = {column.name for column in schema.columns} | {schema.target}
    unused = [name for name in frame.columns if name not in used]
    said = [f"not used by the model: {', '.join(map(repr, unused))}"] if unused else []
    new = [column.name for column in schema.columns if not column.has_missing and frame[column.name].isna().any()]
    return [*said, *([f"missing values that training had none of: {', '.join(map(repr, new))}"] if new else [])]


def with_predictions(frame: pd.DataFrame, schema: Schema, predictions: Numbers) -> bytes:
    """Return the table as CSV with the column `predicted TARGET`, and for classes a probability each.

    A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    name = f"predicted {schema.target}"
    if schema.classes:
        classes = np.array(schema.classes, dtype=object)[predictions.argmax(axis=1)]
        shares = {f"probability of {one}": predictions[:, place] for place, one in enumerate(schema.classes)}
        whole = frame.assign(**{name: classes}, **shares)
    else:
        whole = frame.assign(**{name: predictions})
    texts = [one for one in whole.columns if not pd.api.types.is_numeric_dtype(whole[one])]
    whole = whole.assign(**{one: whole[one].map(_harmless) for one in texts}).rename(columns=_harmless)
    return whole.to_csv(index=False, lineterminator="\n").encode()


def _harmless(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _check_cells(given: "pd.Series[Any]", stored: "pd.Series[Any]", column: Column) -> None:
    match column.kind:
        case ColumnKind.NUMERIC:
            read, what = stored, "numbers"
        case ColumnKind.DATE:
            read, what = as_numbers(stored, column), f"dates like {column.date_format}"
        case _:
            return
    lost = read.isna() & given.notna()
    if lost.any():
        # One bad cell makes the whole column text, also where a decimal comma is no mistake.
        plain = given.astype(str).str.replace(",", ".")
        worse = lost & pd.to_numeric(plain, errors="coerce").isna()
        lost = worse if worse.any() else lost
        value = given[lost].iloc[0]
        raise TableInvalid(
            f"column {column.name!r} holds {what} in the model; row {int(lost.to_numpy().argmax()) + 1} has {value!r}"
        )
