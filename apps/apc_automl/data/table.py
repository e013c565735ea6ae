"""The user's table: read, checked, and cleaned into columns that every model family understands.

The columns keep their names; dates and texts keep their cells, and the model itself takes them to pieces
(`training.columns`), so that a saved model reads the user's table as it is.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from apc_automl.data.columns import LARGEST_NUMBER, ReadColumn, Values, as_numbers, as_stored, only, read_columns
from apc_automl.data.source import TableFile, read_source
from apc_automl.data.table_schema import NO_TIME, TEXT_NUMBERS, Column, ColumnKind, ProblemKind, Schema, TableOptions
from apc_automl.errors import TableInvalid

MINIMUM_ROWS = 40
MINIMUM_ROWS_PER_CLASS = 8
LEAST_GROUPS = 10
"""To keep some of them apart from those that are trained on."""
LARGEST_LABEL = 1e100
MAXIMUM_CLASSES = 50
MAXIMUM_CATEGORIES = 50
NAMED_CLASSES = 3
MAXIMUM_WHOLE_NUMBER_CLASSES = 20
MOST_COLUMNS_NAMED = 20
LONGEST_NAME = 40
ID_NAME = re.compile(r"(^|[\W_])(id|uuid|guid)$", re.IGNORECASE)

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """A clean table: feature columns in the schema's order, then the target, which is never missing."""

    schema: Schema
    frame: pd.DataFrame
    groups: Numbers | None = None
    """A number for each row; rows with the same one are in one part."""

    def noting(self, *notes: str) -> "Table":
        """Return the table with more notes."""
        return replace(self, schema=self.schema.model_copy(update={"notes": (*self.schema.notes, *notes)}))

    def with_columns(self, columns: Sequence[Column]) -> "Table":
        """Return the table with these of its columns alone."""
        names = [*(column.name for column in columns), self.schema.target]
        return replace(self, schema=self.schema.model_copy(update={"columns": tuple(columns)}), frame=self.frame[names])


def read_table(
    path: Path, target: str, problem: ProblemKind | None = None, options: TableOptions | None = None
) -> Table:
    """Return the table in a file, ready to be split.

    Args:
        path: a CSV, also packed, an Excel workbook, or a parquet file.
        target: the column to predict.
        problem: what kind of problem it is; guessed from the target when None.
        options: what the user says about the table.

    Raises:
        TableInvalid: with one sentence, when nothing can be learned from it.
    """
    options = options or TableOptions()
    source = read_source(path, options)
    target, group, time = _named_columns(path, target, options, source)
    read = read_columns(source.frame, source.separator, options)
    comma = ", decimal comma" if any(one.decimal == "," for one in read.values()) else ""
    notes = [f"{source.words}{comma}", *source.mended, *read[target].notes]
    labels = read[target].labels(source.frame[target])
    labels = labels[_is_labelled(labels, target, notes)]
    if len(labels) < MINIMUM_ROWS:
        raise TableInvalid(
            f"{path} has {len(labels)} usable rows; at least {MINIMUM_ROWS} are needed to train and to judge"
        )
    labels, kind, label_type = _read_target(labels, target, problem)
    classes: tuple[int | str, ...] = ()
    if kind is ProblemKind.CLASSIFICATION:
        labels = labels[_rows_of_common_classes(labels, target, notes)]
        classes = tuple(sorted(labels.unique().tolist()))
    rows = labels.index
    groups = None if group is None else _groups(read[group].values.loc[rows], group, notes)
    others = {name: one for name, one in read.items() if name not in (target, group)}
    features, columns = _features(others, rows, notes)
    if not columns:
        raise TableInvalid(f"{path} has no usable column besides {target!r}: " + "; ".join(notes))
    schema = Schema(
        target=target,
        problem=kind,
        label_type=label_type,
        classes=classes,
        columns=tuple(columns),
        notes=tuple(notes),
        header=source.header,
        decimal=options.decimal or only(column.decimal for column in columns),
        time=time or "",
    )
    table = Table(schema, features.assign(**{target: labels}).reset_index(drop=True), groups)
    return table if time is None else _ordered(table, read[time].values.loc[rows], read[time], time)


def read_ahead(path: str, target: str, problem: str | None, options: TableOptions | None = None) -> None:
    """Read a table and keep it for the next `take_ahead` of this process. Raises TableInvalid."""
    _ahead.clear()
    kind = ProblemKind(problem) if problem else None
    _ahead[path, target, problem, options] = read_table(Path(path), target, kind, options)


def take_ahead(path: str, target: str, problem: str | None, options: TableOptions | None = None) -> Table:
    """Return the table that was read ahead, once; any other is read now. Raises TableInvalid."""
    kept = _ahead.pop((path, target, problem, options), None)
    return kept or read_table(Path(path), target, ProblemKind(problem) if problem else None, options)


_ahead: dict[tuple[str, str, str | None, TableOptions | None], Table] = {}
"""At most one."""


