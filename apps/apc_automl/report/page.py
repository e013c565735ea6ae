"""The report of a run: one HTML page that needs nothing but itself."""

import io
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apc_automl.model.model_types import BEYOND_SKOPS
from apc_automl.report.outcome import MEANINGS, PLAIN, Outcome, scores_of, worth_of
from apc_automl.report.run_log import LoggedPacket, RunLog
from apc_automl.swarm.narrative import Narrative
from apc_automl.training.recipes import SWARMS
from apc_contracts.contract.contract import load_contract

TEMPLATE = "templates/report.html.j2"


def write_report(log: RunLog, outcome: Outcome, narrative: Narrative | None = None) -> None:
    """Write the page to `outcome.report_file`; with what the librarian has noted, if it is known."""
    source = files("apc_automl.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    outcome.report_file.write_text(page.from_string(source).render(_facts(log, outcome, narrative)), encoding="utf-8")


def _facts(log: RunLog, outcome: Outcome, narrative: Narrative | None) -> dict[str, Any]:
    bars = {name: _bar(guard.text) for name, guard in load_contract().promotion_gate.criteria}
    charts = {}
    if log.evaluations:
        charts["Score by generation and swarm"] = score_plot(
            log, outcome.review["plain"]["outcome"] if outcome.review else None
        )
        charts["Diversity: model families in use"] = diversity_plot(log)
    if log.transfers:
        charts["Transfers"] = transfer_plot(log)
    if outcome.judged is not None:
        charts["Gates on untouched data (line = the bar to pass)"] = gate_plot(outcome.judged.gates, bars)
    return {
        "outcome": outcome,
        "narrative": narrative,
        "judged": outcome.judged,
        "charts": {title: Markup(svg) for title, svg in charts.items()},
        "bars": bars,
        "rounds": _moves(log),
        "counts": sorted(log.counts.items()),
        "best": _best_by_swarm(log),
        "meanings": MEANINGS,
        "review": outcome.review,
        "profile": outcome.profile,
        "worth": worth_of(outcome),
        "scores": scores_of(outcome),
        "plain_name": PLAIN,
        "facts": outcome.facts,
        "trusted": BEYOND_SKOPS,
    }


def _bar(criterion: str) -> tuple[str, float]:
    _, comparison, number = criterion.split()
    return comparison, float(number)


def _moves(log: RunLog) -> list[dict[str, Any]]:
    return [
        {"event": move.event, "state": move.to_state, "round": move.round, "generation": move.generation}
        for move in log.moves
        if move.event != "barrier"
    ]


def _best_by_swarm(log: RunLog) -> list[dict[str, Any]]:
    rows = []
    for swarm in sorted({one.swarm for one in log.evaluations}):
        evaluations = [one for one in log.evaluations if one.swarm == swarm]
        best = max(evaluations, key=lambda one: one.payload["metric_set"]["outcome"])
        rows.append(
            {
                "swarm": swarm,
                "generation": best.generation,
                "outcome": best.payload["metric_set"]["outcome"],
                "method": (best.payload.get("notes") or [""])[0],
                "passed": best.payload["pass"],
            }
        )
    return rows


COLOURS = dict(zip(SWARMS, ("#2563eb", "#16a34a", "#d97706"), strict=True))
GATES = ("rtf", "stability", "audit", "outcome", "learnability", "generalization_ratio", "drift_risk")
WIDTH, HEIGHT = 5.4, 2.9
"""In inches; a phone shows the letters at nearly their size."""


def score_plot(log: RunLog, plain: float | None = None) -> str:
    """Plot the outcome on held-out data by generation and swarm, with the best so far as a line.

    Args:
        plain: the outcome of a plain strong model, on untouched rows: another line.
    """
    figure, axes = _new("generation", "outcome on held-out data")
    first = _first_generation_of_rounds(log)
    for swarm in SWARMS:
        evaluations = [one for one in log.evaluations if one.swarm == swarm]
        places = [first[one.round] + one.generation for one in evaluations]
        outcomes = [float(one.payload["metric_set"]["outcome"]) for one in evaluations]
        best = [max(outcomes[: count + 1]) for count in range(len(outcomes))]
        axes.plot(places, outcomes, "o", color=COLOURS[swarm], markersize=3.5, alpha=0.55)
        axes.step(places, best, where="post", color=COLOURS[swarm], label=swarm)
    for start in list(first.values())[1:]:
        axes.axvline(start - 0.5, color="#999", linestyle=":", linewidth=1)
    axes.axhline(0.5, color="#999", linewidth=0.8)
    axes.annotate("promotion gate", (0, 0.5), fontsize=8, color="#777", va="bottom")
    axes.annotate("0 = trivial baseline", (0, 0), fontsize=8, color="#777", va="bottom")
    if plain is not None:
        axes.axhline(plain, color="#111", linestyle="--", linewidth=1, label="plain gradient boosting, untouched data")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", fontsize=8, framealpha=0)
    return _svg(figure)


def diversity_plot(log: RunLog) -> str:
    """Return how many different model families the swarms tried in each generation."""
    figure, axes = _new("generation", "families in use")
    first = _first_generation_of_rounds(log)
    families: dict[int, set[str]] = defaultdict(set)
    for one in log.evaluations:
        families[first[one.round] + one.generation].add(family_of(one))
    places = sorted(families)
    axes.bar(places, [len(families[place]) for place in places], color="#7c3aed", width=0.8)
    axes.set_yticks(range(len(SWARMS) + 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure)


def transfer_plot(log: RunLog) -> str:
    """Plot accepted and refused transfers by generation."""
    figure, axes = _new("generation", "transfers")
    first = _first_generation_of_rounds(log)
    accepted: dict[int, int] = defaultdict(int)
    refused: dict[int, int] = defaultdict(int)
    for transfer in log.transfers:
        counts = accepted if transfer.is_accepted else refused
        counts[first.get(transfer.round, 0) + transfer.generation] += 1
    places = sorted({*accepted, *refused})
    heights = [accepted[place] for place in places]
    axes.bar(places, heights, color="#16a34a", label="accepted")
    axes.bar(places, [refused[place] for place in places], bottom=heights, color="#dc2626", label="refused")
    axes.set_xlim(-0.5, max(first[one.round] + one.generation for one in log.evaluations) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, framealpha=0)
    return _svg(figure)


def gate_plot(gates: dict[str, float], bars: dict[str, tuple[str, float]]) -> str:
    """Return the validated model's gates beside the bar that each had to pass."""
    figure, axes = _new("", "")
    names = [name for name in reversed(GATES) if name in gates]
    colours = ["#16a34a" if _passes(gates[name], *bars[name]) else "#dc2626" for name in names]
    axes.barh(names, [gates[name] for name in names], color=colours, height=0.55)
    for place, name in enumerate(names):
        axes.plot([bars[name][1]] * 2, [place - 0.4, place + 0.4], color="#111", linewidth=1.5)
        label = f" {gates[name]:.3g}"
        axes.annotate(label, (max(gates[name], bars[name][1]), place), fontsize=8, va="center")
    axes.set_xlim(0, max(1.1, *(gates[name] * 1.1 for name in names)))
    return _svg(figure)


def family_of(evaluation: LoggedPacket) -> str:
    """Return the model family of an EVAL, which its first note describes."""
    notes: Sequence[str] = evaluation.payload.get("notes") or ("",)
    return notes[0].split(" ", 1)[0]


def _passes(value: float, comparison: str, bar: float) -> bool:
    return {"==": value == bar, ">=": value >= bar, "<=": value <= bar}[comparison]


def _first_generation_of_rounds(log: RunLog) -> dict[int, int]:
    """Return for each round the place of its generation 0 on the axis; rounds follow each other."""
    first: dict[int, int] = {}
    start = 0
    for round_number in sorted({one.round for one in log.evaluations}):
        first[round_number] = start
        start += 1 + max(one.generation for one in log.evaluations if one.round == round_number)
    return first


def _new(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    # Its own figure, without pyplot: no global state, no display, safe in a thread.
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="tight")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
