"""A table of a stranger writes into what people open: the report in a browser, the predictions in a spreadsheet."""

from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from jinja2 import Environment

from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.report.outcome import Judged, Outcome
from apc_automl.report.page import write_report
from apc_automl.report.run_log import LoggedPacket, RunLog
from apc_automl.run.predict import with_predictions
from apc_automl.training.recipes import Recipe

MARKUP = "<script>alert(1)</script>"
GATES = dict.fromkeys(("rtf", "stability", "audit", "outcome", "learnability", "generalization_ratio"), 1.0)


def outcome(file: Path) -> Outcome:
    recipe = Recipe(family="ridge", preprocessing={}, parameters={})
    review = {
        "importances": {MARKUP: 0.5},
        "columns_left_out": 0,
        "plain": {"name": "plain", "loss": 0.2, "outcome": 0.5, "score": "accuracy 90.0%", "is_clear": True},
        "guessing": {"loss": 0.7, "score": "accuracy 50.0%"},
        "confusion": {"classes": [MARKUP, "b"], "counts": [[5, 1], [0, 4]]},
        "calibration": [{"rows": 10, "says": 0.9, "is_right": 0.9}],
    }
    return Outcome(
        run_id="run-1",
        state="CLOSED",
        reason=None,
        failed_gates=(),
        judged=Judged("linear", recipe, "sha256:" + "a" * 64, 0.8, "loss", 0.1, 0.5, 10, GATES | {"drift_risk": 0.0}),
        model_file=file.parent / "model.skops",
        report_file=file,
        generations=1,
        transfers=(),
        packets_logged=1,
        packets_refused=0,
        facts=(f"column {MARKUP!r} is left out: it is empty",),
        review=review,
        profile={"features": {MARKUP: f"text {MARKUP}"}, "missing_share": {}},
    )


@pytest.mark.parametrize("is_guarded", [True, False])
def test_names_and_classes_of_a_table_are_no_markup_in_the_report(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        unescaped = lambda autoescape, **rest: Environment(autoescape=False, **rest)  # noqa: E731
        monkeypatch.setattr("apc_automl.report.page.Environment", unescaped)
    body: dict[str, Any] = {"payload": {"metric_set": {"outcome": 0.5}, "pass": True, "notes": [MARKUP]}}
    packet = LoggedPacket(UUID(int=1), "EVAL", "DISCOVERY", 1, 0, "builder-linear", "linear", "accepted", None, body)
    log = RunLog("run-1", ("run-1",), (packet,), (), (), {("EVAL", "accepted"): 1})
    write_report(log, outcome(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (MARKUP in text) is not is_guarded
    assert "&lt;script&gt;" in text or not is_guarded


@pytest.mark.parametrize("formula", ["=cmd|'/c calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_formula_in_a_cell_a_name_or_a_class_is_a_text_in_the_predictions(formula: str) -> None:
    schema = Schema(
        target="y",
        problem=ProblemKind.CLASSIFICATION,
        label_type="text",
        classes=(formula, "b"),
        columns=(Column(name="a", kind=ColumnKind.NUMERIC),),
    )
    frame = pd.DataFrame({"a": [-1.5, 2.0], formula: [formula, "plain"]})
    unguarded = frame.to_csv(index=False)
    assert formula in [cell.strip('"') for line in unguarded.splitlines() for cell in line.split(",")]
    written = with_predictions(frame, schema, np.array([[1.0, 0.0], [0.0, 1.0]])).decode()
    cells = [cell.strip('"') for line in written.splitlines() for cell in line.split(",")]
    assert formula not in cells and cells.count(f"'{formula}") == 3
    assert "-1.5" in cells, "numbers stay numbers"
