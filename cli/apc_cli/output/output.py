"""Print results: a Rich table at a terminal, JSON with `--json` or when the output is piped."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer
from pydantic import ValidationError

from apc_bus.settings import all_settings, variable_of
from apc_cli.errors import InputUnusable
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.tables import as_text, print_table
from apc_cli.output.terminal import echo, standard_output
from apc_contracts.text import one_line, printable_json

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
    document: Any = None,
) -> None:
    """Print rows of equal keys; at a terminal print `empty` when there are none.

    A narrow terminal gets fewer columns, without those in `least` first. JSON has `document`, where it is more than the
    rows.
    """
    if wants_json(as_json):
        print_json(rows if document is None else document)
    elif rows:
        print_table(SafeConsole(), rows, title, least)
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
    return orjson.dumps(value, option=options, default=as_text)


def opened(out: Path | None) -> Any:
    """Open a file to write bytes, creating its folder; standard output without one. Raises InputUnusable."""
    if out is None:
        return nullcontext[IO[bytes]](standard_output())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.open("wb")
    except OSError as error:
        raise InputUnusable(f"cannot write {out}: {error.strerror}") from error
