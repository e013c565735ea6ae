"""Print results: a Rich table at a terminal, with whole ids; JSON with `--json` or when the output is piped."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from shutil import which
from typing import IO, Annotated, Any

import orjson
import typer
from pydantic import ValidationError
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from apc_bus.settings import all_settings, variable_of
from apc_cli.errors import InputUnusable
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import OutputFile, echo, standard_output
from apc_contracts.text import one_line, printable, printable_json

# Turn an unusable setting into one sentence.


def sentence_of(error: ValidationError) -> str:
    """Name the variable and what is wrong with its value. Re-raises errors that are not about settings."""
    kind = next((kind for kind in all_settings() if kind.__name__ == error.title), None)
    if kind is None:
        raise error
    first = error.errors(include_url=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = variable_of(kind, ".".join(map(str, first["loc"])))
    return f"{name} {message}" if message.startswith("must ") else f"{name}: {message}"


def program() -> str:
    """Return `apc`, or its path if the shell would not find it (`make demo` uses an environment that is not active)."""
    path = sys.argv[0]
    if which("apc") is not None or Path(path).name != "apc":
        return "apc"
    return shlex.quote(os.path.relpath(path))


WithUi = Annotated[bool, typer.Option("--ui", help="Serve the web console beside it, until Ctrl-C.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table (the default when piped).")]


def wants_json(as_json: bool) -> bool:
    """Return whether a command prints JSON: it was asked for, or nobody looks at the output."""
    return as_json or not sys.stdout.isatty()


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str,
    as_json: bool,
    empty: str,
    least: Sequence[str] = (),
    weight: Sequence[str] = (),
    document: Any = None,
) -> None:
    """Print rows of equal keys; at a terminal print `empty` when there are none.

    A narrow terminal gets fewer columns, without those in `least` first. With `weight`, the columns from the weightiest
    on, each row is one line. JSON has `document`, where it is more than the rows.
    """
    if wants_json(as_json):
        print_json(rows if document is None else document)
    elif not rows:
        echo(empty)
    elif weight:
        print_lines(SafeConsole(), rows, title, weight)
    else:
        print_table(SafeConsole(), rows, title, least)


def tell(remarks: Sequence[str]) -> None:
    """Print on stderr what an operator should know beside the result."""
    for remark in remarks:
        echo(f"apc: {one_line(remark)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print JSON, formatted by `to_json`."""
    echo(printable_json(to_json(value).decode()))


