"""The search for a model, as `apc demo research` runs it: one process, no broker, no server."""

import json
import shlex

import pandas
import pytest
from tests.support.apc_command import FinishedRun

from apc_automl.model.model_file import load_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(590)]


def test_a_model_is_promoted_that_beats_the_trivial_baseline(finished_run: FinishedRun) -> None:
    assert finished_run.process.returncode == 0, finished_run.process.stderr[-2000:]
    summary = finished_run.summary
    assert summary["is_promoted"]
    assert summary["state"] == "CLOSED"
    assert summary["loss"] < summary["baseline_loss"]
    assert summary["outcome"] >= 0.5


def test_the_model_file_predicts(finished_run: FinishedRun) -> None:
    table = pandas.read_csv(finished_run.apc.folder / ".apc/samples/breast-cancer.csv")

    model = load_model((finished_run.out / "model.skops").read_bytes())
    guessed = model.predict(table.drop(columns="diagnosis"))

    assert (guessed == table["diagnosis"]).mean() > 0.9


def test_the_report_needs_nothing_but_itself(finished_run: FinishedRun) -> None:
    page = (finished_run.out / "report.html").read_text()

    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "<script src" not in page
    assert "<link" not in page


def test_the_report_tells_what_the_librarian_noted(finished_run: FinishedRun) -> None:
    page = (finished_run.out / "report.html").read_text()

    assert "Find the best model: classification of &#39;diagnosis&#39;" in page
    assert "Decision: execute" in page
    assert "word for word in the memory of the librarian" in page, "the narrative was compressed"


def test_the_summary_tells_what_a_reader_needs(finished_run: FinishedRun) -> None:
    said = finished_run.process.stdout

    assert "plain gradient boosting" in said and "guessing" in said
    assert "Transfers:" in said
    assert "Packets:" in said
    assert f"apc packet replay --run-id {finished_run.summary['run_id']}" in said
    assert "Traceback" not in finished_run.process.stderr


def test_transfers_were_offered_and_ruled_on(finished_run: FinishedRun) -> None:
    summary = finished_run.summary

    assert summary["transfers_accepted"] + sum(summary["transfers_refused"].values()) > 0


def test_each_transfer_is_a_line_of_the_progress(finished_run: FinishedRun) -> None:
    summary, said = finished_run.summary, finished_run.process.stderr.splitlines()

    lines = [line for line in said if line.startswith("transfer ")]
    assert sum(line.endswith(": accepted") for line in lines) == summary["transfers_accepted"]
    assert sum(": refused, " in line for line in lines) == sum(summary["transfers_refused"].values())
    assert any("best accuracy " in line for line in said)


def test_the_summary_ends_with_things_to_try(finished_run: FinishedRun) -> None:
    see, use, read, check = finished_run.process.stdout.splitlines()[-4:]
    assert "apc ui --run" in see and "apc packet replay" in read
    assert check == f"  check every verdict:   {read.split(':', 1)[1].strip()} --verify"

    predicted = finished_run.apc(*shlex.split(use.split(":", 1)[1])[1:])

    assert predicted.returncode == 0, predicted.stderr
    assert "569 rows predicted" in predicted.stdout


def test_swarms_act_in_convergence_and_the_winner_seeds_the_commons(finished_run: FinishedRun) -> None:
    traced = finished_run.apc(
        "packet", "trace", "--run-id", finished_run.summary["run_id"], "--type", "TRANSFER", "--json"
    )

    through = {row["run_phase"] for row in json.loads(traced.stdout) if row["state"] == "ARCHIVED"}
    assert {"CONVERGENCE", "PROMOTION"} <= through


def test_the_run_comes_out_again_as_it_was_recorded(finished_run: FinishedRun) -> None:
    run_id = finished_run.summary["run_id"]

    verified = finished_run.apc("packet", "replay", "--run-id", run_id, "--verify")

    assert verified.returncode == 0, verified.stderr
    found = json.loads(verified.stdout)
    assert found["is_verified"]
    assert found["packets"] == finished_run.summary["packets_logged"]


