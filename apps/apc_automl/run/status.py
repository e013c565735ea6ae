"""A run in words: its best model, the time left and each event while it goes on; at the end what was found."""

import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apc_automl.report.outcome import Judged, Outcome, scores_of, worth_of
from apc_automl.report.run_log import Event, ModelMeasured, RefusalTold, Synced, TransferRuled, Validated
from apc_automl.run.form import RunForm
from apc_automl.swarm.briefs import CONVERGENCE, WORKING_STATES
from apc_bus.settings import BusSettings
from apc_cli.for_applications import SafeConsole, echo, print_json, program, to_json, write_bytes

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


SUMMARY_FILE = "summary.json"

TOLD_AGAIN = re.compile("^the search looks at|^warning:|stay together|judged on the latest")
"""What the summary says of the table: what the figures above it depend on."""


def print_summary(outcome: Outcome, form: RunForm | None = None, *, as_json: bool = False) -> None:
    """Print the summary and write it beside the report as JSON; with the form also how to repeat the run."""
    going_on = None if form is None or outcome.is_promoted else go_on_command(outcome.run_id, form)
    facts = _facts(outcome) | {"repeat": _repeat(outcome, form), "go_on": going_on}
    write_bytes(outcome.report_file.with_name(SUMMARY_FILE), to_json(facts) + b"\n")
    if as_json:
        print_json(facts)
        return
    echo("\n".join([*_verdict(outcome), *_details(outcome), *_commands(outcome, form), *_to_try(outcome, form)]))


def refusal_of(outcome: Outcome) -> str:
    """Return one line on a run without a promoted model."""
    if outcome.candidate_file is None:
        return "no model is better than the trivial baseline, so none was saved"
    return f"the promotion gate refused the best candidate; it is saved as {outcome.candidate_file}"


def replay_command(run_id: str) -> str:
    """Return the command that shows the run, to be typed as it stands."""
    return f"{_data_dir()}{program()} packet replay --run-id {run_id}"


def go_on_command(run_id: str, form: RunForm) -> str:
    """Return the command that goes on from this run, to be typed as it stands."""
    return f"{_data_dir()}{program()} {form.going_on(run_id)}"


def _verdict(outcome: Outcome) -> list[str]:
    judged = outcome.judged
    if outcome.is_promoted and judged is not None:
        return [f"Promoted: {judged.recipe.family} of swarm {judged.swarm}.", *_scores(outcome, judged)]
    scores = [] if judged is None else _scores(outcome, judged)
    if outcome.candidate_file is None:
        return [f"No model is better than the trivial baseline ({outcome.reason}).", *scores]
    reasons = outcome.failures or (f"it was not judged: {outcome.reason}",)
    return ["The gate refused the best candidate.", *scores, *(wrapped(reason, "  - ") for reason in reasons)]


def _scores(outcome: Outcome, judged: Judged) -> list[str]:
    """Return the figures of the model, beside those of others on the same rows."""
    found = scores_of(outcome) or [("this model", judged.score, judged.loss)]
    name, score = max(len(who) for who, _, _ in found), max(len(words) for _, words, _ in found)
    rows = [f"  {who:<{name}}  {words:<{score}}{_loss(judged, loss)}".rstrip() for who, words, loss in found]
    outcome_words = f"{judged.outcome:.4f} (0 = no better than guessing, 1 = no error)"
    worth = worth_of(outcome)
    return [
        f"On {judged.rows} untouched rows, which the search has not seen:",
        *rows,
        f"Outcome:    {outcome_words}",
        *([wrapped(worth, "Worth it?   ")] if worth else []),
    ]


def _loss(judged: Judged, loss: float | None) -> str:
    return "" if loss is None else f"  {judged.loss_name} {loss:.4f}"


