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
class Standing:
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


async def show_run(events: AsyncIterator[Event], standing: Standing) -> None:
    """Show the run until its events end."""
    if sys.stderr.isatty():
        await _show_live(events, standing)
    else:
        await _show_lines(events, standing)


async def _show_live(events: AsyncIterator[Event], standing: Standing) -> None:
    console = SafeConsole(stderr=True)
    with Live(
        get_renderable=lambda: _picture(standing),
        console=console,
        refresh_per_second=LIVES_A_SECOND,
        transient=True,
    ):
        async for event in events:
            standing.take(event)


async def _show_lines(events: AsyncIterator[Event], standing: Standing) -> None:
    async for event in events:
        standing.take(event)
        if isinstance(event, Synced):
            echo(standing.line, file=sys.stderr, flush=True)


def _picture(standing: Standing) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    spent = time.monotonic() - standing.began
    head.add_row(
        Text(standing.state, style="bold cyan"),
        ProgressBar(total=standing.generations, completed=min(standing.generation + 1, standing.generations), width=30),
        Text(f"generation {standing.generation}/{standing.generations - 1}, round {standing.round}"),
        Text(f"{spent:.0f} s of {standing.budget_seconds} s", style="dim"),
    )
    swarms = Table(box=None, header_style="dim")
    for name in ("swarm", "best outcome", "now", "method"):
        swarms.add_column(name, min_width=12)
    for swarm, event in sorted(standing.last.items()):
        swarms.add_row(swarm, f"{standing.best[swarm]:.4f}", f"{event.outcome:.4f}", event.method)
    return Group(head, swarms, Text(f"recipes offered to other swarms: {standing.offered}", style="dim"))
