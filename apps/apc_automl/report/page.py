"""The report of a run: one HTML page that needs nothing but itself."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from apc_automl.model.model_types import BEYOND_SKOPS
from apc_automl.report import plots
from apc_automl.report.comparison import PLAIN, scores_of, worth_of
from apc_automl.report.model_record import MEANINGS
from apc_automl.report.outcome import Outcome
from apc_automl.report.run_log import RunLog
from apc_automl.swarm.narrative import Narrative
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
        charts["Score by generation and swarm"] = plots.score_plot(
            log, outcome.review["plain"]["outcome"] if outcome.review else None
        )
        charts["Diversity: model families in use"] = plots.diversity_plot(log)
    if log.transfers:
        charts["Transfers"] = plots.transfer_plot(log)
    if outcome.judged is not None:
        charts["Gates on untouched data (line = the bar to pass)"] = plots.gate_plot(outcome.judged.gates, bars)
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
