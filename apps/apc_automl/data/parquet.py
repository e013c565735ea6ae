"""A parquet file, read within bounds: a file of a kilobyte can name terabytes, or types that no table has."""

import io
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import pandas as pd

from apc_automl.errors import TableInvalid

OLDEST_PYARROW: Final = 15
"""Older ones unpickle what a file names as its type (CVE-2023-47248)."""
BATCH_ROWS: Final = 1024
BYTES_OF_A_CELL: Final = 8
_SIMPLE: Final = (
    *("is_boolean", "is_integer", "is_floating", "is_decimal", "is_string", "is_large_string", "is_null"),
    *("is_date", "is_timestamp", "is_time"),
)
"""Types of cells that a table has."""

_INDEX: Final = re.compile(r"__index_level_\d+__")
"""The columns in which pandas keeps an index without a name."""


def read_parquet(data: bytes, path: Path, bound: int) -> pd.DataFrame:
    """Return the cells of a parquet file; what its header tells pandas is ignored.

    Raises:
        TableInvalid: it is broken, has more than `bound` bytes of cells or columns that are no cells, or there is no
            pyarrow to read it.
    """
    check_version(path)
    arrow = import_module("pyarrow")
    try:
        return _frame(arrow, io.BytesIO(data), path, bound)
    except (arrow.lib.ArrowException, ValueError, OSError) as error:
        raise TableInvalid(f"{path} cannot be read as parquet: {_first_line(error)}") from error


def check_version(path: Path) -> None:
    """Raise TableInvalid when pyarrow is not installed, or so old that it runs what a file names."""
    try:
        installed = version("pyarrow")
    except PackageNotFoundError:
        raise TableInvalid(f"{path} is a parquet file: `pip install pyarrow` to read it, or save it as CSV") from None
    if int(installed.partition(".")[0]) < OLDEST_PYARROW:
        raise TableInvalid(f"{path} is a parquet file, and pyarrow {installed} is unsafe: `pip install -U pyarrow`")


def bounded(batches: Iterable[Any], size_of: Callable[[Any], int], bound: int, path: Path) -> list[Any]:
    """Return the batches. Raises TableInvalid as soon as their sizes exceed the bound together."""
    kept, total = [], 0
    for batch in batches:
        total += size_of(batch)
        if total > bound:
            raise TableInvalid(f"{path} has more than {bound // 2**20} MiB of data; name a part of the table")
        kept.append(batch)
    return kept


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _frame(arrow: Any, data: io.BytesIO, path: Path, bound: int) -> pd.DataFrame:
    parquet = import_module("pyarrow.parquet")
    schema = parquet.read_schema(data)
    for field in schema:
        _check_type(arrow, field, path)
    # Texts stay codes until their size is known: each of a million may stand for the same megabyte.
    texts = [field.name for field in schema if _is_text(arrow, _cells(arrow, field.type))]
    file = parquet.ParquetFile(data, read_dictionary=texts)
    told = file.metadata
    groups = [told.row_group(number).total_byte_size for number in range(told.num_row_groups)]
    bounded([*groups, told.num_rows * told.num_columns * BYTES_OF_A_CELL], int, bound, path)
    measure = import_module("pyarrow.compute")
    kept = bounded(file.iter_batches(batch_size=BATCH_ROWS), partial(_size, arrow, measure), bound, path)
    table = arrow.Table.from_batches(kept, file.schema_arrow)
    table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    plain = arrow.schema([field.with_type(_cells(arrow, field.type)) for field in table.schema])
    frame: pd.DataFrame = table.cast(plain).to_pandas(ignore_metadata=True)
    return frame


def _check_type(arrow: Any, field: Any, path: Path) -> None:
    if not any(getattr(arrow.types, name)(_cells(arrow, field.type)) for name in _SIMPLE):
        raise TableInvalid(f"{path}: column {field.name!r} holds {field.type}: a table has texts, numbers and dates")


def _cells(arrow: Any, kind: Any) -> Any:
    """Return the type of the cells: that of the values where a column has codes."""
    return kind.value_type if arrow.types.is_dictionary(kind) else kind


def _is_text(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _size(arrow: Any, measure: Any, batch: Any) -> int:
    """Return the bytes of a batch once no cell is a code any more."""
    return int(sum(_size_of_column(arrow, measure, column) for column in batch.columns))


def _size_of_column(arrow: Any, measure: Any, column: Any) -> int:
    least = len(column) * BYTES_OF_A_CELL
    if not arrow.types.is_dictionary(column.type) or not _is_text(arrow, column.type.value_type):
        return max(least, int(column.nbytes))
    lengths = measure.take(measure.binary_length(column.dictionary), column.indices)
    return least + int(measure.sum(lengths).as_py() or 0)
