"""A Rich console for text that may be foreign."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from apc_contracts.text import printable


class SafeConsole(Console):
    """A console whose texts contain no control characters; Rich's own styles and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments, each with a printable text."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
