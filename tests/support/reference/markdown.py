"""Markdown tables."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [_row(header), "|" + "---|" * len(header)]
    return "\n".join([*lines, *(_row(row) for row in rows)])


def code(text: object) -> str:
    """Return the text as code, or nothing for an empty text."""
    return f"`{text}`" if str(text) else ""


def one_line(text: str | None) -> str:
    """Return the text with its line breaks and runs of spaces as single spaces."""
    return " ".join((text or "").split())


def _row(cells: Sequence[object]) -> str:
    return "|" + "|".join(f" {_escaped(str(cell))} " if str(cell) else " " for cell in cells) + "|"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
