"""A table file as people have it: packing, encoding, separator and header are detected and said.

The cells of a text file come back as texts, none of them changed: what they mean is told column by column
(`column_types`), when all of them are known.
"""

import csv
import gzip
import io
import lzma
import re
import stat
import zipfile
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from statistics import mode
from typing import Any, BinaryIO, Final

import pandas as pd

from apc_automl.data.columns import is_missing, parse_number
from apc_automl.data.table_schema import TableOptions
from apc_automl.data.typed_files import OLD_WORKBOOK, is_workbook, read_parquet, read_workbook
from apc_automl.errors import TableInvalid

LARGEST_TABLE = 2**30
"""Bytes of a table once it is unpacked."""
MOST_MEMORY = 2**31
"""Bytes that a table of text may take while it is read, each cell counted as the largest that pandas makes of it."""
_COPIES = 3
"""Of the text: as it came, decoded, and as pandas reads it."""
_BYTES_OF_A_CELL = 64
"""Of a short text: a pointer to an object."""
_BYTES_OF_AN_EMPTY_CELL = 8
_PART_BYTES = 2**20
MOST_COLUMNS = 5_000
"""Each is profiled, and told of, separately."""
SEPARATORS = ",;\t|"
_NO_QUOTE: Final = "\x1f"
"""A sign that texts do not have, where quotation marks are inches and the like."""
NAMES = {",": "`,`", ";": "`;`", "\t": "tab", "|": "`|`", " ": "space"}
SAMPLE_LINES = 200
SAMPLE_TEXT = 2**20
MOST_TITLE_LINES = 10
"""Lines above the header."""
NUMBERS_SHARE = 0.8
"""Of the cells of a column, to take its first cell for a name where it is none."""
MOST_LAST_LINES = 3
"""Lines behind the table, such as a sum."""
MOST_COMMENTS = 1_000
"""Different ones, among the rows."""
MOST_TITLE_FIELDS = 2
"""Fields of a table in which a line of one may be a row."""
# A star stands before a total in lists of SAP.
_SUM: Final = re.compile(
    r"((grand |sub)?total|sum|summe|gesamt|insgesamt|totale|totaal|totalt|somme|soma|suma|razem|average|mean|mittelwert"
    r"|durchschnitt|anzahl|count|moyenne|media|promedio)\b.*|\*{1,3}",
    re.IGNORECASE,
)
_PARQUET = b"PAR1"
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
"""What a packed file raises: RuntimeError when it is encrypted, or packed in another way."""
_TAR_MARK: Final = slice(257, 262)
_MARKUP: Final = re.compile(r"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_JSON: Final = re.compile(r"\s*(\[\s*)?\{\s*\"")
_RULE: Final = re.compile(r"\s*([-=_+:]{3,}\s*)?")
"""Dashes under a header, or above a sum; or nothing."""
_OPEN_QUOTE: Final = re.compile(r"EOF inside string starting at row (\d+)")
_TOLD_SEPARATOR: Final = re.compile(r"sep=(.)\r?\n")
_WINDOWS: Final = re.compile(rb"[\x80-\x9f]")
"""Letters and signs, the euro among them, in the code page of Windows; nothing in Latin-1."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """The cells of a table file and how it was read."""

    frame: pd.DataFrame
    words: str
    """One line: rows, columns, separator, encoding."""
    mended: tuple[str, ...] = ()
    """What was not as a table has it."""
    separator: str = ""
    """Empty for an Excel workbook or a parquet file."""
    header: bool = True
    repeated: tuple[str, ...] = ()
    """Names that several columns had: the first has kept it."""

    def check_names(self, path: Path, *names: str | None) -> None:
        """Check that each of these is the name of one column. Raises TableInvalid."""
        columns = [*self.frame.columns, *self.repeated]
        for name in names:
            if columns.count(name) > 1:
                raise TableInvalid(f"{path} has two columns of one name, {name!r}; rename one of them")


@dataclass(frozen=True, slots=True)
class _Dialect:
    separator: str
    quote: str
    escape: str | None
    """Before a quotation mark within a cell; without it such marks are doubled."""
    title_lines: int
    """Lines above the header, or above the first row where there is none."""
    rows: list[list[str]]
    """The first ones, the header among them."""

    def reader(self, lines: Iterable[str]) -> Any:
        """Return what cuts lines into cells."""
        mark, quote, escape = self.separator, self.quote, self.escape
        return csv.reader(lines, delimiter=mark, quotechar=quote, escapechar=escape, skipinitialspace=True)


def read_source(path: Path, options: TableOptions | None = None) -> TableFile:
    """Read a CSV (also .gz, or a .zip with one file), an Excel workbook or a parquet file.

    Raises:
        TableInvalid: with one sentence and the remedy, when the file cannot be read.
    """
    options = options or TableOptions()
    _check_file(path)
    try:
        with path.open("rb") as file:
            source = _read_file(file, path, options)
    except _BROKEN as error:
        raise TableInvalid(f"{path} cannot be read: {error}") from error
    frame = source.frame
    _check_width(len(frame.columns), path)
    frame.columns = pd.Index([str(name).strip() for name in frame.columns], dtype=object)
    if frame.empty:
        raise TableInvalid(f"{path} has a header line but no rows")
    source.check_names(path, *frame.columns[frame.columns.duplicated()])
    words = f"read {len(frame):,} rows, {len(frame.columns)} columns: {source.words}"
    return replace(source, words=words)


def _check_file(path: Path) -> None:
    """Raise TableInvalid for what is no file: opening a pipe would wait for its other end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = "there is no file" if isinstance(error, FileNotFoundError) else f"{error.strerror}:"
        raise TableInvalid(f"{why} {path}; --data must name a CSV, Excel or parquet file") from error
    if stat.S_ISDIR(mode):
        raise TableInvalid(f"{path} is a folder; --data must name a CSV, Excel or parquet file in it")
    if not stat.S_ISREG(mode):
        raise TableInvalid(f"{path} is a pipe or a device; write the table to a file and name that with --data")


def _read_file(file: BinaryIO, path: Path, options: TableOptions) -> TableFile:
    """Read what the first bytes say that it is: a workbook, a parquet file, or a text, which may be packed."""
    start = file.read(4)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        with gzip.open(file) as packed:
            return _read_bytes(_bounded(packed, path), path, options, ["gzip"])
    if start != b"PK\x03\x04":
        return _read_bytes(_bounded(file, path), path, options, [])
    with zipfile.ZipFile(file) as archive:
        names = [entry for entry in archive.infolist() if not entry.is_dir()]
        if is_workbook(archive):
            frame, how = read_workbook(path, LARGEST_TABLE)
            return TableFile(frame, ", ".join(how))
        if len(names) != 1:
            raise TableInvalid(f"{path} holds {len(names)} files; unpack it and name one of them with --data")
        if names[0].file_size > LARGEST_TABLE:
            raise _too_large(path)
        with archive.open(names[0]) as packed:
            return _read_bytes(_bounded(packed, path), path, options, ["zip"])


def _read_bytes(data: bytes, path: Path, options: TableOptions, packing: list[str]) -> TableFile:
    if data[_TAR_MARK] == b"ustar":
        raise TableInvalid(f"{path} is an archive of files (tar); unpack it and name one of them with --data")
    if data[:4] == OLD_WORKBOOK:
        raise TableInvalid(f"{path} is a workbook of Excel 2003 or before; save it as .xlsx or CSV")
    if data[:4] == _PARQUET:
        return TableFile(read_parquet(data, path, LARGEST_TABLE), ", ".join(["parquet", *packing]))
    text, encoding = _decoded(data, path, options.encoding)
    return _read_text(text, path, options, [encoding, *packing])


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
                first = f"({cells:,} in its first {size // 2**20 + 1:,} MiB)"
                raise _too_many_cells(path, f" {first}")
    return b"".join(parts)


def _too_large(path: Path) -> TableInvalid:
    return TableInvalid(f"{path} has more than {LARGEST_TABLE // 2**20} MiB of data; name a part of the table")


def _too_many_cells(path: Path, seen: str = "") -> TableInvalid:
    return TableInvalid(
        f"{path} has more cells than can be read in {MOST_MEMORY // 2**20:,} MiB of memory{seen}; "
        "name a part of the table"
    )


def _decoded(data: bytes, path: Path, given: str | None) -> tuple[str, str]:
    """Return the text and its encoding: the one that is told, or the first that fits."""
    if given is not None:
        names = {given: given}
    elif data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        names = {"utf-16": "UTF-16"}
    elif b"\0" in data[:4096]:
        raise TableInvalid(f"{path} is no text file; --data must name a CSV, Excel or parquet file")
    else:
        other = {"cp1252": "Windows-1252"} if _WINDOWS.search(data) else {"latin-1": "Latin-1"}
        names = {"utf-8-sig": "UTF-8", **other}
    for encoding, name in names.items():
        try:
            return data.decode(encoding).removeprefix("\ufeff"), name
        except (LookupError, UnicodeError) as error:
            why = error
    raise TableInvalid(f"{path} is not {name}: {why}; name another --encoding") from why


def _read_text(text: str, path: Path, options: TableOptions, how: list[str]) -> TableFile:
    _check_text(text, path)
    given = options.separator
    if given is not None and len(given) != 1:
        raise TableInvalid(f"--separator {given!r} has {len(given)} characters; name the one between the fields")
    told = _TOLD_SEPARATOR.match(text)
    if told is not None:
        text, given = text[told.end() :], given or told.group(1)
    separator = given or ","
    try:
        dialect = _dialect(text, given)
        separator = dialect.separator
        _check_width(max(map(len, dialect.rows), default=0), path)
        return _cells(text.encode(), dialect, options, path, how)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, ValueError, csv.Error) as error:
        reason = _reason_of(error)
        raise TableInvalid(f"{path} cannot be read as a table with {_named(separator)}: {reason}") from error


def _named(separator: str) -> str:
    return NAMES.get(separator, separator)


def _check_text(text: str, path: Path) -> None:
    """Raise TableInvalid for a text that is none of a table, or that no log can hold."""
    if not text.strip():
        raise TableInvalid(f"{path} is empty; it needs a header line and rows")
    if _MARKUP.match(text):
        raise TableInvalid(f"{path} is a web page or XML; download the table itself, or save it as CSV")
    if _JSON.match(text):
        raise TableInvalid(f"{path} is JSON; save it as CSV")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TableInvalid(
            f"{path} has a NUL character in line {line}; is the file damaged? Remove it, or save it again"
        )


def _check_width(columns: int, path: Path) -> None:
    if columns > MOST_COLUMNS:
        raise TableInvalid(f"{path} has {columns:,} columns, {MOST_COLUMNS:,} are possible; name a part of the table")


def _reason_of(error: Exception) -> str:
    """Return why a text cannot be read as a table, and what would help."""
    why = (str(error).splitlines() or [type(error).__name__])[0]
    quote = _OPEN_QUOTE.search(why)
    if quote is not None:
        return f"a quotation mark in row {quote.group(1)} is never closed; close or remove it"
    if "field larger than field limit" in why:
        return "a cell has more than 131,072 characters; is a quotation mark never closed? Shorten it"
    return why


def _dialect(text: str, separator: str | None) -> _Dialect:
    """Return the separator and quotation mark with which most lines have as many fields as the others."""
    sample = text[:SAMPLE_TEXT]
    quotes = (
        ['"', "'"] if re.search(rf"(^|[{SEPARATORS}])'[^'\n]*'([{SEPARATORS}\r]|$)", sample, re.MULTILINE) else ['"']
    )
    escape = "\\" if re.search(rf"\\[\"'][^{SEPARATORS}\s\"']", sample) and r"\N" not in sample else None
    found = [_sampled(sample, mark, quote, escape) for mark in separator or SEPARATORS for quote in quotes]
    best = max(found, key=_regularity)
    if separator is None and not _regularity(best)[0]:
        spaced = _sampled(sample, " ", '"', best.escape)
        best = spaced if _regularity(spaced)[0] > NUMBERS_SHARE else best
    plain = _sampled(sample, best.separator, _NO_QUOTE, best.escape)
    if any("\n" in cell for row in best.rows for cell in row) and _regularity(plain)[0] == _regularity(best)[0]:
        best = plain
    title_lines, rows = _below_title(best.rows)
    return replace(best, title_lines=title_lines, rows=rows)


def _sampled(sample: str, separator: str, quote: str, escape: str | None) -> _Dialect:
    dialect = _Dialect(separator, quote, escape, 0, [])
    rows = [*islice(dialect.reader(io.StringIO(sample, newline="")), SAMPLE_LINES)]
    is_cut = len(sample) == SAMPLE_TEXT and 1 < len(rows) < SAMPLE_LINES
    return replace(dialect, rows=rows[:-1] if is_cut else rows)


def _regularity(dialect: _Dialect) -> tuple[float, float, int, int]:
    """Return how sure it is that this is the separator: of equals the one that leaves none of the others in cells."""
    widths = [len(row) for row in dialect.rows if row]
    usual = max(set(widths), key=lambda width: (widths.count(width), width), default=0)
    cells = [cell for row in dialect.rows for cell in row]
    whole = sum(not any(mark in cell for mark in SEPARATORS if mark != dialect.separator) for cell in cells)
    share = widths.count(usual) / len(widths) if usual > 1 else 0.0
    quoted = -sum(cell.startswith("'") or cell.startswith('"') for cell in cells)
    return share, whole / max(1, len(cells)), quoted, -SEPARATORS.find(dialect.separator)


def _below_title(rows: list[list[str]]) -> tuple[int, list[list[str]]]:
    """Return how many lines stand above the table, and its rows: titles have one field, the table has more."""
    filled = [sum(bool(cell.strip()) for cell in row) for row in rows]
    usual = max(set(filled), key=filled.count, default=0)
    first = next((place for place, count in enumerate(filled) if count > 1 and count >= usual - 1), 0)
    if usual < 3 or first == 0 or first > MOST_TITLE_LINES or any("\n" in cell for row in rows[:first] for cell in row):
        first = 0
    width = max(map(len, rows), default=0)
    while first < len(rows) and _is_none(rows[first], width):
        first += 1
    return first, [row for row in rows[first:] if not _is_none(row, width)]


def _is_none(row: list[str], width: int) -> bool:
    """Return whether a line is no row of a table: a comment, a rule, or without cells."""
    if not row or row[0][:1] not in "#-=_+: ":
        return not row
    return (row[0].startswith("#") and len(row) < width) or (width > 1 and all(map(_RULE.fullmatch, row)))


def _cells(data: bytes, dialect: _Dialect, options: TableOptions, path: Path, how: list[str]) -> TableFile:
    """Return the cells as texts."""
    first = dialect.rows[0] if dialect.rows else []
    has_header = _has_header(dialect.rows) if options.header is None else options.header
    usual = mode(map(len, dialect.rows[1:] or [first]))
    mended = [f"the {dialect.title_lines} lines above the table are left out"] if dialect.title_lines else []
    given = first if has_header else [""] * usual
    before = [given[:place].count(name) if name.strip() else 0 for place, name in enumerate(given)]
    names = [name.strip() + f".{count}" * (count > 0) for name, count in zip(given, before, strict=True)]
    repeated = [name.strip() for name, count in zip(given, before, strict=True) if count == 1]
    order = "new rows must have them in this order"
    mended += [f"warning: several columns are called {one!r}: the next is '{one}.1', and {order}" for one in repeated]
    while has_header and names and not names[-1] and not _has_cells(dialect.rows[1:], len(names) - 1):
        names.pop()
    if has_header and usual == len(names) + 1 and _numbers_rows(dialect.rows[1:]):
        names.insert(0, "row")
        mended.append("the header has no name for the first column, which numbers the rows: it is called 'row'")
    names = [name or f"column_{place}" for place, name in enumerate(names or [""], 1)]
    said, rows, behind, comments = _check_lines(data, dialect, names, has_header)
    cells = rows + data.count(dialect.separator.encode())
    if max(rows * len(names) * _BYTES_OF_AN_EMPTY_CELL, _COPIES * len(data) + cells * _BYTES_OF_A_CELL) > MOST_MEMORY:
        raise _too_many_cells(path)
    frame = pd.read_csv(
        _below(data, dialect),
        sep=dialect.separator,
        quotechar=dialect.quote,
        escapechar=dialect.escape,
        header=None,
        names=list(range(len(names))),
        usecols=list(range(len(names))),
        dtype=object,
        na_filter=False,
        skipinitialspace=True,
        index_col=False,
    )
    if comments:
        rows_of = enumerate(frame.itertuples(index=False, name=None))
        frame = frame[[place < has_header or cells not in comments for place, cells in rows_of]]
    units = _units(dialect.rows) if has_header else []
    for place, unit in units[:1]:
        mended.append(f"warning: the line below the header is left out: column {names[place]!r} has {unit!r} there")
    frame = frame.iloc[has_header + bool(units) : len(frame) - behind].reset_index(drop=True)
    frame.columns = pd.Index(names, dtype=object)
    words = [_named(dialect.separator), *how]
    if not has_header:
        words.append("no header line (columns are column_1, column_2, …)")
    return TableFile(frame, ", ".join(words), (*mended, *said), dialect.separator, has_header, tuple(repeated))


def _has_cells(rows: list[list[str]], place: int) -> bool:
    return any(cell.strip() for row in rows for cell in row[place : place + 1])


def _numbers_rows(rows: list[list[str]]) -> bool:
    """Return whether the first cells are 1, 2, 3 … or 0, 1, 2 …"""
    cells = [row[0].strip() for row in rows]
    return len(cells) > 2 and any(cells == [*map(str, range(start, start + len(cells)))] for start in (0, 1))


def _below(data: bytes, dialect: _Dialect) -> io.TextIOWrapper:
    """Return the lines from the header on."""
    lines = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    for _ in range(dialect.title_lines):
        lines.readline()
    return lines


def _records(data: bytes, dialect: _Dialect) -> Iterator[tuple[list[str], int]]:
    """Yield the rows of the table, and the line in which each ends."""
    reader = dialect.reader(_below(data, dialect))
    for row in reader:
        if row:
            yield row, reader.line_num + dialect.title_lines


def _check_lines(
    data: bytes, dialect: _Dialect, names: list[str], has_header: bool
) -> tuple[list[str], int, int, set[tuple[str, ...]]]:
    """Return (what is said of the lines, how many are rows, how many of these are behind the table, comments).

    Raises:
        ValueError: a row has a cell behind the last column: which of its cells belongs to which is not known.
    """
    short, ended, rows, width = list[int](), 0, 0, len(names)
    last, comments = deque[list[str]](maxlen=MOST_LAST_LINES + 1), set[tuple[str, ...]]()
    has_marks = any(row[0].startswith("#") for row in dialect.rows[1:])
    for row, line in _records(data, dialect):
        is_none = _is_none(row, width) and not (has_marks and row[0].startswith("#"))
        if (is_none or (has_header and rows > 0 and row == dialect.rows[0])) and len(comments) < MOST_COMMENTS:
            comments.add((*row, *[""] * (width - len(row)))[:width])
            continue
        rows += 1
        last.append(row)
        if len(row) > width:
            if any(cell.strip() for cell in row[width:]):
                if has_header and mode(map(len, dialect.rows[1:] or [[]])) > width:
                    raise ValueError(
                        f"the header has {width} names, line {line} has {len(row)} fields; "
                        "add the name that is missing, where its column stands"
                    )
                raise ValueError(
                    f"line {line} has {len(row)} fields, {width} are expected; put a text that holds "
                    f"{_named(dialect.separator)} in quotation marks, or name another --separator"
                )
            ended += rows > 1
        elif len(row) < width and rows > has_header:
            short.append(line)
    behind = _behind_table([*last], dialect, width)
    short = short[: len(short) - sum(len(row) < width for row in [*last][len(last) - len(behind) :])]
    none = "comments, rules, empty lines or the header again are left out"
    said = [f"{none}, such as {max(comments)[0]!r}"] if comments else []
    if ended:
        said.append(f"{ended:,} lines end with {_named(dialect.separator)}: nothing stands behind the last column")
    if behind:
        lines = "line is" if len(behind) == 1 else f"{len(behind)} lines are"
        said.append(f"warning: the last {lines} left out: column {names[0]!r} has {behind[0]!r} there")
    if short:
        lines = f"{len(short):,} lines have too few fields, line {short[0]} first"
        said.append(f"warning: {lines}: column {names[-1]!r} is empty there")
    return said, rows, len(behind), comments


def _behind_table(last: list[list[str]], dialect: _Dialect, width: int) -> list[str]:
    """Return how the lines at the end begin that are no rows: a sum, or a remark in one field."""
    sums = sum(_SUM.fullmatch(_first(row)) is not None for row in dialect.rows)
    found: list[str] = []
    for row in reversed(last):
        is_sum = _SUM.fullmatch(_first(row)) is not None and sums <= MOST_LAST_LINES
        if not is_sum and not (len(row) == 1 and width > MOST_TITLE_FIELDS):
            break
        found.insert(0, _first(row))
    return found if len(found) <= MOST_LAST_LINES and len(dialect.rows) > len(found) + 1 else []


def _first(row: list[str]) -> str:
    return next((cell.strip() for cell in row if cell.strip()), "")


def _has_header(rows: list[list[str]]) -> bool:
    """Return whether the first line is a header: one of numbers above numbers, and of texts of other rows, is none."""
    if len(rows) < 2:
        return True
    cells = _above(rows)
    numbers = [cell for cell, below in cells if _are_numbers(below)]
    texts = [(cell, below) for cell, below in cells if not any(map(_is_number, below))]
    if all(map(_is_number, rows[0])):
        return False
    is_known = any(cell in below for cell, below in texts if cell)
    return not (numbers and is_known and all(map(_is_number, numbers)))


def _units(rows: list[list[str]]) -> list[tuple[int, str]]:
    """Return the places and cells of the row below the header that stand above numbers, if none is one: of units."""
    found = [(place, cell) for place, (cell, below) in enumerate(_above(rows[1:])) if cell and _are_numbers(below)]
    return found if len(found) > 1 and not any(_is_number(cell) or is_missing(cell) for _, cell in found) else []


def _above(rows: list[list[str]]) -> list[tuple[str, list[str]]]:
    """Return each cell of the first row, and the cells below it that are not empty."""
    columns = zip_longest(*rows[1:], fillvalue="")
    return [(cell, [*filter(None, below)]) for cell, below in zip(*rows[:1], columns, strict=False)]


def _are_numbers(cells: list[str]) -> bool:
    return sum(map(_is_number, cells)) > NUMBERS_SHARE * len(cells)


def _is_number(cell: str) -> bool:
    return parse_number(cell.strip()) is not None
