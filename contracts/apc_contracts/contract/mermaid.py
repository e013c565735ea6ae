"""State machines as Mermaid state diagrams."""

from collections.abc import Iterable
from typing import NamedTuple

ANY_STATE = "ANY"


class Arrow(NamedTuple):
    """One drawn transition; source `*` is any state."""

    source: str
    event: str
    target: str
    guard: str | None = None


def state_diagram(initial: str, terminal: Iterable[str], arrows: Iterable[Arrow]) -> str:
    """Return a `stateDiagram-v2`; transitions from `*` start at one state named "any state"."""
    drawn = list(arrows)
    lines = ["stateDiagram-v2"]
    if any(arrow.source == "*" for arrow in drawn):
        lines.append(f'    state "any state" as {ANY_STATE}')
    lines.append(f"    [*] --> {initial}")
    lines += [_line(arrow) for arrow in drawn]
    lines += [f"    {state} --> [*]" for state in terminal]
    return "\n".join(lines) + "\n"


def _line(arrow: Arrow) -> str:
    source = ANY_STATE if arrow.source == "*" else arrow.source
    # Mermaid ends a label at a semicolon and starts markup at a hash.
    guard = f" [{arrow.guard}]".replace("#", "").replace(";", ",") if arrow.guard else ""
    return f"    {source} --> {arrow.target} : {arrow.event}{guard}"
