"""What a run prints at its end: for people who have never heard of its words, at a narrow terminal."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apc_automl.report.outcome import Judged, Outcome, worth_of
from apc_automl.run.status import print_summary
from apc_automl.training.recipes import Recipe

RECIPE = Recipe(family="logistic", preprocessing={}, parameters={})
JUDGED = Judged("linear", RECIPE, "sha256:0", 0.9, "logarithmic loss", 0.06, 0.66, 171, {}, "accuracy 98.2%")


def review(loss: float, *, is_clear: bool = True) -> dict[str, Any]:
    plain = {"name": "Boosting", "loss": loss, "outcome": 0.93, "score": "accuracy 98.8%", "is_clear": is_clear}
    return {"plain": plain, "guessing": {"score": "accuracy 62.6%", "loss": 0.66}}


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    return Outcome(
        run_id="run-1",
        state="CLOSED",
        reason=None,
        failed_gates=(),
        judged=JUDGED,
        model_file=tmp_path / "model.skops",
        report_file=tmp_path / "report.html",
        generations=3,
        transfers=(),
        packets_logged=12,
        packets_refused=0,
        facts=("classification of 'y'", "285 rows to train", f"the search looks at {'9 of 10 rows, ' * 12}and no more"),
        review=review(0.045),
    )


def test_the_model_stands_beside_a_plain_one_and_guessing(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_summary(outcome)
    said = capsys.readouterr().out.splitlines()
    assert said[:8] == [
        "Promoted: logistic of swarm linear.",
        "On 171 untouched rows, which the search has not seen:",
        "  this model               accuracy 98.2%  logarithmic loss 0.0600",
        "  plain gradient boosting  accuracy 98.8%  logarithmic loss 0.0450",
        "  guessing                 accuracy 62.6%  logarithmic loss 0.6600",
        "Outcome:    0.9000 (0 = no better than guessing, 1 = no error)",
        "Worth it?   No: the logarithmic loss is 33% higher than the plain model's. More",
        "            time may help (--budget-seconds); otherwise take the plain model.",
    ]
    assert all(len(line) <= 80 for line in said if "apc" not in line and str(outcome.report_file.parent) not in line)


def test_a_number_is_told_by_its_usual_error_alone(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    judged = replace(JUDGED, loss_name="mean squared error", score="root mean squared error 53.1")
    print_summary(replace(outcome, judged=judged, review=review(1.0) | {"residuals": {}}))
    assert "  this model               root mean squared error 53.1\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (review(0.12), "Yes: the logarithmic loss is 50% lower than the plain model's."),
        (review(0.0601), "Hardly: the plain model is as good."),
        (
            review(0.05, is_clear=False),
            "Cannot be said: the logarithmic loss is 20% higher than the plain model's, "
            "but on 171 rows that may be chance.",
        ),
    ],
)
def test_whether_the_search_was_worth_it_is_said(outcome: Outcome, found: dict[str, Any], words: str) -> None:
    assert worth_of(replace(outcome, review=found)) == words


def test_a_refused_model_is_worth_nothing_even_where_the_plain_one_is_worse(outcome: Outcome) -> None:
    refused = replace(outcome, model_file=None, review=review(0.9))
    assert worth_of(refused) == "No: the gate refused this model, and the plain one is no better."
    assert str(worth_of(replace(refused, review=review(0.01)))).startswith("No: the logarithmic loss is 500% higher")


def test_a_refused_candidate_has_its_reasons(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused = replace(outcome, model_file=None, candidate_file=tmp_path / "c.skops", failures=("outcome is 0.1",))
    print_summary(refused)
    said = capsys.readouterr().out
    assert said.startswith("The gate refused the best candidate.\nOn 171 untouched rows")
    assert "  - outcome is 0.1\n" in said and "Candidate:  " in said