def to_json(value: Any) -> bytes:
    """Return indented JSON with times in UTC; bytes become hex, unknown types text."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=options, default=as_text)


def opened(out: Path | None) -> Any:
    """Open a file to write bytes, creating its folder; standard output without one. Raises InputUnusable."""
    if out is None:
        return nullcontext[IO[bytes]](standard_output())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return BufferedWriter(OutputFile(str(out), lambda reason: InputUnusable(f"cannot write {out}: {reason}")))
    except OSError as error:
        raise InputUnusable(f"cannot write {out}: {error.strerror}") from error


# The text of one value in a table.


def show(value: Any) -> str:
    """Return the text of one table cell."""
    match value:
        case None:
            return ""
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"
        case bool():
            return "yes" if value else "no"
        case float():
            return str(whole) if isinstance(whole := number(value), int) else f"{value:.6g}"
        case list() | tuple() | set() | frozenset():
            return ", ".join(sorted(map(show, value)) if isinstance(value, set | frozenset) else map(show, value))
        case dict():
            return orjson.dumps(value, default=as_text).decode()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def number(value: float) -> int | float:
    """Return a count as people write it, 2000 and not 2000.0; what is no whole number stays."""
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_EXACT = 2.0**53


def as_text(value: Any) -> Any:
    """Return a value that JSON does not know as text, a set as a list."""
    match value:
        case bytes():
            return value.hex()
        case set() | frozenset():
            return sorted(value)
        case _:
            return str(value)


GAP = 2
"""Columns between two cells."""
LONGEST_WORD, LONGEST_WHERE_NARROW = 40, 20
"""A longer word may be broken, unless it stands in the first column or is an id; the second, before a column goes."""

_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Cells = Mapping[str, Sequence[str]]
"""Column -> its cells, from the first row to the last."""


def print_table(console: SafeConsole, rows: Sequence[Mapping[str, Any]], title: str, least: Sequence[str] = ()) -> None:
    """Print rows of equal keys as a table, without the columns for which the terminal is too narrow.

    Empty columns go first, then those that repeat an earlier one, those in `least`, and the last ones. Where fewer
    than a third would stay, and for one row that does not fit on a line, each row is printed as a record: a line for
    each value.
    """
    console.print(Text(title, style="italic"))
    if not rows:
        return
    cells = {name: [printable(_cell(row[name])) for row in rows] for name in rows[0]}
    kept = _fitting(cells, console.width, least)
    is_broken = len(kept) < len(cells) or sum(_wanted(cells)) + GAP * (len(cells) - 1) > console.width
    if (is_broken and len(rows) == 1) or 3 * len(kept) < len(cells):
        _print_records(console, cells, len(rows))
        return
    _print_columns(console, kept)
    left_out = [_heading(name) for name in cells if name not in kept]
    _name_left_out(console, left_out)


def _name_left_out(console: SafeConsole, names: Sequence[str]) -> None:
    if names:
        console.print(Text(f"left out: {', '.join(names)} (a wider terminal or --json shows them)", style="dim"))


def _fitting(cells: Cells, width: int, least: Sequence[str]) -> Cells:
    """Return the columns that fit, in their order."""
    if _total(cells, LONGEST_WHERE_NARROW) <= width:
        return cells
    kept = dict(cells)
    for name in _dispensable(cells, least):
        if _total(kept, LONGEST_WORD) <= width:
            break
        del kept[name]
    return kept


def _dispensable(cells: Cells, least: Sequence[str]) -> list[str]:
    """Return the columns in the order in which they can be left out; the first column always stays."""
    names = list(cells)
    empty = [name for name in names[1:] if not any(cells[name])]
    repeated = [
        name
        for place, name in enumerate(names)
        if name not in empty and cells[name] in [cells[earlier] for earlier in names[:place]]
    ]
    known = dict.fromkeys([*empty, *repeated, *(name for name in least if name in cells)])
    return list(known | dict.fromkeys(reversed(names[1:])))


def _print_columns(console: SafeConsole, cells: Cells) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name, width in zip(cells, _widths(cells, console.width), strict=True):
        table.add_column(_heading(name), width=width, overflow="fold")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    console.print(table)


def _print_records(console: SafeConsole, cells: Cells, count: int) -> None:
    names = [_heading(name) for name in cells]
    for number in range(count):
        record = Table.grid(padding=(0, GAP, 0, 0))
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, texts in zip(names, cells.values(), strict=True):
            record.add_row(name, Text(texts[number]))
        if number:
            console.print()
        console.print(record)


def _widths(cells: Cells, width: int) -> list[int]:
    """Return the width of each column: what its words need, and of the rest what its longest line needs."""
    longest = LONGEST_WORD if _total(cells, LONGEST_WORD) <= width else LONGEST_WHERE_NARROW
    widths = _narrowest(cells, longest)
    rest = max(0, width - _total(cells, longest))
    wanted = _wanted(cells)
    while rest and (short := [place for place, one in enumerate(widths) if one < wanted[place]]):
        for place in short[:rest]:
            widths[place] += 1
        rest -= len(short[:rest])
    return widths


def _wanted(cells: Cells) -> list[int]:
    """Return how wide each column is when no line of its cells is broken."""
    return [
        max(cell_len(line) for text in (_heading(name), *texts) for line in text.split("\n"))
        for name, texts in cells.items()
    ]


def _total(cells: Cells, longest: int) -> int:
    """Return how wide the table must be."""
    return sum(_narrowest(cells, longest)) + GAP * (len(cells) - 1)


def _narrowest(cells: Cells, longest: int) -> list[int]:
    """Return how wide each column must be, when words over `longest` columns may be broken that are no ids."""
    return [
        max(_of_words(texts, None if place == 0 or name.endswith(("id", "ids")) else longest), _of_heading(name))
        for place, (name, texts) in enumerate(cells.items())
    ]


def _of_words(texts: Sequence[str], longest: int | None) -> int:
    words = [word for text in texts for word in text.split()]
    return max((_of_word(word, longest) for word in words), default=0)


def _of_word(word: str, longest: int | None) -> int:
    width = cell_len(word)
    return width if longest is None or _UUID.search(word) else min(width, longest)


def _of_heading(name: str) -> int:
    return max(map(len, _heading(name).split()))


def _heading(name: str) -> str:
    return name.replace("_", " ").removeprefix("is ")


def _cell(value: Any) -> str:
    """Return the text of a cell; the members of an object are words, so that they wrap."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(one) if isinstance(one, dict) else show(one)}" for name, one in value.items())
    return show(value)


