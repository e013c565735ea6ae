"""What becomes of each column of the user's table: numbers, categories, parts of dates, words of texts."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from apc_automl.data.schema import Column, ColumnKind

MAXIMUM_CATEGORIES = 50
MOST_WORDS = 20
WORD_SHARE = (0.03, 0.97)
"""A word of a text becomes a column if this share of the rows has it."""
DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?")
DATE_FORMATS = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%Y %H:%M", "%Y/%m/%d")
DATE_PARTS = ("year", "month", "day", "day_of_week", "days")
WORD = re.compile(r"[^\W\d_]{3,}")

Values: TypeAlias = "pd.Series[Any]"


def read_features(frame: pd.DataFrame, notes: list[str]) -> tuple[pd.DataFrame, list[Column]]:
    """Return the usable columns, with a note for each that was left out or changed."""
    kept: dict[str, Any] = {}
    columns: list[Column] = []
    seen: dict[bytes, str] = {}
    for name in frame.columns:
        twin = seen.setdefault(_content(frame[name]), name)
        if twin != name:
            notes.append(f"column {name!r} is left out: it equals column {twin!r}")
            continue
        made, note = _columns_of(frame[name], name)
        if note:
            notes.append(f"column {name!r} {note}")
        for column in made:
            kept[column.name] = derive(frame[name], column)
            columns.append(column)
    return pd.DataFrame(kept, index=frame.index), columns


def derive(values: Values, column: Column) -> Values:
    """Return one feature of a column of the user's table; the same for training and for prediction."""
    if column.kind is ColumnKind.CATEGORICAL:
        return values.astype(object).where(values.notna(), None).map(str, na_action="ignore")
    if column.part is None:
        return pd.to_numeric(values, errors="coerce").astype("float64").replace([np.inf, -np.inf], np.nan)
    if column.part.startswith("word "):
        wanted = column.part.removeprefix("word ")
        return values.map(lambda text: float(wanted in _words(text))).astype("float64")
    return _date_part(_dates(values, column.date_format), column.part)


def derive_all(frame: pd.DataFrame, columns: tuple[Column, ...]) -> pd.DataFrame:
    """Return the features of new rows. Raises KeyError for a column that is not there."""
    return pd.DataFrame({one.name: derive(frame[one.source or one.name], one) for one in columns}, index=frame.index)


def _columns_of(values: Values, name: str) -> tuple[list[Column], str]:
    """Return (the features made of a column, what was done in words; '' = nothing to say)."""
    has_missing = bool(values.isna().any())
    different = values.nunique()
    if different == 0:
        return [], "is left out: it is empty"
    if pd.api.types.is_datetime64_any_dtype(values):
        return _date_columns(values, name, "ISO8601", has_missing)
    if pd.api.types.is_numeric_dtype(values):
        if derive(values, Column(name=name, kind=ColumnKind.NUMERIC)).nunique() < 2:
            return [], "is left out: it has one value only"
        if _numbers_the_rows(values):
            return [], "is left out: it numbers the rows"
        return [Column(name=name, kind=ColumnKind.NUMERIC, has_missing=has_missing)], ""
    if different == 1 and not has_missing:
        return [], "is left out: it has one value only"
    date_format = _date_format(values)
    if date_format is not None:
        return _date_columns(values, name, date_format, has_missing)
    if different > min(MAXIMUM_CATEGORIES, len(values) // 4):
        return _word_columns(values, name, different)
    kind = ColumnKind.CATEGORICAL
    return [Column(name=name, kind=kind, categories=different, has_missing=has_missing)], ""


def _numbers_the_rows(values: Values) -> bool:
    """Return whether each row has the number after that of the row before."""
    return bool(len(values) > 2 and values.notna().all() and (values.diff().iloc[1:] == 1).all())


def _date_format(values: Values) -> str | None:
    texts = values.dropna().astype(str)
    if not texts.map(lambda text: bool(DATE.fullmatch(text))).all():
        return None
    return next((one for one in DATE_FORMATS if _dates(texts, one).notna().all()), None)


def _dates(values: Values, date_format: str | None) -> Values:
    if pd.api.types.is_datetime64_any_dtype(values):
        zoneless: Values = values.dt.tz_localize(None) if values.dt.tz is not None else values
        return zoneless
    dates: Values = pd.to_datetime(values.astype(object), format=date_format or "ISO8601", errors="coerce", utc=True)
    naive: Values = dates.dt.tz_localize(None)
    return naive


def _date_part(dates: Values, part: str) -> Values:
    if part == "days":
        return (dates - pd.Timestamp(1970, 1, 1)) / pd.Timedelta(days=1)
    figures: Values = getattr(dates.dt, part).astype("float64")
    return figures


def _date_columns(values: Values, name: str, date_format: str, has_missing: bool) -> tuple[list[Column], str]:
    dates = _dates(values, date_format)
    parts = [part for part in DATE_PARTS if _date_part(dates, part).nunique() > 1]
    made = [
        Column(
            name=f"{name} ({part})",
            kind=ColumnKind.NUMERIC,
            has_missing=has_missing,
            source=name,
            part=part,
            date_format=date_format,
        )
        for part in parts
    ]
    return made, f"is a date: it becomes {', '.join(parts)}" if parts else "is left out: it has one date only"


def _word_columns(values: Values, name: str, different: int) -> tuple[list[Column], str]:
    """Return the words of a text as columns of 0 and 1; none for a column whose texts share no words."""
    counts = Counter(word for text in values for word in _words(text))
    least, most = (share * len(values) for share in WORD_SHARE)
    common = sorted((word for word, count in counts.items() if least <= count <= most), key=lambda w: (-counts[w], w))
    made = [
        Column(name=f"{name} (word {word})", kind=ColumnKind.NUMERIC, source=name, part=f"word {word}")
        for word in common[:MOST_WORDS]
    ]
    if not made:
        return [], f"is left out: free text ({different} different values that share no words)"
    return made, f"is free text ({different} different values): it becomes its {len(made)} most frequent words"


def _words(text: Any) -> frozenset[str]:
    return frozenset(WORD.findall(text.lower())) if isinstance(text, str) else frozenset()


def _content(values: Values) -> bytes:
    """Return the same bytes for columns of the same cells."""
    return bytes(pd.util.hash_pandas_object(values, index=False).to_numpy().tobytes())


def describe(columns: tuple[Column, ...]) -> Iterator[tuple[str, str]]:
    """Yield (feature, how it is treated) for people."""
    for column in columns:
        missing = ", has missing values" if column.has_missing else ""
        if column.part is not None:
            yield column.name, f"number, the {column.part} of {column.source!r}{missing}"
        elif column.kind is ColumnKind.NUMERIC:
            yield column.name, f"number{missing}"
        else:
            yield column.name, f"{column.categories} categories{missing}"
