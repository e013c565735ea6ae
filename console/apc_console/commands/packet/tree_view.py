"""`apc packet tree`: a causal tree as text, JSON, Graphviz or Mermaid."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json
from apc_console.output.terminal import echo
from apc_contracts.text import numbered
from apc_log.queries import PacketTree, TreeRow, get_packet_tree


async def print_tree(
    packet_id: UUID, session_id: str | None, limit: int, *, dot: bool, mermaid: bool, as_json: bool
) -> None:
    """Print what a packet has caused. Raises InputUnusable when the log does not hold it, or for two forms at once."""
    if dot and mermaid:
        raise InputUnusable("--dot and --mermaid are two forms: choose one")
    async with open_log() as pool:
        tree = await get_packet_tree(pool, packet_id, session_id=session_id, limit=limit)
    if tree is None:
        raise InputUnusable(f"the log holds no packet {packet_id}")
    if dot or mermaid:
        echo("\n".join(dot_lines(tree.rows) if dot else mermaid_lines(tree.rows)))
    elif as_json or not sys.stdout.isatty():
        print_json({"packets": [asdict(row) for row in tree.rows], "is_cut": tree.is_cut})
    else:
        _print(tree)
    if tree.is_cut:
        echo(f"there is more: {numbered(limit, 'packet was', 'packets were')} printed (--limit)", file=sys.stderr)


def dot_lines(rows: Sequence[TreeRow]) -> Iterator[str]:
    """Yield a Graphviz digraph.

    Ids and names of agents consist of letters, digits and `._:-`: nothing in them ends a string.
    """
    yield "digraph packets {"
    yield "  rankdir=LR; node [shape=box, fontname=monospace];"
    for row in rows:
        yield f'  "{row.packet_id}" [label="{_label(row, chr(92) + "n")}"];'
    for row in rows:
        if row.above is not None:
            style = "" if row.edge == "cause" else " [style=dashed]"
            yield f'  "{row.above}" -> "{row.packet_id}"{style};'
    yield "}"


def mermaid_lines(rows: Sequence[TreeRow]) -> Iterator[str]:
    """Yield a Mermaid flowchart; dotted arrows lead to packets that name a parent only."""
    names = {row.packet_id: f"p{number}" for number, row in enumerate(rows)}
    yield "flowchart LR"
    for row in rows:
        yield f'  {names[row.packet_id]}["{_label(row, "<br/>")}"]'
    for row in rows:
        if row.above is not None:
            arrow = "-->" if row.edge == "cause" else "-.->"
            yield f"  {names[row.above]} {arrow} {names[row.packet_id]}"


def _label(row: TreeRow, line_break: str) -> str:
    verdict = row.refusal_code or row.verdict
    parts = (row.packet_type, f"{row.sender_agent_id} g{row.generation}", verdict, str(row.packet_id)[:8])
    return line_break.join(parts)


def _print(tree: PacketTree) -> None:
    from rich.tree import Tree

    from apc_console.output.safe_console import SafeConsole

    branches: dict[UUID, Any] = {}
    for row in tree.rows:
        line = _line(row)
        branches[row.packet_id] = Tree(line) if row.above is None else branches[row.above].add(line)
    SafeConsole().print(branches[tree.rows[0].packet_id])


def _line(row: TreeRow) -> Any:
    from rich.text import Text

    style = {"accepted": "green", "refused": "red", "held": "yellow"}[row.verdict]
    text = Text(f"{row.packet_type} ", style="bold")
    text.append(f"{row.sender_agent_id} → {', '.join(row.recipients) or '-'} ", style="default")
    text.append(row.refusal_code or row.verdict, style=style)
    text.append(f"  {row.run_phase} g{row.generation}  {row.packet_id}", style="dim")
    return text
