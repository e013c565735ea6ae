"""What a run shows while it goes on: a live table at a terminal, a line for each generation elsewhere."""

import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apc_automl.report.progress import Event, Measured, Offered, Synced, Validated
from apc_console.output.safe_console import SafeConsole
from apc_console.output.terminal import echo

LIVES_A_SECOND = 4


@dataclass(slots=True)
class RunStatus:
    """A run as far as it has come."""

    generations: int
    budget_seconds: int
    began: float = field(default_factory=time.monotonic)
    state: str = "starting"
    round: int = 1
    generation: int = 0
    last: dict[str, Measured] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    offered: int = 0
    validated: Validated | None = None

    def take(self, event: Event) -> None:
        """Bring it up to date."""
        match event:
            case Synced():
                self.state, self.round, self.generation = event.state, event.round, event.generation
            case Measured():
                self.last[event.swarm] = event
                self.best[event.swarm] = max(event.outcome, self.best.get(event.swarm, 0.0))
            case Offered():
                self.offered += 1
            case Validated():
                self.validated = event

    @property
    def line(self) -> str:
        """The run in one line."""
        best = "  ".join(f"{swarm} {outcome:.3f}" for swarm, outcome in sorted(self.best.items()))
        return (
            f"{time.monotonic() - self.began:5.1f} s  {self.state:<24} round {self.round}  "
            f"generation {self.generation}/{self.generations - 1}  {best}"
        )


async def show_run(events: AsyncIterator[Event], status: RunStatus) -> None:
    """Show the run until its events end."""
    if sys.stderr.isatty():
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


async def _show_lines(events: AsyncIterator[Event], status: RunStatus) -> None:
    async for event in events:
        status.take(event)
        if isinstance(event, Synced):
            echo(status.line, file=sys.stderr, flush=True)


def _picture(status: RunStatus) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    spent = time.monotonic() - status.began
    head.add_row(
        Text(status.state, style="bold cyan"),
        ProgressBar(total=status.generations, completed=min(status.generation + 1, status.generations), width=30),
        Text(f"generation {status.generation}/{status.generations - 1}, round {status.round}"),
        Text(f"{spent:.0f} s of {status.budget_seconds} s", style="dim"),
    )
    swarms = Table(box=None, header_style="dim")
    for name in ("swarm", "best outcome", "now", "method"):
        swarms.add_column(name, min_width=12)
    for swarm, event in sorted(status.last.items()):
        swarms.add_row(swarm, f"{status.best[swarm]:.4f}", f"{event.outcome:.4f}", event.method)
    return Group(head, swarms, Text(f"recipes offered to other swarms: {status.offered}", style="dim"))
