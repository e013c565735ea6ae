"""The user's table: read from CSV, checked, and cleaned into columns that every model family understands."""

from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from apc_automl.data.features import read_features
from apc_automl.data.source import SourceOptions, read_source
from apc_automl.data.table_schema import ColumnKind, ProblemKind, Schema
from apc_automl.data.target_column import find_target
from apc_automl.errors import TableInvalid

MINIMUM_ROWS = 40
MINIMUM_ROWS_PER_CLASS = 8
LARGEST_NUMBER = 1e100
MAXIMUM_CLASSES = 50
NAMED_CLASSES = 3
MAXIMUM_WHOLE_NUMBER_CLASSES = 20


@dataclass(frozen=True)
class Table:
    """A clean table: feature columns in the schema's order, then the target, which is never missing."""

    schema: Schema
    frame: pd.DataFrame

    def noting(self, *notes: str) -> "Table":
        """Return the table with more notes."""
        return replace(self, schema=self.schema.model_copy(update={"notes": (*self.schema.notes, *notes)}))


def read_table(
    path: Path, target: str, problem: ProblemKind | None = None, options: SourceOptions | None = None
) -> Table:
    """Return the table in a file, ready to be split.

    Args:
        path: a CSV, also packed, or a parquet file.
        target: the column to predict.
        problem: what kind of problem it is; guessed from the target when None.
        options: what the user says about the file.

    Raises:
        TableInvalid: with one sentence, when nothing can be learned from it.
    """
    source = read_source(path, options)
    raw = source.frame
    target = find_target(path, target, list(raw.columns))
    notes = [source.words]
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
    features, columns = read_features(raw.drop(columns=[target]), notes)
    if not columns:
        raise TableInvalid(f"{path} has no usable column besides {target!r}: " + "; ".join(notes))
    schema = Schema(
        target=target, problem=kind, label_type=label_type, classes=classes, columns=tuple(columns), notes=tuple(notes)
    )
    return Table(schema, features.assign(**{target: labels}).reset_index(drop=True))


def read_ahead(path: str, target: str, problem: str | None) -> None:
    """Read a table and keep it for the next `take_ahead` of this process. Raises TableInvalid."""
    _ahead.clear()
    _ahead[path, target, problem] = read_table(Path(path), target, ProblemKind(problem) if problem else None)


def take_ahead(path: str, target: str, problem: str | None) -> Table:
    """Return the table that was read ahead, once; any other is read now. Raises TableInvalid."""
    kept = _ahead.pop((path, target, problem), None)
    return kept or read_table(Path(path), target, ProblemKind(problem) if problem else None)


_ahead: dict[tuple[str, str, str | None], Table] = {}
"""At most one."""


def encode_rows(table: Table, rows: np.ndarray[Any, Any] | None = None) -> bytes:
    """Return the rows of a table as CSV; equal rows give equal bytes."""
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
        if values.abs().max() > LARGEST_NUMBER:
            raise TableInvalid(
                f"the target {target!r} has numbers as large as {values.abs().max():.3g}, whose squares no computer "
                "holds; divide them, or remove those rows"
            )
        return values.astype("float64"), kind, "number"
    if is_whole:
        return values.astype("int64"), kind, "whole number"
    return values.astype(str).astype(object), kind, "text"


def _rows_of_common_classes(labels: "pd.Series[Any]", target: str, notes: list[str]) -> "pd.Series[bool]":
    counts = labels.value_counts()
    common = sorted(counts[counts >= MINIMUM_ROWS_PER_CLASS].index.tolist())
    if len(common) < 2:
        raise TableInvalid(
            f"the target {target!r} has fewer than two classes with {MINIMUM_ROWS_PER_CLASS} rows or more; "
            f"its first values are {', '.join(repr(value) for value in labels.unique()[:3].tolist())}"
        )
    if len(common) > MAXIMUM_CLASSES:
        raise TableInvalid(f"the target {target!r} has {len(common)} classes; at most {MAXIMUM_CLASSES} are possible")
    kept = labels.isin(common)
    if not kept.all():
        notes.append(_rare_classes(counts[counts < MINIMUM_ROWS_PER_CLASS], target))
    if int(kept.sum()) < MINIMUM_ROWS:
        raise TableInvalid(f"only {int(kept.sum())} rows are left in common classes; {MINIMUM_ROWS} are needed")
    return kept


def _rare_classes(counts: "pd.Series[int]", target: str) -> str:
    """Say which classes are left out, and with how many rows."""
    few, names = f"fewer than {MINIMUM_ROWS_PER_CLASS}", counts.index.tolist()
    if len(counts) == 1:
        rows = "1 row" if counts.iloc[0] == 1 else f"{counts.iloc[0]} rows"
        return f"class {names[0]!r} of {target!r} is left out: it has {rows}, {few}"
    named = ", ".join(repr(name) for name in names[:NAMED_CLASSES])
    more = ", …" if len(counts) > NAMED_CLASSES else ""
    return f"{len(counts)} classes of {target!r} are left out, {counts.sum()} rows: each has {few} ({named}{more})"
