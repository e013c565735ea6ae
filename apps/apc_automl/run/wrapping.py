"""Lines for people, broken at words where the terminal ends."""

from shutil import get_terminal_size
from textwrap import fill

NARROWEST = 60
"""Columns of text, also at a narrower terminal."""


def wrapped(text: str, head: str = "", below: int | None = None) -> str:
    """Return text after its head, broken at words.

    Args:
        text: one line.
        head: what stands before it.
        below: where later lines begin; None = under the beginning of the text.
    """
    return fill(
        text,
        max(NARROWEST, get_terminal_size().columns),
        initial_indent=head,
        subsequent_indent=" " * (len(head) if below is None else below),
        break_long_words=False,
        break_on_hyphens=False,
    )
