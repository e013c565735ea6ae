"""The user's table: read from CSV, checked, and cleaned into columns that every model family understands."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from apc_automl.data.schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.errors import TableInvalid

MINIMUM_ROWS = 40
MINIMUM_ROWS_PER_CLASS = 8
MAXIMUM_CATEGORIES = 50
MAXIMUM_CLASSES = 50
MAXIMUM_WHOLE_NUMBER_CLASSES = 20


@dataclass(frozen=True)
class Table:
    """A clean table: feature columns in the schema's order, then the target, which is never missing."""

    schema: Schema
    frame: pd.DataFrame


def read_table(path: Path, target: str, problem: ProblemKind | None = None) -> Table:
    """Return the table in a CSV file, ready to be split.

    Args:
        path: a CSV with a header line; comma, semicolon, tab or bar between the fields, UTF-8.
        target: the column to predict.
        problem: what kind of problem it is; guessed from the target when None.

    Raises:
        TableInvalid: with one sentence, when nothing can be learned from it.
    """
    raw = _read_csv(path)
    if target not in raw.columns:
        known = ", ".join(str(name) for name in raw.columns[:12])
        raise TableInvalid(f"{path} has no column {target!r} to predict; its columns are: {known}")
    notes: list[str] = []
    raw = _drop_unlabelled(raw, target, notes)
    if len(raw) < MINIMUM_ROWS:
        raise TableInvalid(
            f"{path} has {len(raw)} usable rows; at least {MINIMUM_ROWS} are needed to train and to judge"
        )
    labels, kind, label_type = _read_target(raw[target], target, problem)
    classes: tuple[int | str, ...] = ()
    if kind is ProblemKind.CLASSIFICATION:
        kept = _rows_of_common_classes(labels, target, notes)
        raw, labels = raw[kept], labels[kept]
        classes = tuple(sorted(labels.unique().tolist()))
    features, columns = _read_features(raw.drop(columns=[target]), notes)
    if not columns:
        raise TableInvalid(f"{path} has no usable column besides {target!r}: " + "; ".join(notes))
    schema = Schema(
        target=target, problem=kind, label_type=label_type, classes=classes, columns=tuple(columns), notes=tuple(notes)
    )
    return Table(schema, features.assign(**{target: labels}).reset_index(drop=True))


def encode_rows(table: Table, rows: np.ndarray[Any, Any] | None = None) -> bytes:
    """Rows of a table as CSV; the same rows give the same bytes."""
    frame = table.frame if rows is None else table.frame.iloc[rows]
    return frame.to_csv(index=False, lineterminator="\n").encode()


