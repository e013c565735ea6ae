"""Write to the operator's terminal: output may quote agents, so nothing in it may act on the terminal."""

import sys
from io import BufferedIOBase
from typing import IO, Any

import typer

from apc_console.errors import InputUnusable
from apc_contracts.text import printable, printable_json


def ask_whether(what: str) -> None:
    """Ask the operator to confirm something that cannot be undone.

    Raises:
        InputUnusable: there is no terminal to ask.
        typer.Abort: the answer was no.
    """
    try:
        answer = typer.confirm(what)
    except typer.Abort as error:
        if sys.stdin.isatty():
            raise
        raise InputUnusable(
            "nobody can answer, there is no terminal: give --yes to go on without a question"
        ) from error
    if not answer:
        raise typer.Abort


def echo(*texts: object, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print like `print`, without anything that acts on a terminal."""
    print(*(printable(str(text)) for text in texts), file=file, flush=flush)


class TerminalBytes(BufferedIOBase):
    """Standard output for JSON bytes at a terminal. Each write must end at a character boundary."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write JSON in which no character acts on the terminal."""
        sys.stdout.write(printable_json(bytes(data).decode()))
        return len(data)

    def flush(self) -> None:
        """Flush the standard output."""
        sys.stdout.flush()


def standard_output() -> Any:
    """Return the stream for JSON bytes: standard output, made harmless where it is a terminal."""
    return TerminalBytes() if sys.stdout.isatty() else sys.stdout.buffer
