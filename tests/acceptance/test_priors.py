"""A second run on the same table begins with what the first one found good; `--no-priors` gives the first one again."""

import json
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand, FinishedRun, read_summary

pytestmark = [pytest.mark.long, pytest.mark.timeout(590)]  # the first of them starts the run that all read


def first_generation(apc: ApcCommand, run_id: str) -> tuple[list[str], dict[str, float]]:
    """Return the priors that the briefs name, and what each swarm measured in generation 0."""
    assert apc("packet", "replay", "--run-id", run_id, "--out", "replay.json").returncode == 0
    entries = json.loads((apc.folder / "replay.json").read_text())
    packets: list[dict[str, Any]] = [entry for entry in entries if entry["kind"] == "packet"]
    priors = [
        thing["ref"]
        for packet in packets
        if packet["packet_type"] == "TASK_IR"
        for thing in packet["packet"]["payload"]["objects"]
        if thing["id"].startswith("prior-")
    ]
    outcomes = {
        packet["sender_swarm_id"]: packet["packet"]["payload"]["metric_set"]["outcome"]
        for packet in packets
        if packet["packet_type"] == "EVAL" and packet["run_phase"] == "DISCOVERY" and packet["generation"] == 0
        if packet["sender_role"] == "builder"
    }
    return priors, outcomes


@pytest.mark.faults
def test_a_second_run_begins_where_the_first_one_ended(finished_run: FinishedRun) -> None:
    apc = finished_run.apc
    _, first = first_generation(apc, finished_run.summary["run_id"])
    outcomes = {}
    for name, option in (("second", "--priors"), ("alone", "--no-priors")):
        run = apc(
            "automl", "run", "--generations", "1", "--budget-seconds", "250", "--out", name, option, timeout_seconds=280
        )
        assert run.returncode in (0, 3), run.stderr[-2000:]
        priors, outcomes[name] = first_generation(apc, read_summary(apc.folder / name)["run_id"])
        assert bool(priors) is (name == "second")

    assert outcomes["alone"] == first
    assert all(outcomes["second"][swarm] >= first[swarm] for swarm in first)
    assert sum(outcomes["second"].values()) > sum(first.values())


@pytest.mark.faults
def test_a_resumed_run_begins_with_the_best_of_that_run_and_splits_in_another_way(finished_run: FinishedRun) -> None:
    apc, run_id = finished_run.apc, finished_run.summary["run_id"]
    sizes = ("--generations", "1", "--budget-seconds", "250", "--out", "resumed")

    run = apc("automl", "run", "--resume", run_id, *sizes, timeout_seconds=280)

    assert run.returncode in (0, 3), run.stderr[-2000:]
    summary = read_summary(apc.folder / "resumed")
    priors, _ = first_generation(apc, summary["run_id"])
    assert priors
    assert (
        f"--seed 8 --generations 1 --candidates 1 --convergence 0 --rounds 2 --maximum-rows 31250 --resume {run_id}"
        in run.stdout
    )
    assert (summary["go_on"] is None) is summary["is_promoted"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume", "no-such-run"), "no model search of this name"),
        (("--resume", "RUN", "--target", "mean radius"), "another table or another target"),
        (("--resume", "RUN", "--no-priors"), "leave out --no-priors"),
        (("--resume", "x' OR '1'='1"), "no model search of this name"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_one_line(
    finished_run: FinishedRun, options: tuple[str, ...], said: str
) -> None:
    words = [finished_run.summary["run_id"] if word == "RUN" else word for word in options]
    refused = finished_run.apc("automl", "run", *words)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