def encode_rows(table: Table, rows: Numbers | None = None) -> bytes:
    """Return the rows of a table as CSV; equal rows give equal bytes."""
    frame = table.frame
    if table.groups is not None and table.schema.kept_together:
        frame = frame.assign(**{table.schema.kept_together: table.groups})
    frame = frame if rows is None else frame.iloc[rows]
    return frame.to_csv(index=False, lineterminator="\n").encode()


def decode_rows(data: bytes, schema: Schema) -> tuple[pd.DataFrame, Numbers]:
    """Return the inverse of `encode_rows`: features (columns in the schema's order) and labels."""
    # Read as text first: the fast parser of numbers may lose the last bit, Python's does not.
    frame = pd.read_csv(BytesIO(data), dtype=object, keep_default_na=False, na_values=[""])
    types: dict[str, Any] = dict.fromkeys(schema.names(ColumnKind.NUMERIC), "float64")
    types[schema.target] = {"whole number": "int64", "text": "object", "number": "float64"}[schema.label_type]
    frame = frame.astype(types)
    return frame[[column.name for column in schema.columns]], frame[schema.target].to_numpy()


def decode_groups(data: bytes, schema: Schema) -> Numbers | None:
    """Return the group of each row; None where none are kept together."""
    if not schema.kept_together:
        return None
    column = pd.read_csv(BytesIO(data), usecols=[schema.kept_together], dtype="int64")
    return column[schema.kept_together].to_numpy()


def find_column(path: Path, name: str | None, columns: Sequence[str]) -> str:
    """Return a column that an option names, such as the one to predict, without the spaces around its name.

    Raises:
        TableInvalid: none is named, or the table has no such column; names the nearest one and the first columns.
    """
    if name is None:
        raise TableInvalid(f"name the column of {path} to predict with --target; its columns are: {_listed(columns)}")
    name = name.strip()
    if name in columns:
        return name
    by_folded = {one.casefold(): one for one in reversed(columns)}
    near = get_close_matches(name.casefold(), by_folded, n=1)
    question = f" (do you mean {_shown(by_folded[near[0]])!r}?)" if near else ""
    raise TableInvalid(f"{path} has no column {name!r} to predict{question}; its columns are: {_listed(columns)}")


def describe(columns: tuple[Column, ...]) -> Iterator[tuple[str, str]]:
    """Yield (column, what it becomes) for people."""
    for column in columns:
        missing = ", has missing values" if column.has_missing else ""
        match column.kind:
            case ColumnKind.NUMERIC:
                sign = ", decimal comma" if column.decimal == "," else ""
                how = f"number{sign}"
            case ColumnKind.DATE:
                how = f"date ({column.date_format}): year, month, day, hour, day of the week, seconds since 1970"
            case ColumnKind.TEXT:
                numbers = min(TEXT_NUMBERS, len(column.words))
                how = f"text: its {len(column.words)} most frequent words in {numbers} numbers"
            case _:
                how = f"{column.categories} categories"
        yield column.name, how + missing


def in_time(table: Table, column: Column) -> Table:
    """Return the table in the order of a date or a number: it is judged on the latest rows."""
    schema = table.schema.model_copy(update={"time": column.name, "kept_together": ""})
    return Table(schema, _sorted(table.frame, table.frame[column.name], column))


def _sorted(frame: pd.DataFrame, stored: Values, column: Column) -> pd.DataFrame:
    order = np.argsort(as_numbers(stored, column).fillna(-np.inf).to_numpy(), kind="stable")
    return frame.iloc[order].reset_index(drop=True)


def _named_columns(
    path: Path, target: str, options: TableOptions, source: TableFile
) -> tuple[str, str | None, str | None]:
    """Return the columns of target, group and time as the table has them."""
    columns = list(source.frame.columns)
    target = find_column(path, target, columns)
    told = None if options.time == NO_TIME and NO_TIME not in columns else options.time
    group, time = (one and find_column(path, one, columns) for one in (options.group, told))
    if group and time:
        raise TableInvalid("rows are kept together by --group or judged on the latest by --time; name one of them")
    if target in (group, time):
        raise TableInvalid(f"{target!r} is the column to predict; --group and --time name another one")
    source.check_names(path, target, group, time)
    return target, group, time


def _ordered(table: Table, values: Values, read: ReadColumn, name: str) -> Table:
    if read.kind not in (ColumnKind.DATE, ColumnKind.NUMERIC):
        raise TableInvalid(f"--time {name}: this column holds neither dates nor numbers")
    column = Column(name=name, kind=read.kind, date_format=read.date_format)
    said = f"the rows are in the order of {name!r}: the model is trained on the earlier and judged on the latest"
    return replace(table, frame=_sorted(table.frame, as_stored(values, column), column)).noting(said)


