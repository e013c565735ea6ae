"""A table file as people have it: separator, decimal comma, encoding, header and packing are detected and said."""

import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from apc_automl.data.files.excel import OLD_WORKBOOK, is_workbook, read_workbook
from apc_automl.data.files.odd_files import check_bytes, check_file, check_text, reason_of
from apc_automl.data.files.parquet import read_parquet
from apc_automl.errors import TableInvalid
from apc_bus.folders import make_private_folder

LARGEST_TABLE = 2**30
"""Bytes of a table once it is unpacked."""
MOST_MEMORY = 2**31
"""Bytes that a table of text may take while it is read, each cell counted as the largest that pandas makes of it."""
_COPIES = 3
"""Of the text: as it came, decoded, and as pandas reads it."""
_BYTES_OF_A_CELL = 64
"""Of a short text: a pointer to an object; a number has 8 and as much again while it is read."""
_PART_BYTES = 2**20
MOST_COLUMNS = 5_000
"""Each is profiled, and told of, separately."""
SEPARATORS = ",;\t|"
_PARQUET = b"PAR1"
NAMES = {",": "`,`", ";": "`;`", "\t": "tab", "|": "`|`"}
SAMPLE_LINES = 200
DECIMAL_COMMA = re.compile(r"\s*[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*")
WHOLE = re.compile(r"\s*[+-]?\d+\s*")
THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(\.\d{3})+,\d+\s*")


