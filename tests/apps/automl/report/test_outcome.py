"""The end of a run: what was promoted or which gate stopped it, and a page that says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from apc_automl.report.outcome import Judged, Outcome
from apc_automl.report.outcome_files import collect_outcome, narrative_of
from apc_automl.report.page import write_report
from apc_automl.report.run_log import LoggedPacket, Move, RunLog, TransferRecord
from apc_automl.swarm.briefs import LIBRARIAN
from apc_automl.swarm.narrative import Narrative
from apc_automl.training.recipes import Recipe
from apc_automl.training.workbench import Workbench
from apc_bus.artifacts import ArtifactStore
from apc_bus.database import open_pool
from apc_minds.context import ContextSession, MemoryContextStore
from apc_minds.memory import PostgresMemoryStore

GATES = {
    "rtf": 1.0,
    "stability": 0.95,
    "audit": 1.0,
    "outcome": 0.6,
    "learnability": 0.9,
    "generalization_ratio": 1.0,
    "drift_risk": 0.1,
}


def transfer(generation: int, reason: str | None) -> TransferRecord:
    return TransferRecord(1, generation, "linear", "trees", "sha256:" + "a" * 64, 0.9, 0.5, reason is None, reason)


def evaluation(swarm: str, generation: int, outcome: float) -> LoggedPacket:
    payload = {"metric_set": {**GATES, "outcome": outcome}, "pass": True, "notes": [f"ridge <of {swarm}>"]}
    body: dict[str, Any] = {"payload": payload}
    sender = f"builder-{swarm}"
    return LoggedPacket(UUID(int=generation), "EVAL", "DISCOVERY", 1, generation, sender, swarm, "accepted", None, body)


@pytest.fixture
def log() -> RunLog:
    return RunLog(
        run_id="run-1",
        session_ids=("run-1",),
        packets=tuple(
            evaluation(swarm, generation, 0.4 + generation / 20)
            for generation in range(3)
            for swarm in ("linear", "trees", "neighbours")
        ),
        transfers=(transfer(11, None), transfer(12, "THROTTLE_SCORE: 0.9 is not above"), transfer(12, "EXPIRED: late")),
        moves=(Move("stop_signal_or_budget_exhausted", "HALTED", 2, 0, {"reason": "VALIDATION_FAILED outcome"}),),
        counts={("EVAL", "accepted"): 9, ("TRANSFER", "held"): 3},
    )


@pytest.fixture
def outcome(log: RunLog, tmp_path: Path) -> Outcome:
    return Outcome(
        run_id=log.run_id,
        state="HALTED",
        reason="VALIDATION_FAILED outcome",
        failed_gates=("outcome",),
        judged=None,
        model_file=None,
        report_file=tmp_path / "report.html",
        generations=3,
        transfers=log.transfers,
        packets_logged=12,
        packets_refused=0,
    )


def test_transfers_are_counted_by_the_reason_of_their_refusal(outcome: Outcome) -> None:
    assert outcome.transfers_accepted == 1
    assert outcome.refused_transfers == {"EXPIRED": 1, "THROTTLE_SCORE": 1}


def test_nothing_promoted_is_exit_3(outcome: Outcome, tmp_path: Path) -> None:
    assert outcome.exit_code == 3
    assert replace(outcome, model_file=tmp_path / "model.skops").exit_code == 0


def test_the_report_names_the_gate_that_failed_and_escapes_what_it_shows(log: RunLog, outcome: Outcome) -> None:
    write_report(log, outcome)
    page = outcome.report_file.read_text()
    assert "Nothing passed the gate" in page
    assert "Failed: outcome." in page
    assert page.count("<svg") == 3
    assert "ridge &lt;of linear&gt;" in page
    assert "THROTTLE_SCORE" in page


def test_the_report_shows_the_notes_and_how_many_are_folded(log: RunLog, outcome: Outcome) -> None:
    write_report(log, outcome, Narrative(("Find <the> best model", "Decision: go."), folded=7))
    page = outcome.report_file.read_text()
    assert "<li>Find &lt;the&gt; best model</li>" in page
    assert "7 notes are shortened here or left out" in page
    write_report(log, outcome)
    assert "What the librarian noted" not in outcome.report_file.read_text()


@pytest.mark.parametrize(("role", "notes"), [("apc_agent", ("Find it.",)), ("apc_reader", None)])
async def test_who_may_not_read_the_memory_gets_a_report_without_notes(
    log: RunLog, postgres_url: str, role: str, notes: tuple[str, ...] | None
) -> None:
    pool = await open_pool(postgres_url, max_size=1)
    store = MemoryContextStore(PostgresMemoryStore(pool), LIBRARIAN)
    session = ContextSession(log.session_ids[0], store=store)
    await session.add_system_turn("Find it.")
    await session.save()
    await pool.close()
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=1, server_settings={"role": role})
    found = await narrative_of(pool, log)
    await pool.close()
    assert (found and found.notes) == notes


async def test_a_run_that_the_log_does_not_know(postgres_url: str, tmp_path: Path) -> None:
    pool = await open_pool(postgres_url, max_size=1)
    try:
        outcome = await collect_outcome(pool, ArtifactStore("memory:///"), "no-such-run", tmp_path / "out", Workbench())
    finally:
        await pool.close()
    assert (outcome.state, outcome.exit_code, outcome.packets_logged) == ("UNKNOWN", 3, 0)
    assert "no session of this run" in outcome.report_file.read_text()


def test_the_report_names_the_score_that_people_know_and_compares_with_a_plain_model(
    log: RunLog, outcome: Outcome, tmp_path: Path
) -> None:
    recipe = Recipe(family="ridge", preprocessing={}, parameters={})
    judged = Judged("linear", recipe, "sha256:0", 0.6, "logarithmic loss", 0.3, 0.7, 90, dict(GATES), "accuracy 91.0%")
    plain = {"name": "Boosting", "loss": 0.2, "outcome": 0.71, "score": "accuracy 93.0%", "is_clear": True}
    guessing = {"loss": 0.7, "score": "accuracy 50.0%"}
    found = {"plain": plain, "guessing": guessing, "confusion": {"classes": [], "counts": []}}
    review = found | {"importances": {"a": 0.1}, "columns_left_out": 0, "calibration": []}
    features = {f"x{number}": "number" for number in range(13)}
    profile = {"features": features, "missing_share": {}}
    model = tmp_path / "model.skops"
    write_report(log, replace(outcome, judged=judged, review=review, profile=profile, model_file=model))
    page = outcome.report_file.read_text()
    assert "<strong>accuracy 91.0%</strong>" in page
    assert "No: the logarithmic loss is 50% higher than the plain model&#39;s." in page
    assert "The plain gradient boosting is Boosting, as scikit-learn has it" in page
    assert "<td>guessing</td><td>accuracy 50.0%</td>" in page
    assert "<details><summary>What was made of its 13 columns" in page, "a wide table is folded"
    assert page.index("Use the model") < page.index("Score by generation and swarm")
    assert "stroke-dasharray" in page[page.index("Score by generation") : page.index("Diversity")], "the plain model"
