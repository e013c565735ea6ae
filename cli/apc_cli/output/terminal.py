"""Write to the operator's terminal: output may quote agents, so nothing in it may act on the terminal."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedIOBase, BufferedWriter, FileIO, TextIOWrapper
from typing import IO, Any
from uuid import UUID

import orjson
import typer
from rich.table import Table
from rich.text import Text

from apc_cli.errors import InputUnusable, OutputLost
from apc_cli.output.safe_console import SafeConsole
from apc_contracts.errors import ApcError
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.text import one_line, printable, printable_json

# Print entries one below the other: a line of facts, and indented sentences that wrap with the terminal.

INDENT = 11
"""Columns before a sentence: as wide as a time and two spaces."""
_STYLES = {
    "accepted": "green",
    "held": "yellow",
    "retry": "yellow",
    "session": "bold cyan",
}
_BAD = "red"


class BlockPrinter:
    """Prints to the terminal; foreign text cannot act on it."""

    def __init__(self) -> None:
        self._console = SafeConsole(highlight=False)

    def print(self, at: datetime, what: str, facts: Sequence[str], sentences: Sequence[str] = ()) -> None:
        """Print a time, a coloured word and facts; then each sentence, indented."""
        line = Text(f"{what:<11} ", style=_STYLES.get(what, _BAD))
        line.append("  ".join(one_line(fact) for fact in facts if fact), style="default not bold")
        block = Table.grid(expand=True)
        block.add_column(width=INDENT, style="dim")
        block.add_column(overflow="fold", ratio=1)
        block.add_row(f"{at.astimezone(UTC):%H:%M:%S}Z", line)
        for sentence in filter(None, sentences):
            block.add_row("", Text(one_line(sentence)))
        self._console.print(block)


def refusal_sentences(
    code: str | None, field: str | None, reason: str | None, kind: str = "", refusal: Mapping[str, Any] | None = None
) -> list[str]:
    """Return why something was refused, with the field, what a team's rule says of it, and the remedy if there is one.

    `refusal` is the refusal's document, where there is one.
    """
    place = f"{field}: " if field and field != "$" else ""
    remedy = remedy_of(code or "", kind, refusal)
    return [f"{place}{reason or ''}", *rule_sentences(refusal), f"Remedy: {remedy}" if remedy else ""]


def rule_sentences(refusal: Mapping[str, Any] | None) -> list[str]:
    """Return the expression of a team's rule that refused, and each value that it read; nothing of other refusals."""
    refusal = refusal or {}
    asked = [f"{refusal['rule']} requires: {refusal['requires']}"] if refusal.get("requires") else []
    return [*asked, *(f"{reading} = {_value(value)}" for reading, value in (refusal.get("values") or {}).items())]


def own_sentences(refusal: Mapping[str, Any] | None) -> list[str]:
    """Return what `rule_sentences` does, and the refusal's own remedy if it has one."""
    remedy = (refusal or {}).get("remedy")
    return [*rule_sentences(refusal), *([f"Remedy: {remedy}"] if remedy else [])]


def _value(value: Any) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()


def place_of(packet_id: UUID | None, session_id: str | None) -> str:
    """Return the ids with which other commands find an entry."""
    given = {"packet": packet_id, "session": session_id}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


def ask_whether(what: str) -> None:
    """Ask the operator to confirm something that cannot be undone.

    Raises:
        InputUnusable: there is no terminal to ask, and no input with an answer.
        typer.Abort: the answer was no.
    """
    forget_typed()
    try:
        answer = typer.confirm(what)
    except typer.Abort:
        require_terminal()
        raise
    if not answer:
        raise typer.Abort


def require_terminal() -> None:
    """Raise InputUnusable when there is no terminal to ask at."""
    if not sys.stdin.isatty():
        raise InputUnusable("nobody can answer, there is no terminal: give --yes to go on without a question")


def forget_typed() -> None:
    """Forget what was typed at the terminal before a question: it is no answer to it. Pipes and files stay."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # where terminals work in another way
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)


def echo(*texts: object, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print like `print`, without anything that acts on a terminal; what standard error does not take is lost."""
    try:
        print(*(printable(str(text)) for text in texts), file=file, flush=flush)
    except OSError:
        if file is None or file is not sys.stderr:
            raise


class OutputFile(FileIO):
    """A file to write, whose errors are not mistaken for those of a database or a broker."""

    def __init__(self, file: str | int, failure: Callable[[str], ApcError]) -> None:
        """Open a path, or take a descriptor that stays open; `failure` makes the error of a reason."""
        super().__init__(file, "w", closefd=isinstance(file, str))
        self._failure = failure

    def write(self, data: Any) -> int:
        """Write bytes. Raises what `failure` makes."""
        try:
            return super().write(data)
        except OSError as error:
            raise self._failure(error.strerror or str(error)) from error


def guard_output() -> None:
    """Let standard output raise OutputLost where it takes no more; one that was replaced, as by a test, stays."""
    known = sys.stdout
    if known is sys.__stdout__ and isinstance(known, TextIOWrapper):
        sys.stdout = TextIOWrapper(
            BufferedWriter(OutputFile(known.fileno(), _lost)),
            encoding=known.encoding,
            errors=known.errors,
            line_buffering=known.line_buffering or known.write_through,
        )


def _lost(reason: str) -> OutputLost:
    return OutputLost(f"the output could not be written to its end: {reason}")


def give_up_output() -> None:
    """Let what is left of standard output go nowhere: the interpreter would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


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
