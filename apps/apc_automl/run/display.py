"""What a run shows while it goes on: a live table at a terminal, a line for each generation elsewhere."""

import sys
from collections.abc import AsyncIterator

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apc_automl.report.run_events import Event
from apc_automl.run.status import RunStatus
from apc_cli.for_applications import SafeConsole, echo

LIVES_A_SECOND = 4


async def show_run(events: AsyncIterator[Event], status: RunStatus, *, quiet: bool = False) -> None:
    """Show the run on stderr until its events end; with `quiet` only follow it."""
    if quiet:
        async for event in events:
            status.take(event)
    elif sys.stderr.isatty():
        await _show_live(events, status)
    else:
        await _show_lines(events, status)


async def _show_live(events: AsyncIterator[Event], status: RunStatus) -> None:
    console = SafeConsole(stderr=True)
    with Live(
        get_renderable=lambda: _picture(status),
        console=console,
        refresh_per_second=LIVES_A_SECOND,
        transient=True,
    ):
        async for event in events:
            status.take(event)
            line = status.notice(event)
            if line is not None:
                console.print(Text(line))


async def _show_lines(events: AsyncIterator[Event], status: RunStatus) -> None:
    async for event in events:
        status.take(event)
        line = status.notice(event) or status.line_of(event)
        if line is not None:
            echo(line, file=sys.stderr, flush=True)


def _picture(status: RunStatus) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(status.state, style="bold cyan"),
        ProgressBar(total=status.generations, completed=min(status.generation + 1, status.generations), width=16),
        Text(status.place),
        Text(status.time_left, style="dim"),
    )
    swarms = Table(box=None, header_style="dim")
    for name in ("swarm", "best so far", "outcome", "now", "method"):
        swarms.add_column(name, no_wrap=True, overflow="ellipsis")
    for swarm, event in sorted(status.last.items()):
        best = status.best[swarm]
        swarms.add_row(swarm, best.score, f"{best.outcome:.4f}", f"{event.outcome:.4f}", event.method)
    return Group(head, swarms)
