"""Reading the log of a finished run: pages, trees, lineage."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand, FinishedRun

pytestmark = [pytest.mark.timeout(590), pytest.mark.long]


def test_a_trace_goes_on_where_it_ended(finished_run: FinishedRun) -> None:
    apc, options = finished_run.apc, ("--run-id", finished_run.summary["run_id"], "--no-events", "--limit", "60")
    first = apc("packet", "trace", *options)
    word = first.stderr.split("--after ")[1].strip()
    second = apc("packet", "trace", *options, "--after", word)
    both = [one["seq"] for page in (first, second) for one in json.loads(page.stdout)]
    assert len(both) == 120
    assert both == sorted(set(both))
    nonsense = apc("packet", "trace", "--after", "nonsense")
    assert nonsense.returncode == 2
    assert "take the one that it printed" in nonsense.stderr


def test_a_tree_of_the_whole_session(finished_run: FinishedRun) -> None:
    apc = finished_run.apc
    traced = apc("packet", "trace", "--run-id", finished_run.summary["run_id"], "--limit", "1")
    start = json.loads(traced.stdout)[0]["packet_id"]
    tree = json.loads(apc("packet", "tree", start, "--limit", "5000").stdout)
    assert not tree["is_cut"]
    known = set()
    for row in tree["packets"]:
        assert row["above"] is None or row["above"] in known
        known.add(row["packet_id"])
    assert len(known) == len(tree["packets"]) > 100
    dot = apc("packet", "tree", start, "--dot", "--limit", "20")
    assert dot.stdout.startswith("digraph packets {")
    assert "there is more" in dot.stderr
    mermaid = apc("packet", "tree", start, "--mermaid", "--limit", "20").stdout.splitlines()
    assert mermaid[0] == "flowchart LR"
    assert sum("-->" in line or "-.->" in line for line in mermaid) == 19


def test_the_lineage_of_a_run(finished_run: FinishedRun) -> None:
    summary = finished_run.summary
    said = finished_run.apc("packet", "lineage-summary", "--run-id", summary["run_id"])
    lineage = json.loads(said.stdout)
    modes = lineage["modes"]
    assert sum(mode["accepted"] for mode in modes) == summary["transfers_accepted"]
    assert "COMMONS_SEED" in {mode["transfer_mode"] for mode in modes if mode["accepted"]}
    refused = sum(mode["transfers"] - mode["accepted"] for mode in modes)
    assert refused == sum(summary["transfers_refused"].values())
    assert all(0 <= one["effectiveness"] <= 1 for one in lineage["protocols"])
    assert lineage["arbitrations"]
    assert lineage["refusals"] == summary["transfers_refused"]
    judged = [one["judged_at"] for one in lineage["propagation"]]
    assert judged == sorted(judged, reverse=True)
    unknown = finished_run.apc("packet", "lineage-summary", "--protocol-id", "nobody's")
    assert unknown.returncode == 2
    assert "holds no TRANSFER of protocol" in unknown.stderr


def test_an_agent_with_its_invocations(finished_run: FinishedRun) -> None:
    said = finished_run.apc("agent", "show", "builder-linear", "--limit", "5")
    agent = json.loads(said.stdout)
    assert (agent["agent_id"], agent["role"]) == ("builder-linear", "builder")
    assert len(agent["invocations"]) == 5
    newest = agent["invocations"][0]
    assert (newest["cause_type"], newest["state"], newest["ended"]) == ("SIGNAL", "LOCAL_IDLE", "outcome")
    assert [step["event"] for step in newest["steps"]][:3] == ["task_assigned", "context_complete", "idea_packet_ready"]
    assert len(newest["steps"]) == 8 * newest["emissions"]
    unknown = finished_run.apc("agent", "show", "nobody")
    assert unknown.returncode == 2
    assert "was ever registered" in unknown.stderr


def test_a_run_as_openlineage(finished_run: FinishedRun) -> None:
    run_id = finished_run.summary["run_id"]
    lines = finished_run.apc("log", "openlineage", "--run-id", run_id).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["eventType"] for event in events} == {"START", "COMPLETE"}
    outputs = {dataset["name"] for event in events for dataset in event["outputs"]}
    assert f"sha256:{finished_run.summary['model_hash'].removeprefix('sha256:')}" in outputs
    assert any("apc_gates" in event["run"]["facets"] for event in events)


def test_events_are_sent_to_a_server(finished_run: FinishedRun) -> None:
    taken: list[tuple[str, dict[str, Any]]] = []

    class Marquez(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    run_id = finished_run.summary["run_id"]
    with HTTPServer(("127.0.0.1", 0), Marquez) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        sent = finished_run.apc("log", "openlineage", "--run-id", run_id, "--url", url)
        server.shutdown()
    assert sent.returncode == 0, sent.stderr
    assert {path for path, _ in taken} == {"/api/v1/lineage"}
    assert {event["eventType"] for _, event in taken} == {"START", "COMPLETE"}
    away = finished_run.apc("log", "openlineage", "--run-id", run_id, "--url", url)
    assert away.returncode == 2
    assert "does not take an event" in away.stderr


def test_an_exported_run_comes_out_again_without_the_database(finished_run: FinishedRun, tmp_path: Path) -> None:
    run_id, bundle = finished_run.summary["run_id"], finished_run.apc.folder / "bundle.jsonl"
    exported = finished_run.apc("log", "export", "--run-id", run_id, "--out", str(bundle))
    assert exported.returncode == 0, exported.stderr
    elsewhere = ApcCommand(tmp_path)
    verified = elsewhere("packet", "replay", "--bundle", str(bundle), "--verify")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["packets"] == finished_run.summary["packets_logged"]
    altered = bundle.read_text().replace(',\\"accepted\\",', ',\\"held\\",', 1)
    assert altered != bundle.read_text()
    (tmp_path / "altered.jsonl").write_text(altered)
    differs = elsewhere("packet", "replay", "--bundle", "altered.jsonl", "--verify")
    assert differs.returncode == 4
    assert "agent_packets.verdict: recorded held, recomputed accepted" in differs.stderr