# Print a list: each row is one line at any width, with its weightiest columns.

SHORTEST_TEXT, SHORT_TEXT, SHORT_ID = 12, 40, 13
"""Where it is narrow: what is left of a longer text, what it gets before times and ids are whole, an id's end."""
_TO_MINUTES, _TO_SECONDS = len("2026-11-27 04:41Z"), len("2026-11-27 04:41:41Z")
_ID = re.compile(f"(sha256:)?[0-9a-f]{{64}}|{_UUID.pattern}")


@dataclass(slots=True)
class _Column:
    """A column of a list: how wide its whole cells are, and how wide it is shown."""

    name: str
    cells: Sequence[str]
    whole: int
    width: int
    is_id: bool = False
    is_time: bool = False

    def widen(self, to: int, rest: int) -> int:
        """Widen it, if `rest` terminal columns allow; return what is left of them."""
        more = min(to, self.whole) - self.width
        if not 0 < more <= rest:
            return rest
        self.width += more
        return rest - more


def print_lines(console: SafeConsole, rows: Sequence[Mapping[str, Any]], title: str, weight: Sequence[str]) -> None:
    """Print rows of equal keys, one line each: without empty columns, and without the lightest where it is narrow.

    A text is cut at its end. Of an id the end is kept, for many begin alike; it is whole in the weightiest column. A
    time is cut to the minute. Columns that are not in `weight` are the lightest.
    """
    columns = [_column(name, [row[name] for row in rows]) for name in dict.fromkeys((*weight, *rows[0]))]
    columns = [column for column in columns if any(column.cells)]
    if columns[0].is_id:
        columns[0].width = columns[0].whole
    kept = list(columns)
    while len(kept) > 1 and _rest(kept, console.width) < 0:
        kept.pop()
    _widen(kept, _rest(kept, console.width))
    shown = sorted(kept, key=lambda column: list(rows[0]).index(column.name))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(Text(_heading(column.name), no_wrap=False), width=column.width, no_wrap=True)
    for row in zip(*map(_shortened, shown), strict=True):
        table.add_row(*row)
    console.print(Text(title, style="italic"))
    console.print(table)
    _name_left_out(console, [_heading(column.name) for column in columns[len(kept) :]])


def _column(name: str, values: Sequence[Any]) -> _Column:
    cells = [one_line(_cell(value)) for value in values]
    heading = _of_heading(name)
    whole = max(heading, *map(cell_len, cells))
    if all(isinstance(value, datetime | None) for value in values):
        return _Column(name, cells, whole, max(heading, _TO_MINUTES), is_time=True)
    if all(_ID.fullmatch(cell) for cell in cells if cell):
        return _Column(name, cells, whole, max(heading, SHORT_ID), is_id=True)
    return _Column(name, cells, whole, min(whole, max(heading, SHORTEST_TEXT)))


def _rest(columns: Sequence[_Column], width: int) -> int:
    return width - sum(column.width for column in columns) - GAP * (len(columns) - 1)


def _widen(columns: Sequence[_Column], rest: int) -> None:
    """Share out what is left of the line: to texts first, then to times and ids, which grow at once, then to texts."""
    texts = [column for column in columns if not (column.is_id or column.is_time)]
    rest = _widen_evenly(texts, SHORT_TEXT, rest)
    for to in (_TO_SECONDS, sys.maxsize):
        for column in columns:
            if column.is_time or (column.is_id and to == sys.maxsize):
                rest = column.widen(to, rest)
    _widen_evenly(texts, sys.maxsize, rest)


def _widen_evenly(columns: Sequence[_Column], to: int, rest: int) -> int:
    before = -1
    while before != rest:
        before = rest
        for column in columns:
            rest = column.widen(min(column.width + 1, to), rest)
    return rest


def _shortened(column: _Column) -> list[Text]:
    return [_cut(column, cell) for cell in column.cells]


def _cut(column: _Column, cell: str) -> Text:
    if column.is_time and cell:
        return Text(cell if column.width >= len(cell) else f"{cell[: min(column.width, _TO_SECONDS) - 1]}Z")
    if column.is_id and len(cell) > column.width:
        return Text(f"…{cell[1 - column.width :]}")
    text = Text(cell)
    text.truncate(column.width, overflow="ellipsis")
    return text
