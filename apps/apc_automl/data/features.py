"""What becomes of each column of the user's table: a number, a category, a date, a text, or nothing.

skrub tells the kinds apart; the columns keep their names and values, and the model itself takes dates and texts to
pieces (`training.columns`), so that a saved model reads the user's table as it is.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from apc_automl.data.table_schema import TEXT_NUMBERS, Column, ColumnKind
from apc_automl.skrub_parts import load_skrub

MAXIMUM_CATEGORIES = 50
MOMENT = "%Y-%m-%dT%H:%M:%S"
"""How dates of a table that holds dates, not their texts, are written."""
LARGEST_NUMBER = 3e38
"""Trees hold no larger ones."""
DATE_FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
LONGEST_EXAMPLE = 20
ID_NAME = re.compile(r"(^|[\W_])(id|uuid|guid)$", re.IGNORECASE)

Values: TypeAlias = "pd.Series[Any]"


@dataclass(frozen=True, slots=True)
class _Found:
    """What skrub finds out about a column that holds no numbers."""

    kind: ColumnKind
    date_format: str | None = None


def read_features(frame: pd.DataFrame, notes: list[str]) -> tuple[pd.DataFrame, list[Column]]:
    """Return the usable columns, with a note for each that was left out or is more than a number or a category."""
    columns: list[Column] = []
    kept: dict[str, Values] = {}
    seen: dict[bytes, str] = {}
    found = _found(frame)
    for name in frame.columns:
        twin = seen.setdefault(_content(frame[name]), name)
        if twin != name:
            notes.append(f"column {name!r} is left out: it equals column {twin!r}")
            continue
        reason = _useless(frame[name], name)
        if reason:
            notes.append(f"column {name!r} is left out: {reason}")
            continue
        column = _column(frame[name], name, found)
        kept[name] = as_stored(frame[name], column)
        columns.append(column)
        notes += _doubts(frame[name], column)
        if column.kind is ColumnKind.DATE:
            notes.append(f"column {name!r} is a date, {column.date_format}: it becomes its parts")
    return pd.DataFrame(kept, index=frame.index), columns


def as_stored(values: Values, column: Column) -> Values:
    """Return a column as slices hold it: numbers, or texts; the same for training and for prediction."""
    if column.kind is ColumnKind.NUMERIC:
        numbers = pd.to_numeric(_without_booleans(values), errors="coerce")
        numbers = numbers.astype("float64")
        return numbers.where(numbers.abs() <= LARGEST_NUMBER)
    if pd.api.types.is_datetime64_any_dtype(values):
        values = _zoneless(values).dt.strftime(column.date_format or MOMENT)
    return values.astype(object).where(values.notna(), None).map(str, na_action="ignore")


def as_numbers(values: Values, column: Column) -> Values:
    """Return a stored column as one number a cell, for tests that look at columns one by one.

    A date is its day, a text its length, a category the rank of its name; NaN where nothing is.
    """
    match column.kind:
        case ColumnKind.NUMERIC:
            return values.astype("float64")
        case ColumnKind.DATE:
            dates = pd.to_datetime(values.astype(object), format=column.date_format, errors="coerce", utc=True)
            days: Values = (dates - pd.Timestamp(1970, 1, 1, tz="UTC")) / pd.Timedelta(days=1)
            return days
        case ColumnKind.TEXT:
            return values.astype(object).map(len, na_action="ignore").astype("float64")
    codes: Values = values.astype("category").cat.codes.astype("float64")
    return codes.where(codes >= 0)


def describe(columns: tuple[Column, ...]) -> Iterator[tuple[str, str]]:
    """Yield (column, what it becomes) for people."""
    for column in columns:
        missing = ", has missing values" if column.has_missing else ""
        match column.kind:
            case ColumnKind.NUMERIC:
                how = "number"
            case ColumnKind.DATE:
                how = f"date ({column.date_format}): year, month, day, hour, day of the week, seconds since 1970"
            case ColumnKind.TEXT:
                numbers = min(TEXT_NUMBERS, len(column.words))
                how = f"text: its {len(column.words)} most frequent words in {numbers} numbers"
            case _:
                how = f"{column.categories} categories"
        yield column.name, how + missing


def _column(values: Values, name: str, found: Mapping[str, _Found]) -> Column:
    has_missing = bool(values.isna().any())
    known = found.get(name, _Found(ColumnKind.NUMERIC))
    return Column(
        name=name,
        kind=known.kind,
        categories=values.nunique() if known.kind is ColumnKind.CATEGORICAL else 0,
        has_missing=has_missing,
        date_format=known.date_format,
    )


def _found(frame: pd.DataFrame) -> dict[str, _Found]:
    """Return what skrub finds out about the columns that hold no numbers; it is loaded for them alone."""
    others = frame[[name for name in frame.columns if not _holds_numbers(frame[name])]]
    others = others.loc[:, others.notna().any()]
    if others.columns.empty:
        return {}
    skrub = load_skrub()
    vectorizer = skrub.TableVectorizer(
        cardinality_threshold=min(MAXIMUM_CATEGORIES, len(frame) // 4) + 1,
        low_cardinality="passthrough",
        high_cardinality="passthrough",
        datetime="passthrough",
    ).fit(others)
    kinds = vectorizer.kind_to_columns_
    found = dict.fromkeys(kinds["low_cardinality"], _Found(ColumnKind.CATEGORICAL))
    found |= dict.fromkeys(kinds["high_cardinality"], _Found(ColumnKind.TEXT))
    for name in kinds["datetime"]:
        steps = vectorizer.all_processing_steps_[name]
        form = next((one.format_ for one in steps if isinstance(one, skrub.ToDatetime)), None)
        found[name] = _Found(ColumnKind.DATE, form or MOMENT)
    return found


def _holds_numbers(values: Values) -> bool:
    return pd.api.types.is_numeric_dtype(values) or pd.api.types.infer_dtype(values, skipna=True) == "boolean"


def _useless(values: Values, name: str) -> str:
    """Say why a column is left out; empty for one that is not."""
    different = values.nunique()
    if different == 0:
        return "it is empty"
    if _holds_numbers(values) and _too_large(values) == values.notna().sum():
        return "its numbers are all infinite or huge"
    if different == 1 and (_holds_numbers(values) or not values.isna().any()):
        return "it has one value only"
    is_number = _holds_numbers(values)
    if is_number and _numbers_the_rows(values):
        return "it numbers the rows"
    if different == len(values) and ID_NAME.search(name) and not pd.api.types.is_float_dtype(values):
        return "it names the rows"
    if pd.api.types.is_timedelta64_dtype(values):
        return "durations are not read; make them numbers"
    return ""


def _numbers_the_rows(values: Values) -> bool:
    """Return whether each row has the number after that of the row before."""
    if len(values) < 3 or values.isna().any():
        return False
    return bool((_without_booleans(values).astype("float64").diff().iloc[1:] == 1).all())


def _without_booleans(values: Values) -> Values:
    """Return false and true as 0 and 1."""
    if pd.api.types.infer_dtype(values, skipna=True) != "boolean":
        return values
    return values.astype(object).map(float, na_action="ignore")


def _zoneless(values: Values) -> Values:
    zoneless: Values = values.dt.tz_convert("UTC").dt.tz_localize(None) if values.dt.tz is not None else values
    return zoneless


def _content(values: Values) -> bytes:
    """Return the same bytes for columns of the same cells."""
    return bytes(pd.util.hash_pandas_object(values, index=False).to_numpy().tobytes())


def _doubts(values: Values, column: Column) -> list[str]:
    """Say which cells are not what most cells of the column are: they would be lost in silence."""
    if column.kind is ColumnKind.NUMERIC:
        lost = _too_large(values)
        count = (
            "1 number is infinite or huge and counts" if lost == 1 else f"{lost} numbers are infinite or huge and count"
        )
        return [f"column {column.name!r}: {count} as missing"] if lost else []
    if column.kind is ColumnKind.DATE:
        return []
    found = values.dropna().astype(str)
    for form in DATE_FORMATS:
        no_dates = found[pd.to_datetime(found, format=form, errors="coerce").isna()]
        if 0 < len(no_dates) < len(found) / 2:
            example = no_dates.iloc[0][:LONGEST_EXAMPLE]
            return [
                f"column {column.name!r} has dates, {form}, but {len(no_dates)} of its cells are none, such as "
                f"{example!r}: it is read as text; mend those cells"
            ]
    return []


def _too_large(values: Values) -> int:
    """Return how many numbers no model can hold."""
    return int((pd.to_numeric(_without_booleans(values), errors="coerce").abs() > LARGEST_NUMBER).sum())