def _groups(values: Values, name: str, notes: list[str]) -> Numbers:
    codes, known = pd.factorize(values.astype(object).map(str, na_action="ignore"))
    if len(known) < LEAST_GROUPS:
        raise TableInvalid(f"--group {name}: this column has {len(known)} values; at least {LEAST_GROUPS} are needed")
    alone = codes < 0  # A row without a value is alone.
    codes[alone] = len(known) + np.arange(int(alone.sum()))
    notes.append(f"rows with the same {name!r} stay together: {len(known):,} groups; the column itself is left out")
    return np.asarray(codes, dtype="int64")


def _is_labelled(labels: Values, target: str, notes: list[str]) -> "pd.Series[bool]":
    is_labelled = labels.notna()
    if pd.api.types.is_float_dtype(labels):
        is_labelled &= np.isfinite(labels)
    missing = int((~is_labelled).sum())
    if missing:
        notes.append(f"{missing} rows without a value in {target!r} are left out")
    return is_labelled


def _read_target(
    values: Values, target: str, problem: ProblemKind | None
) -> tuple[Values, ProblemKind, Literal["whole number", "text", "number"]]:
    if values.nunique() < 2:
        only = values.iloc[0]
        only = int(only) if isinstance(only, float) and only.is_integer() else only
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
        if values.abs().max() > LARGEST_LABEL:
            raise TableInvalid(
                f"the target {target!r} has numbers as large as {values.abs().max():.3g}, whose squares no computer "
                "holds; divide them, or remove those rows"
            )
        return values.astype("float64"), kind, "number"
    if is_whole:
        return values.astype("int64"), kind, "whole number"
    return values.astype(str).astype(object), kind, "text"


def _rows_of_common_classes(labels: Values, target: str, notes: list[str]) -> "pd.Series[bool]":
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


def _features(
    read: dict[str, ReadColumn], rows: "pd.Index[Any]", notes: list[str]
) -> tuple[pd.DataFrame, list[Column]]:
    """Return the usable columns, with a note for each that was left out or is more than a number or a category."""
    columns: list[Column] = []
    kept: dict[str, Values] = {}
    seen: dict[bytes, str] = {}
    for name, found in read.items():
        values = found.values.loc[rows]
        twin = seen.setdefault(pd.util.hash_pandas_object(values, index=False).to_numpy().tobytes(), name)
        reason = f"it equals column {twin!r}" if twin != name else _useless(values, name, found)
        if reason:
            notes.append(f"column {name!r} is left out: {reason}")
            continue
        column = _column(values, name, found)
        kept[name] = as_stored(values, column)
        columns.append(column)
        notes += found.notes
        if lost := _too_large(values, found):
            numbers = "1 number is infinite or huge and counts" if lost == 1 else f"{lost} numbers are infinite or huge"
            notes.append(f"column {name!r}: {numbers}{'' if lost == 1 else ' and count'} as missing")
        if column.kind is ColumnKind.DATE:
            notes.append(f"column {name!r} is a date, {column.date_format}: it becomes its parts")
    return pd.DataFrame(kept, index=rows), columns


def _column(values: Values, name: str, found: ReadColumn) -> Column:
    texts = values.dropna().map(str)
    different = texts.nunique()
    is_category = found.kind is None and different <= min(MAXIMUM_CATEGORIES, len(values) // 4)
    return Column(
        name=name,
        kind=found.kind or (ColumnKind.CATEGORICAL if is_category else ColumnKind.TEXT),
        categories=different if is_category else 0,
        known=tuple(sorted(texts.unique())) if is_category else (),
        has_missing=bool(values.isna().any()),
        date_format=found.date_format,
        decimal=found.decimal,
        thousands=found.thousands,
        unit=found.unit,
        missing=found.missing,
    )


def _useless(values: Values, name: str, found: ReadColumn) -> str:
    """Say why a column is left out; empty for one that is not."""
    different, is_number = values.nunique(), found.kind is ColumnKind.NUMERIC
    if different == 0:
        return "it is empty"
    if is_number and _too_large(values, found) == values.notna().sum():
        return "its numbers are all infinite or huge"
    if different == 1 and (is_number or not values.isna().any()):
        return "it has one value only"
    if is_number and len(values) > 2 and bool((values.diff().iloc[1:] == 1).all()):
        return "it numbers the rows"
    is_whole = not is_number or (not found.decimal and bool((values == values.round()).all()))
    if different == len(values) and ID_NAME.search(name) and is_whole:
        return "it names the rows"
    if pd.api.types.is_timedelta64_dtype(values):
        return "durations are not read; make them numbers"
    return ""


def _too_large(values: Values, found: ReadColumn) -> int:
    """Return how many numbers no model can hold."""
    return int((values.abs() > LARGEST_NUMBER).sum()) if found.kind is ColumnKind.NUMERIC else 0


def _listed(columns: Sequence[str]) -> str:
    named = ", ".join(_shown(name) for name in columns[:MOST_COLUMNS_NAMED])
    others = len(columns) - MOST_COLUMNS_NAMED
    return f"{named} and {others:,} more" if others > 0 else named


def _shown(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
