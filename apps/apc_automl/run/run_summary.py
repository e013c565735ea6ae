"""The end of a run in words: what was found, by how much it is better than nothing, where to look next."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

from apc_automl.report.outcome import Judged, Outcome, scores_of, worth_of
from apc_automl.run.form import RunForm
from apc_automl.run.status import wrapped
from apc_bus.settings import BusSettings
from apc_cli.for_applications import echo, print_json, program, to_json, write_bytes

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
