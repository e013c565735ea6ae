"""Print entries one below the other: a line of facts, and indented sentences that wrap with the terminal."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from apc_console.output.safe_console import SafeConsole
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.text import one_line

INDENT = 10
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
        from rich.table import Table
        from rich.text import Text

        line = Text(f"{what:<11} ", style=_STYLES.get(what, _BAD))
        line.append("  ".join(one_line(fact) for fact in facts if fact), style="default not bold")
        block = Table.grid(expand=True)
        block.add_column(width=INDENT, style="dim")
        block.add_column(overflow="fold", ratio=1)
        block.add_row(f"{at.astimezone(UTC):%H:%M:%S}", line)
        for sentence in filter(None, sentences):
            block.add_row("", Text(one_line(sentence)))
        self._console.print(block)


def refusal_sentences(code: str | None, field: str | None, reason: str | None, kind: str = "") -> list[str]:
    """Return why something was refused, with the field, and the remedy of the code or kind if there is one."""
    place = f"{field}: " if field and field != "$" else ""
    remedy = remedy_of(code or "", kind)
    return [f"{place}{reason or ''}", f"Remedy: {remedy}" if remedy else ""]


def place_of(packet_id: UUID | None, session_id: str | None) -> str:
    """Return the ids with which other commands find an entry."""
    given = {"packet": packet_id, "session": session_id}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
