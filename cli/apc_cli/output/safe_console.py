"""A Rich console for text that may be foreign."""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from apc_contracts.text import printable

_PADDING = re.compile(" +\n")


class SafeConsole(Console):
    """A console whose texts contain no control characters; Rich's own styles and cursor movements stay.

    No line ends with spaces. With NO_COLOR nothing is bold or dim either.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"color_system": None} if os.environ.get("NO_COLOR") else {}
        super().__init__(**options | plain)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments, each with a printable text."""
        return _without_padding(self._printable(renderable, options))

    def _printable(self, renderable: RenderableType, options: ConsoleOptions | None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _without_padding(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield segments without the spaces before the end of a line."""
    spaces: list[Segment] = []
    for segment in segments:
        text = segment.text if segment.control else _PADDING.sub("\n", segment.text)
        if text.startswith("\n"):
            spaces.clear()
        kept = text if segment.control else text.rstrip(" ")
        if segment.control or kept:
            yield from spaces
            spaces.clear()
            yield Segment(kept, segment.style, segment.control)
        if len(kept) < len(text):
            spaces.append(Segment(text[len(kept) :], segment.style))
    yield from spaces