def _details(outcome: Outcome) -> list[str]:
    refused = outcome.refused_transfers
    reasons = f" ({', '.join(f'{code} {count}' for code, count in refused.items())})" if refused else ""
    sizes = outcome.facts[1:2]
    notes = [fact for fact in outcome.facts if TOLD_AGAIN.search(fact)]
    lines = [
        *(wrapped(fact, "Rows:       ") for fact in sizes),
        *(wrapped(note, "            ") for note in notes),
        f"Transfers:  {outcome.transfers_accepted} accepted, {sum(refused.values())} refused{reasons}",
        f"Packets:    {outcome.packets_logged} in the log, {outcome.packets_refused} of them refused",
    ]
    if outcome.model_file is not None:
        lines.append(f"Model:      {outcome.model_file}")
    if outcome.all_rows_file is not None:
        lines.append(f"All rows:   {outcome.all_rows_file} (trained on every row, never scored)")
    if outcome.candidate_file is not None:
        lines.append(f"Candidate:  {outcome.candidate_file}")
    return [*lines, f"Report:     {outcome.report_file}"]


def _to_try(outcome: Outcome, form: RunForm | None) -> list[str]:
    """Return what to do with the run: see it, use its model, read its log."""
    lines = [f"  see it in the browser: {_data_dir()}{program()} ui --run {outcome.run_id}"]
    if outcome.model_file is not None:
        data = "NEW.csv" if form is None else str(form.data or form.sample(BusSettings().data_dir))
        folder, target = outcome.model_file.parent, outcome.model_file.with_name("predictions.csv")
        words = ["automl", "predict", "--model", str(folder), "--data", data, "--out", str(target)]
        lines.append(f"  predict new rows:      {program()} {shlex.join(words)}")
    replay = replay_command(outcome.run_id)
    return ["Try next:", *lines, f"  read every step:       {replay}", f"  check every verdict:   {replay} --verify"]


def _commands(outcome: Outcome, form: RunForm | None) -> list[str]:
    """Return how to repeat the run, and how to go on where it was refused."""
    if form is None:
        return []
    lines = []
    repeat = _repeat(outcome, form)
    if repeat is not None:
        lines.append(f"Repeat:     {_data_dir()}{program()} {repeat}")
    if not outcome.is_promoted:
        lines.append(f"Go on:      {go_on_command(outcome.run_id, form)}  (begins with what worked in this run)")
    return lines


def _repeat(outcome: Outcome, form: RunForm | None) -> str | None:
    if form is None or not outcome.repeat:
        return None
    sizes = (*outcome.repeat, "--maximum-rows", str(form.row_limit))
    return form.command(*sizes, used_priors=outcome.used_priors)


def _data_dir() -> str:
    given = os.environ.get("APC_DATA_DIR")
    return f"APC_DATA_DIR={shlex.quote(given)} " if given else ""


def _facts(outcome: Outcome) -> dict[str, Any]:
    judged = outcome.judged
    return {
        "run_id": outcome.run_id,
        "state": outcome.state,
        "is_promoted": outcome.is_promoted,
        "reason": outcome.reason,
        "failed_gates": outcome.failed_gates,
        "failures": outcome.failures,
        "model_file": _path(outcome.model_file),
        "candidate_file": _path(outcome.candidate_file),
        "all_rows_file": _path(outcome.all_rows_file),
        "data": outcome.facts,
        "model_hash": judged.model_hash if judged else None,
        "report_file": _path(outcome.report_file),
        "swarm": judged.swarm if judged else None,
        "recipe": judged.recipe.model_dump(mode="json") if judged else None,
        "outcome": judged.outcome if judged else None,
        "plain": outcome.review["plain"] if outcome.review else None,
        "guessing": outcome.review["guessing"] if outcome.review else None,
        "worth": worth_of(outcome),
        "loss_name": judged.loss_name if judged else None,
        "score": judged.score if judged else None,
        "loss": judged.loss if judged else None,
        "baseline_loss": judged.baseline_loss if judged else None,
        "gates": judged.gates if judged else None,
        "generations": outcome.generations,
        "transfers_accepted": outcome.transfers_accepted,
        "transfers_refused": outcome.refused_transfers,
        "packets_logged": outcome.packets_logged,
        "packets_refused": outcome.packets_refused,
        "next": [replay_command(outcome.run_id), *outcome.next_steps[1:]],
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
