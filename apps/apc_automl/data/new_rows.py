"""New rows of a user for a model that is there: read by its record, and the predictions beside them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.column_types import (
    MISSING,
    TRUTH,
    TRUTHS,
    Number,
    holds_texts,
    is_measure,
    parse_number,
    stripped,
)
from apc_automl.data.table import as_numbers, as_stored
from apc_automl.data.table_schema import Column, ColumnKind, Schema
from apc_automl.errors import TableInvalid

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""
STRANGE_ROWS = 5
"""So many rows of unknown categories, and none of a known one, are another column."""

Numbers = np.ndarray[Any, Any]


def encode_features(frame: pd.DataFrame, schema: Schema, decimal: str | None = None) -> bytes:
    """Return the features of new rows as the reader of models takes them; the target is not needed.

    Args:
        decimal: the decimal sign of the new rows, where it is another one than the model's.

    Raises:
        TableInvalid: columns are missing, or the cells of one are not written as the model's record says.
    """
    missing = [column.name for column in schema.columns if column.name not in frame.columns]
    if missing:
        known = ", ".join(map(repr, frame.columns[:12]))
        raise TableInvalid(f"the table lacks the columns {', '.join(map(repr, missing))}; it has {known}")
    features = pd.DataFrame({one.name: _read(frame[one.name], one, schema, decimal) for one in schema.columns})
    filler = schema.classes[0] if schema.classes else 0.0
    return features.assign(**{schema.target: filler}).to_csv(index=False, lineterminator="\n").encode()


def differences(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """Say what new rows have that the model does not use, or lack that it has been trained with."""
    used = {column.name for column in schema.columns} | {schema.target}
    unused = [name for name in frame.columns if name not in used]
    said = [f"not used by the model: {', '.join(map(repr, unused))}"] if unused else []
    new = [
        column.name for column in schema.columns if not column.has_missing and _cells(frame[column.name]).isna().any()
    ]
    said += [f"missing values that training had none of: {', '.join(map(repr, new))}"] if new else []
    for column in schema.of_kind(ColumnKind.CATEGORICAL):
        cells = _cells(frame[column.name]).dropna().map(str)
        unknown = cells[~cells.isin(column.known)] if column.known else cells[:0]
        if len(unknown):
            said.append(
                f"column {column.name!r}: {len(unknown)} cells are new to the model, such as {unknown.iloc[0]!r}"
            )
    return said


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


def _cells(values: "pd.Series[Any]") -> "pd.Series[Any]":
    return stripped(values) if holds_texts(values) else values


def _read(values: "pd.Series[Any]", column: Column, schema: Schema, decimal: str | None) -> "pd.Series[Any]":
    cells = _cells(values)
    is_text = holds_texts(values)
    match column.kind:
        case ColumnKind.NUMERIC if is_text:
            return as_stored(_numbers(cells, column, schema, decimal), column)
        case ColumnKind.NUMERIC:
            stored = as_stored(cells, column)
            _refuse_lost(cells, stored, column, "numbers")
            return stored
        case ColumnKind.DATE:
            stored = as_stored(cells.where(~cells.isin(column.missing), None) if is_text else cells, column)
            known = cells.where(~cells.isin(column.missing), None) if is_text else cells
            _refuse_lost(known, as_numbers(stored, column), column, f"dates like {column.date_format}")
            return stored
    stored = as_stored(cells, column)
    texts = stored.dropna()
    if column.known and len(texts) >= STRANGE_ROWS and not texts.isin(column.known).any():
        raise TableInvalid(
            f"column {column.name!r} holds categories such as {column.known[0]!r} in the model; "
            f"of the {len(texts)} cells here none is known, such as {texts.iloc[0]!r}"
        )
    return stored


def _numbers(cells: "pd.Series[Any]", column: Column, schema: Schema, decimal: str | None) -> "pd.Series[Any]":
    """Return texts as numbers, read as the model's record says that the column is written."""
    sign = decimal or column.decimal or schema.decimal
    read: dict[str, float] = {}
    missing = {*column.missing}
    texts = [str(text) for text in cells.dropna().unique()]
    numbers = {text: number for text in texts if (number := parse_number(text)) is not None}
    for text in texts:
        if text in missing or text.casefold() in MISSING:
            continue
        if column.unit == TRUTH and text.casefold() in TRUTHS:
            read[text] = float(TRUTHS[text.casefold()])
            continue
        why = _contradiction(text, numbers.get(text), column, sign, is_told=decimal is not None)
        if why:
            row = int((cells == text).to_numpy().argmax()) + 1
            raise TableInvalid(f"column {column.name!r} holds {why} in the model; row {row} has {text!r}")
        number = numbers[text]
        read[text] = number.value(sign or _only_sign(numbers))
    return cells.map(read).astype("float64")


def _only_sign(numbers: Mapping[str, Number]) -> str:
    return "." if all(one.is_point for one in numbers.values()) else ","


def _contradiction(text: str, number: Number | None, column: Column, sign: str, *, is_told: bool) -> str:
    """Say how the column is written in the model, where a text is not written so; empty where it is."""
    if number is None:
        return "numbers"
    other = number.unit != column.unit
    if other and (number.unit or is_measure(column.unit)):
        return f"numbers with {column.unit!r}" if column.unit else "numbers without a unit"
    if number.is_whole:
        return ""
    if not sign:
        is_sure = number.is_point != number.is_comma
        return "" if is_sure else "numbers without a sign between their digits"
    if not (number.is_comma if sign == "," else number.is_point):
        return f"numbers with the decimal sign {sign!r} (--decimal tells another)"
    between = number.signs - {sign}
    if between and not is_told and not between <= {*column.thousands} and number.is_point and number.is_comma:
        return f"numbers with the decimal sign {sign!r} and none between thousands (--decimal tells another)"
    return ""


def _refuse_lost(given: "pd.Series[Any]", stored: "pd.Series[Any]", column: Column, what: str) -> None:
    lost = stored.isna() & given.notna()
    if lost.any():
        row, value = int(lost.to_numpy().argmax()) + 1, given[lost].iloc[0]
        raise TableInvalid(f"column {column.name!r} holds {what} in the model; row {row} has {value!r}")