_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
"""What a packed file raises: RuntimeError when it is encrypted, or packed in another way."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the user says about the file; None = detected."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None


@dataclass(frozen=True, slots=True)
class TableFile:
    """The cells of a table file and how it was read."""

    frame: pd.DataFrame
    words: str
    """One line: rows, columns, separator, decimal sign, encoding."""


def _is_workbook(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return is_workbook(archive)


def read_source(path: Path, options: SourceOptions | None = None) -> TableFile:
    """Read a CSV (also .gz, or a .zip with one file), an Excel workbook or a parquet file.

    Raises:
        TableInvalid: with one sentence and the remedy, when the file cannot be read.
    """
    check_file(path)
    options = options or SourceOptions()
    try:
        frame, how = read_workbook(path, LARGEST_TABLE) if _is_workbook(path) else _read_unpacked(path, options)
    except _BROKEN as error:
        raise TableInvalid(f"{path} cannot be read: {error}") from error
    _check_width(len(frame.columns), path)
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.empty:
        raise TableInvalid(f"{path} has a header line but no rows")
    if not frame.columns.is_unique:
        twice = sorted(frame.columns[frame.columns.duplicated()])[0]
        raise TableInvalid(f"{path} has two columns of one name, {twice!r}; rename one of them")
    words = f"read {len(frame):,} rows, {len(frame.columns)} columns: {', '.join(how)}"
    return TableFile(frame, words)


def _read_unpacked(path: Path, options: SourceOptions) -> tuple[pd.DataFrame, list[str]]:
    data, packing = _unpacked(path)
    check_bytes(data, path)
    if data[:4] == _PARQUET:
        return read_parquet(data, path, LARGEST_TABLE), ["parquet", *packing]
    if data[:4] == OLD_WORKBOOK:
        raise TableInvalid(f"{path} is a workbook of Excel 2003 or before; save it as .xlsx or CSV")
    frame, how = _read_text(data, path, options)
    return frame, [*how, *packing]


def _unpacked(path: Path) -> tuple[bytes, list[str]]:
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(file) as packed:
                return _bounded(packed, path), ["gzip"]
        if start == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(names) != 1:
                    raise TableInvalid(f"{path} holds {len(names)} files; unpack it and name one of them with --data")
                if archive.getinfo(names[0]).file_size > LARGEST_TABLE:
                    raise _too_large(path)
                with archive.open(names[0]) as packed:
                    return _bounded(packed, path), ["zip"]
        return _bounded(file, path), []


def _bounded(file: Any, path: Path) -> bytes:
    """Read a file until it is known to be too large: a packed one may grow a thousandfold."""
    parts: list[bytes] = []
    size, marks = 0, Counter[str]()
    while part := file.read(_PART_BYTES):
        parts.append(part)
        size += len(part)
        if size > LARGEST_TABLE:
            raise _too_large(path)
        if parts[0][:4] != _PARQUET:
            marks.update({mark: part.count(mark.encode()) for mark in f"\n{SEPARATORS}"})
            cells = marks["\n"] + max(marks[mark] for mark in SEPARATORS)
            if _COPIES * size + _BYTES_OF_A_CELL * cells > MOST_MEMORY:
                raise TableInvalid(
                    f"{path} has more cells than can be read in {MOST_MEMORY // 2**20:,} MiB of memory "
                    f"({cells:,} in its first {size // 2**20 + 1:,} MiB); name a part of the table"
                )
    return b"".join(parts)


def _too_large(path: Path) -> TableInvalid:
    return TableInvalid(f"{path} has more than {LARGEST_TABLE // 2**20} MiB of data; name a part of the table")


def _read_text(data: bytes, path: Path, options: SourceOptions) -> tuple[pd.DataFrame, list[str]]:
    text, encoding = _decoded(data, path, options.encoding)
    check_text(text, path)
    separator = options.separator or _separator(text)
    if len(separator) > 1:
        raise TableInvalid(
            f"--separator {separator!r} has {len(separator)} characters; name the one between the fields"
        )
    try:
        cells = list(csv.reader(io.StringIO(text[: 2**20]), delimiter=separator, skipinitialspace=True))
        rows = [row for row in cells[:SAMPLE_LINES] if row]
        _check_width(max(map(len, rows), default=0), path)
        has_header = _has_header(rows) if options.header is None else options.header
        decimal, thousands = _decimal(rows, separator, options.decimal)
        frame = pd.read_csv(
            io.BytesIO(text.encode()),  # a StringIO takes four bytes a character
            sep=separator,
            header=0 if has_header else None,
            decimal=decimal,
            thousands=thousands,
            skipinitialspace=True,
            low_memory=False,
        )
    except (pd.errors.EmptyDataError, pd.errors.ParserError, ValueError, csv.Error) as error:
        name = NAMES.get(separator, separator)
        raise TableInvalid(f"{path} cannot be read as a table with {name}: {reason_of(error, name)}") from error
    _refuse_repeated_names(rows, has_header, path)
    if not has_header:
        frame.columns = [f"column_{number}" for number in range(1, len(frame.columns) + 1)]
    how = [NAMES.get(separator, repr(separator)), *(["decimal comma"] if decimal == "," else []), encoding]
    return frame, how if has_header else [*how, "no header line (columns are column_1, column_2, …)"]


def _check_width(columns: int, path: Path) -> None:
    if columns > MOST_COLUMNS:
        raise TableInvalid(f"{path} has {columns:,} columns, {MOST_COLUMNS:,} are possible; name a part of the table")


def _refuse_repeated_names(rows: list[list[str]], has_header: bool, path: Path) -> None:
    """Refuse repeated names: pandas would rename the columns silently."""
    names = [name.strip() for name in rows[0]] if has_header and rows else []
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise TableInvalid(f"{path} has two columns of one name, {twice[0]!r}; rename one of them")


def _decoded(data: bytes, path: Path, given: str | None) -> tuple[str, str]:
    if given is not None:
        try:
            return data.decode(given).removeprefix("\ufeff"), given
        except (LookupError, UnicodeError) as error:
            raise TableInvalid(f"{path} is not {given}: {error}; name another --encoding") from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return data.decode("utf-16"), "UTF-16"
        except UnicodeDecodeError as error:
            raise TableInvalid(f"{path} is no text: {error}; name its --encoding") from error
    if b"\0" in data[:4096]:
        raise TableInvalid(f"{path} is no text file; --data must name a CSV, Excel or parquet file")
    try:
        return data.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "Latin-1"


def _separator(text: str) -> str:
    lines = [line for line in text[: 2**16].splitlines()[:SAMPLE_LINES] if line.strip()][:-1] or [text.splitlines()[0]]
    counts = {mark: [line.count(mark) for line in lines] for mark in SEPARATORS}

    def rank(mark: str) -> tuple[float, int, int]:
        found = counts[mark]
        usual = max(set(found), key=found.count)
        return (found.count(usual) / len(found) if usual else 0.0, found[0], -SEPARATORS.index(mark))

    return max(SEPARATORS, key=rank) if any(counts[mark][0] for mark in SEPARATORS) else ","


def _has_header(rows: list[list[str]]) -> bool:
    """Return whether the first line is a header: a line of numbers is none."""
    first = rows[0] if rows else []
    return len(rows) < 2 or not first or not all(_is_number(cell) for cell in first)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _decimal(rows: list[list[str]], separator: str, given: str | None) -> tuple[str, str | None]:
    """Return (decimal sign, thousands sign): a comma if a column has only such numbers."""
    if given is not None:
        return given, None
    if separator == ",":
        return ".", None
    columns = [[cell for cell in column if cell.strip()] for column in zip(*rows[1:], strict=False)]
    commas = [
        column
        for column in columns
        if any(DECIMAL_COMMA.fullmatch(cell) for cell in column)
        and all(DECIMAL_COMMA.fullmatch(cell) or WHOLE.fullmatch(cell) for cell in column)
    ]
    has_thousands = any(THOUSANDS.fullmatch(cell) for column in commas for cell in column)
    return ("," if commas else "."), ("." if has_thousands else None)


def write_plain(source: TableFile, path: Path) -> Path:
    """Write the table as a UTF-8 CSV with a header line, in a private folder."""
    make_private_folder(path.parent)
    source.frame.to_csv(path, index=False, lineterminator="\n")
    return path
