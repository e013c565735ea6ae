"""Excel workbooks and parquet files, read within bounds: a kilobyte can name terabytes, or types of no table."""

import io
import multiprocessing
import os
import re
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Final

import pandas as pd

from apc_automl.errors import TableInvalid

MOST_XML: Final = 2**28
"""Bytes of the workbook once it is unpacked: its texts are read as a whole."""
SMALL_XML: Final = 2**22
"""Bytes, unpacked, of a workbook that is read in this process: whatever they are, they take less than `MOST_MEMORY`."""
MOST_MEMORY: Final = 2**31
"""Bytes that reading a larger one may take. openpyxl keeps each element of a row until the row ends, and those of
styles longer: 256 MiB of `<c/>`, a quarter of a megabyte when packed, would take some 20 GiB."""
BYTES_OF_A_CELL: Final = 8
OLD_WORKBOOK: Final = b"\xd0\xcf\x11\xe0"
"""How workbooks of Excel 2003 and before begin."""

Row = tuple[Any, ...]


def is_workbook(archive: zipfile.ZipFile) -> bool:
    """Return whether this is an Excel workbook."""
    return any(name.startswith("xl/") for name in archive.namelist())


def read_workbook(path: Path, bound: int) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of the first sheet that has any, and how it was read; a large one is read in its own process.

    Raises:
        TableInvalid: it is broken, unpacks to more than `MOST_XML` bytes, takes more than `MOST_MEMORY`, has more than
            `bound` bytes of cells, two columns of one name or cells without one.
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MOST_XML:
        raise TableInvalid(f"{path} has more than {MOST_XML // 2**20} MiB of data; save the sheet as CSV")
    if size <= SMALL_XML:
        return _read(path, bound)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_bound_memory, initargs=(MOST_MEMORY,)) as pool:
        try:
            return pool.submit(_read, path, bound).result()
        except (MemoryError, BrokenProcessPool) as error:
            raise TableInvalid(
                f"{path} takes more than {MOST_MEMORY // 2**20:,} MiB of memory to read; save the sheet as CSV"
            ) from error


def _bound_memory(most: int) -> None:
    """Let this process take so many bytes more than it has; Ctrl-C ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + most
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read(path: Path, bound: int) -> tuple[pd.DataFrame, list[str]]:
    try:
        with path.open("rb") as file:
            return _first_sheet(file, path, bound)
    except (TableInvalid, MemoryError):
        raise
    except Exception as error:  # A broken workbook raises whatever it happens to break.
        why = _first_line(error)
        raise TableInvalid(f"{path} cannot be read as an Excel workbook: {why}; save the sheet as CSV") from error


def _first_sheet(file: BinaryIO, path: Path, bound: int) -> tuple[pd.DataFrame, list[str]]:
    book = _library().load_workbook(file, read_only=True, data_only=True, keep_links=False)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # What the sheet says of its size may be wrong.
        rows = bounded_rows(sheet.iter_rows(values_only=True), bound, path)
        if rows:
            others = f", the first with cells of {len(book.worksheets)} sheets" if len(book.worksheets) > 1 else ""
            return _sheet_frame(rows, path), [f"Excel, sheet {sheet.title!r}{others}"]
    raise TableInvalid(f"{path} is empty; its first sheet needs a header line and rows")


def bounded_rows(rows: Iterable[Row], bound: int, path: Path) -> list[Row]:
    """Return the rows that have cells. Raises TableInvalid as soon as all rows exceed the bound together."""
    return [row for row in bounded(rows, _size_of_row, bound, path) if any(cell is not None for cell in row)]


def _size_of_row(row: Row) -> int:
    return BYTES_OF_A_CELL * (len(row) + 1) + sum(len(cell) for cell in row if isinstance(cell, str))


def _library() -> Any:
    """Return openpyxl, which reads XML with defusedxml, so that entities are refused, and nothing with lxml."""
    import openpyxl.xml

    if not openpyxl.xml.DEFUSEDXML:
        raise TableInvalid("Excel workbooks are read with defusedxml alone: `pip install defusedxml`, or save as CSV")
    return openpyxl


def _sheet_frame(rows: list[Row], path: Path) -> pd.DataFrame:
    head = [None if cell is None else str(cell).strip() for cell in rows[0]]
    while head and head[-1] is None:
        head.pop()
    if None in head or any(cell is not None for row in rows[1:] for cell in row[len(head) :]):
        raise TableInvalid(f"{path}: the first row of a sheet names the columns, and a column has no name there")
    columns = [_column(list(_cells(rows[1:], place))).rename(name) for place, name in enumerate(head)]
    return pd.concat(columns, axis=1)


def _column(cells: list[Any]) -> "pd.Series[Any]":
    """Return numbers, dates or truths where all cells are of one kind, else their texts."""
    values = pd.Series(cells, dtype=object).infer_objects()
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "boolean", "empty") or values.dtype != object:
        return values
    numbers = pd.to_numeric(values, errors="coerce")
    is_mended = bool((numbers.notna() == values.notna()).all())
    return numbers if is_mended else values.map(str, na_action="ignore")


def _cells(rows: list[Row], place: int) -> Iterator[Any]:
    """Yield the cells of a column: what Excel shows as an error, and an empty text, is missing."""
    for row in rows:
        cell = row[place] if place < len(row) else None
        yield None if isinstance(cell, str) and (not cell.strip() or cell in ERRORS) else cell


ERRORS: Final = frozenset({"#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"})


OLDEST_PYARROW: Final = 15
"""Older ones unpickle what a file names as its type (CVE-2023-47248)."""
BATCH_ROWS: Final = 1024
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
        return _arrow_frame(arrow, io.BytesIO(data), path, bound)
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


def _arrow_frame(arrow: Any, data: io.BytesIO, path: Path, bound: int) -> pd.DataFrame:
    parquet = import_module("pyarrow.parquet")
    schema = parquet.read_schema(data)
    for field in schema:
        _check_type(arrow, field, path)
    # Texts stay codes until their size is known: each of a million may stand for the same megabyte.
    texts = [field.name for field in schema if _is_text(arrow, _cell_type(arrow, field.type))]
    file = parquet.ParquetFile(data, read_dictionary=texts)
    told = file.metadata
    groups = [told.row_group(number).total_byte_size for number in range(told.num_row_groups)]
    bounded([*groups, told.num_rows * told.num_columns * BYTES_OF_A_CELL], int, bound, path)
    measure = import_module("pyarrow.compute")
    kept = bounded(file.iter_batches(batch_size=BATCH_ROWS), partial(_size, arrow, measure), bound, path)
    table = arrow.Table.from_batches(kept, file.schema_arrow)
    table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    plain = arrow.schema([field.with_type(_cell_type(arrow, field.type)) for field in table.schema])
    frame: pd.DataFrame = table.cast(plain).to_pandas(ignore_metadata=True)
    return frame


def _check_type(arrow: Any, field: Any, path: Path) -> None:
    if not any(getattr(arrow.types, name)(_cell_type(arrow, field.type)) for name in _SIMPLE):
        raise TableInvalid(f"{path}: column {field.name!r} holds {field.type}: a table has texts, numbers and dates")


def _cell_type(arrow: Any, kind: Any) -> Any:
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
