"""A run as far as it has come: its best model, the time left, and each event in words."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from shutil import get_terminal_size
from textwrap import fill

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apc_automl.report.run_events import Event, ModelMeasured, RefusalTold, Synced, TransferRuled, Validated
from apc_automl.swarm.members import CONVERGENCE, WORKING_STATES
from apc_cli.for_applications import SafeConsole, echo

MEANINGS = {
    "DIFFERENTIATED_RESEARCH": "each swarm gets its brief and makes a plan",
    "INDEPENDENT_DISCOVERY": "each swarm searches by itself",
    "SELECTIVE_TRANSFER": "good methods may go to other swarms",
    CONVERGENCE: "nothing new, the best is tuned",
    "ARBITRATION": "the search is over",
    "EXECUTION": "the winner is trained on all but the untouched rows",
    "VALIDATION": "it is judged on untouched rows",
    "PROMOTION": "it has passed; its recipe is trained on every row",
}


@dataclass(slots=True)
class RunStatus:
    """A run as far as it has come."""

    generations: int
    budget_seconds: int
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    state: str = "starting"
    round: int = 1
    generation: int = 0
    last: dict[str, ModelMeasured] = field(default_factory=dict)
    best: dict[str, ModelMeasured] = field(default_factory=dict)
    worked_since: float | None = None
    """When the first generation of this round began."""
    validated: Validated | None = None
    _told: tuple[int, str] | None = None
    """The round and state of the last line."""

    def __post_init__(self) -> None:
        self.began = self.clock()

    def take(self, event: Event) -> None:
        """Bring it up to date."""
        match event:
            case Synced():
                if event.round != self.round or event.state not in WORKING_STATES:
                    self.worked_since = None
                if event.state in WORKING_STATES and self.worked_since is None:
                    self.worked_since = self.clock()
                self.state, self.round, self.generation = event.state, event.round, event.generation
            case ModelMeasured():
                self.last[event.swarm] = event
                known = self.best.get(event.swarm)
                if known is None or event.outcome > known.outcome:
                    self.best[event.swarm] = event
            case Validated():
                self.validated = event

    @property
    def seconds_left(self) -> float | None:
        """How long the search goes on at most; None when it does not search.

        At the pace of the generations so far, and not beyond the search time.
        """
        if self.state not in (*WORKING_STATES, "starting"):
            return None
        now = self.clock()
        left = max(0.0, self.budget_seconds - (now - self.began))
        if self.worked_since is None or self.generation == 0:
            return left
        pace = (now - self.worked_since) / self.generation
        return min(left, pace * max(0, self.generations - self.generation))

    @property
    def time_left(self) -> str:
        """The time left in words."""
        left = self.seconds_left
        if left is None and not self.best:
            return "the search has not begun"
        return "the search is over" if left is None else f"about {left:.0f} s left"

    @property
    def place(self) -> str:
        """Which generation this is, and in a later round which round."""
        later = f", round {self.round}" if self.round > 1 else ""
        return f"generation {self.generation}/{self.generations - 1}{later}"

    @property
    def best_words(self) -> str:
        """The best model so far, in a unit that people know."""
        best = max(self.best.values(), key=lambda one: one.outcome, default=None)
        if best is None:
            return "no model yet"
        return f"best {best.score or f'outcome {best.outcome:.3f}'} ({best.swarm})"

    def line_of(self, event: Event) -> str | None:
        """Return the run in one line after a generation or state has begun; None after other events."""
        if not isinstance(event, Synced):
            return None
        stamp = f"{self.clock() - self.began:5.1f} s  "
        if (self.round, self.state) == self._told:
            return f"{stamp}  {self.place}: {self.best_words}, {self.time_left}"
        self._told = (self.round, self.state)
        return f"{stamp}{self._state_words}"

    @property
    def _state_words(self) -> str:
        meaning = MEANINGS.get(self.state)
        words = f"{self.state}: {meaning}" if meaning else self.state
        if self.state in WORKING_STATES:
            return f"{words}, {self.time_left}"
        return f"{words}; {self.best_words}" if self.state == "ARBITRATION" else words

    def notice(self, event: Event) -> str | None:
        """Return a line on a transfer, a refusal or a verdict; None for an event that the display shows anyway."""
        match event:
            case TransferRuled(record):
                move = f"transfer {record.from_swarm} -> {record.to_swarm}, generation {record.generation}"
                return f"{move}: {'accepted' if record.is_accepted else f'refused, {record.reason}'}"
            case RefusalTold():
                return f"refused: {event.packet_type} of {event.sender}, {event.code}: {event.message}"
            case Validated():
                verdict = "passed the gate" if event.passed else "failed the gate"
                return (
                    f"round {event.round}: the final model {verdict} on untouched rows ({event.score or event.outcome})"
                )
        return None


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