def test_replay_prints_the_run_in_causal_order(finished_run: FinishedRun) -> None:
    read = finished_run.process.stdout.splitlines()[-2]
    assert read.startswith("  read every step:")
    command = read.split(":", 1)[1]

    replayed = finished_run.apc(*shlex.split(command)[1:])

    assert replayed.returncode == 0
    entries = json.loads(replayed.stdout)
    packets = [entry for entry in entries if entry["kind"] == "packet"]
    assert len(packets) == finished_run.summary["packets_logged"]
    place = {entry["packet_id"]: number for number, entry in reversed(list(enumerate(entries))) if "packet_id" in entry}
    for number, entry in enumerate(entries):
        if entry["kind"] == "packet" and entry["parent_packet_id"] is not None:
            assert place[entry["parent_packet_id"]] < number
        if entry["kind"] == "transition":
            assert place[entry["packet_id"]] <= number
    moves = [entry["to_state"] for entry in entries if entry["kind"] == "coordination"]
    assert moves[-1] == "CLOSED"


def test_replay_writes_a_file(finished_run: FinishedRun) -> None:
    run_id = finished_run.summary["run_id"]

    replayed = finished_run.apc("packet", "replay", "--run-id", run_id, "--out", "bundle/replay.json")

    assert replayed.returncode == 0
    assert json.loads((finished_run.apc.folder / "bundle/replay.json").read_text())[0]["kind"] == "packet"


def test_trace_filters(finished_run: FinishedRun) -> None:
    run_id = finished_run.summary["run_id"]

    traced = finished_run.apc("packet", "trace", "--run-id", run_id, "--type", "TRANSFER", "--limit", "2")

    packets = json.loads(traced.stdout)
    assert 0 < len(packets) <= 2
    assert {packet["packet_type"] for packet in packets} == {"TRANSFER"}
    assert all(packet["transitions"] for packet in packets)


def test_arbitrations_are_listed(finished_run: FinishedRun) -> None:
    listed = finished_run.apc("arbitration", "list", "--run-id", finished_run.summary["run_id"])

    rows = json.loads(listed.stdout)
    assert {row["subject"] for row in rows} == {"transfers", "candidates"}
    for row in rows:
        by_id = {one["candidate_id"]: one for one in row["candidates"]}
        best = max(row["candidates"], key=lambda one: one["total_score"] if not one["refused_with"] else -1)
        assert by_id[row["winner_candidate_id"]]["total_score"] == best["total_score"]
        assert len(row["selected"]) == sum(one["rank"] is not None for one in by_id.values()) or (
            row["subject"] == "candidates" and len(row["selected"]) == 1
        )


def test_the_agents_are_registered(finished_run: FinishedRun) -> None:
    listed = json.loads(finished_run.apc("agent", "list").stdout)

    swarm = {"librarian", "sentinel", "builder-linear", "builder-trees", "builder-neighbours"}
    assert {agent["agent_id"] for agent in listed} == swarm | {"operator"}


@pytest.mark.parametrize("arguments", [("packet", "replay", "--run-id", "no-such-run"), ("packet", "replay")])
def test_a_run_that_is_not_there_is_one_line(finished_run: FinishedRun, arguments: tuple[str, ...]) -> None:
    refused = finished_run.apc(*arguments)

    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def test_the_report_can_be_made_again_from_the_log(finished_run: FinishedRun) -> None:
    run_id = finished_run.summary["run_id"]

    again = finished_run.apc("automl", "report", "--run-id", run_id, "--out", "again")

    assert again.returncode == 0, again.stderr
    model = (finished_run.apc.folder / "again/model.skops").read_bytes()
    assert model == (finished_run.out / "model.skops").read_bytes()


def test_the_protocols_of_the_run_are_measured(finished_run: FinishedRun) -> None:
    listed = finished_run.apc("protocol", "list", "--run-id", finished_run.summary["run_id"])
    assert listed.returncode == 0, listed.stderr

    rows = json.loads(listed.stdout)
    assert rows and sum(row["accepted"] for row in rows) == finished_run.summary["transfers_accepted"]
    for row in rows:
        parts = 0.5 * row["acceptance_rate"] + 0.35 * row["average_outcome"] + 0.15 * (1 - row["average_drift_risk"])
        assert row["effectiveness"] == pytest.approx(parts)
        assert row["blocked_by"] is None
    # One task, so one average, which ranks nothing; what was measured of each protocol does.
    assert len({row["average_outcome"] for row in rows}) == 1
    lifts = [row["outcome_lift"] for row in rows]
    assert None not in lifts and all(row["compared_evals"] for row in rows), "a builder measures what it offers"
    assert len(set(lifts)) > 1 or len(lifts) == 1
    assert all((row["import_lift"] is None) == (row["imports"] == 0) for row in rows)