def decode_rows(data: bytes, schema: Schema) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return the inverse of `encode_rows`: features (columns in the schema's order) and labels."""
    # Read as text first: the fast parser of numbers may lose the last bit, Python's does not.
    frame = pd.read_csv(BytesIO(data), dtype=object, keep_default_na=False, na_values=[""])
    types: dict[str, Any] = dict.fromkeys(schema.names(ColumnKind.NUMERIC), "float64")
    types[schema.target] = {"whole number": "int64", "text": "object", "number": "float64"}[schema.label_type]
    frame = frame.astype(types)
    return frame[[column.name for column in schema.columns]], frame[schema.target].to_numpy()


def _read_csv(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise TableInvalid(f"there is no file {path}; --data must name a CSV file")
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline()
        separator = max(",;\t|", key=header.count)
        frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", skipinitialspace=True, low_memory=False)
    except pd.errors.EmptyDataError as error:
        raise TableInvalid(f"{path} is empty; it needs a header line and rows") from error
    except (UnicodeDecodeError, pd.errors.ParserError, ValueError, OSError) as error:
        why = str(error).splitlines()[0]
        raise TableInvalid(f"{path} cannot be read as a UTF-8 CSV: {why}") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.empty:
        raise TableInvalid(f"{path} has a header line but no rows")
    if not frame.columns.is_unique:
        raise TableInvalid(f"{path} has two columns of one name; rename one of them")
    return frame


def _drop_unlabelled(frame: pd.DataFrame, target: str, notes: list[str]) -> pd.DataFrame:
    is_labelled = frame[target].notna()
    if pd.api.types.is_float_dtype(frame[target]):
        is_labelled &= np.isfinite(frame[target])
    missing = int((~is_labelled).sum())
    if missing:
        notes.append(f"{missing} rows without a value in {target!r} are left out")
    return frame[is_labelled]


def _read_target(
    values: "pd.Series[Any]", target: str, problem: ProblemKind | None
) -> tuple["pd.Series[Any]", ProblemKind, Literal["whole number", "text", "number"]]:
    if values.nunique() < 2:
        only = values.iloc[0]
        raise TableInvalid(
            f"the target {target!r} has the one value {str(only)!r} in every row: there is nothing to predict"
        )
    is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if not is_number and problem is ProblemKind.REGRESSION:
        raise TableInvalid(f"the target {target!r} is text: it cannot be a regression")
    is_whole = is_number and bool((values == values.round()).all()) and bool((values.abs() < 2**53).all())
    few = values.nunique() <= min(MAXIMUM_WHOLE_NUMBER_CLASSES, len(values) // MINIMUM_ROWS_PER_CLASS)
    kind = problem or (ProblemKind.CLASSIFICATION if not is_number or (is_whole and few) else ProblemKind.REGRESSION)
    if kind is ProblemKind.REGRESSION:
        return values.astype("float64"), kind, "number"
    if is_whole:
        return values.astype("int64"), kind, "whole number"
    return values.astype(str).astype(object), kind, "text"


def _rows_of_common_classes(labels: "pd.Series[Any]", target: str, notes: list[str]) -> "pd.Series[bool]":
    counts = labels.value_counts()
    common = sorted(counts[counts >= MINIMUM_ROWS_PER_CLASS].index.tolist())
    if len(common) < 2:
        raise TableInvalid(
            f"the target {target!r} has fewer than two classes with {MINIMUM_ROWS_PER_CLASS} rows or more"
        )
    if len(common) > MAXIMUM_CLASSES:
        raise TableInvalid(f"the target {target!r} has {len(common)} classes; at most {MAXIMUM_CLASSES} are possible")
    kept = labels.isin(common)
    if not kept.all():
        rare = len(counts) - len(common)
        notes.append(
            f"{rare} classes of {target!r} with fewer than {MINIMUM_ROWS_PER_CLASS} rows each are left out "
            f"({int((~kept).sum())} rows)"
        )
    if int(kept.sum()) < MINIMUM_ROWS:
        raise TableInvalid(f"only {int(kept.sum())} rows are left in common classes; {MINIMUM_ROWS} are needed")
    return kept


def _read_features(frame: pd.DataFrame, notes: list[str]) -> tuple[pd.DataFrame, list[Column]]:
    kept: dict[str, pd.Series[Any]] = {}
    columns: list[Column] = []
    for name in frame.columns:
        values, column, why_dropped = _read_feature(frame[name], name)
        if column is None:
            notes.append(f"column {name!r} is left out: {why_dropped}")
        else:
            kept[name] = values
            columns.append(column)
    return pd.DataFrame(kept, index=frame.index), columns


def _read_feature(values: "pd.Series[Any]", name: str) -> tuple["pd.Series[Any]", Column | None, str]:
    if pd.api.types.is_numeric_dtype(values):
        numbers = values.astype("float64").replace([np.inf, -np.inf], np.nan)
        if numbers.nunique() < 2:
            return numbers, None, "it has one value only" if numbers.notna().any() else "it is empty"
        has_missing = bool(numbers.isna().any())
        return numbers, Column(name=name, kind=ColumnKind.NUMERIC, has_missing=has_missing), ""
    different = values.nunique()
    if different == 0:
        return values, None, "it is empty"
    if different == 1 and values.notna().all():
        return values, None, "it has one value only"
    if different > min(MAXIMUM_CATEGORIES, len(values) // 4):
        return values, None, f"free text ({different} different values)"
    texts = values.astype(object).where(values.notna(), None).map(str, na_action="ignore")
    has_missing = bool(values.isna().any())
    column = Column(name=name, kind=ColumnKind.CATEGORICAL, categories=different, has_missing=has_missing)
    return texts, column, ""
