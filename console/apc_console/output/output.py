"""Print results: a Rich table at a terminal, JSON with `--json` or when the output is piped."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer

from apc_console.errors import InputUnusable
from apc_console.output.terminal import echo, standard_output
from apc_contracts.terminal_text import one_line, printable_json

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table (the default when piped).")]


def print_rows(rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool, empty: str) -> None:
    """Print rows of equal keys; at a terminal print `empty` when there are none."""
    if as_json or not sys.stdout.isatty():
        print_json(rows)
    elif rows:
        _print_table(rows, title)
    else:
        echo(empty)


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
    return orjson.dumps(value, option=options, default=_as_text)


def show(value: Any) -> str:
    """Return the text of one table cell."""
    match value:
        case None:
            return ""
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list() | tuple() | set() | frozenset():
            return ", ".join(sorted(map(show, value)) if isinstance(value, set | frozenset) else map(show, value))
        case dict():
            return orjson.dumps(value, default=_as_text).decode()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def opened(out: Path | None) -> Any:
    """Open a file to write bytes, creating its folder; standard output without one. Raises InputUnusable."""
    if out is None:
        return nullcontext[IO[bytes]](standard_output())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.open("wb")
    except OSError as error:
        raise InputUnusable(f"cannot write {out}: {error.strerror}") from error


def _print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from apc_console.output.safe_console import SafeConsole

    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(escape(show(value)) for value in row.values()))
    SafeConsole().print(table)


def _as_text(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case set() | frozenset():
            return sorted(value)
        case _:
            return str(value)
