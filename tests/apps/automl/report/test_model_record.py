"""The files of a model, and the words about a refused one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from apc_automl.report.outcome import failures_of
from apc_automl.report.outcome_files import repeat_options, save_model
from apc_automl.report.run_log import LoggedPacket, RunLog
from apc_bus.artifacts import ArtifactStore
from apc_contracts.vocabulary import ORCHESTRATOR

START = {"signal": "START", "session": {"generation_limit": 22, "convergence_generations": 2, "max_rounds": 2}}


def packet(kind: str, payload: dict[str, Any], *, at: int = 0, phase: str = "DISCOVERY", **body: Any) -> LoggedPacket:
    content = {"payload": payload, **body}
    return LoggedPacket(UUID(int=at), kind, phase, 1, at, "builder-linear", "linear", "accepted", None, content)


def run_log(*packets: LoggedPacket) -> RunLog:
    return RunLog("run-1", ("run-1",), packets, (), (), {})


def evaluation(at: int, outcome: float, *evidence: str, phase: str = "DISCOVERY") -> LoggedPacket:
    payload = {"metric_set": {"outcome": outcome}}
    return packet("EVAL", payload, at=at, phase=phase, proof_bundle={"evidence_refs": evidence})


async def test_without_a_validation_the_best_measured_model_is_the_candidate(tmp_path: Path) -> None:
    store = ArtifactStore("memory:///")
    worse, better = [await store.put(model) for model in (b"worse", b"better")]
    recipe = await store.put(b'{"family": "ridge"}')
    log = run_log(evaluation(0, 0.7, "m", better, recipe), evaluation(1, 0.4, "m", worse, recipe))
    saved = await save_model(log, store, None, tmp_path)
    assert saved == tmp_path / "candidate.skops"
    assert saved.read_bytes() == b"better"
    record = json.loads((tmp_path / "candidate.json").read_text())
    assert record["model"] == {"file": "candidate.skops", "hash": better}
    assert record["metrics"]["measured_on"] == "held-out rows"


async def test_a_model_no_better_than_the_baseline_is_not_saved(tmp_path: Path) -> None:
    log = run_log(evaluation(0, 0.0, "m", "m", "r"))
    assert await save_model(log, ArtifactStore("memory:///"), None, tmp_path) is None


def test_a_failed_gate_is_said_with_its_figure_and_its_bar() -> None:
    [words] = failures_of({"outcome": 0.42, "stability": 0.95}, ("outcome",))
    assert words.startswith("outcome is 0.420, the gate asks for at least 0.5 (")


@pytest.mark.parametrize(
    ("generations", "options"),
    [
        (25, ("--generations", "25", "--candidates", "1", "--convergence", "2", "--rounds", "2")),
        (4, ("--generations", "4", "--candidates", "1", "--convergence", "0", "--rounds", "2")),
    ],
)
def test_the_sizes_of_a_run_are_options_that_repeat_it(generations: int, options: tuple[str, ...]) -> None:
    log = run_log(packet("SIGNAL", START), *(evaluation(number, 0.5) for number in range(generations)))
    promoted = packet("ARTIFACT", {"artifact_hash": "m"}, phase="PROMOTION")
    promoted = replace(promoted, sender=ORCHESTRATOR)
    assert repeat_options(replace(log, packets=(*log.packets, promoted))) == options
    later = tuple(replace(one, round=2) for one in log.packets[1:])
    assert repeat_options(replace(log, packets=log.packets + later[:3])) == (), "a later round was cut"


def test_no_options_repeat_a_search_that_the_budget_ended_before_a_refusal() -> None:
    """With the same sizes and two rounds the repetition would go on where this run had no time left."""
    log = run_log(packet("SIGNAL", START), evaluation(0, 0.5))
    assert repeat_options(log) == ()
