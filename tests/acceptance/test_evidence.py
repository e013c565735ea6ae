"""The log of a whole run of the reference swarm: verified, proven, exported and checked elsewhere."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.apc_command import FinishedRun

from apc_log import offline_verifier

pytestmark = [pytest.mark.long, pytest.mark.timeout(590)]


def test_the_log_verifies_against_the_checkpoints_that_left_it(finished_run: FinishedRun) -> None:
    apc = finished_run.apc
    assert (apc.folder / ".apc/log-key.pem").stat().st_mode & 0o777 == 0o600
    done = apc("log", "verify")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)[0]
    assert report["is_whole"] and report["entries"] == report["size"] > 1000
    newest = apc("log", "checkpoint").stdout.removesuffix("\n")
    assert int(newest.split("\n")[1]) == report["size"]
    exported = list(offline_verifier.split_notes((apc.folder / ".apc/checkpoints/shard-0.checkpoints").read_text()))
    assert newest in exported and report["outside"] == len(set(exported))


def test_the_run_is_exported_and_checked_elsewhere(finished_run: FinishedRun, tmp_path: Path) -> None:
    """Copied alone to an empty folder, with the public key and the checker."""
    apc, run_id = finished_run.apc, finished_run.summary["run_id"]
    key = apc("log", "key").stdout.strip()
    exported = apc("log", "export", "--run-id", run_id, "--out", "run.bundle")
    assert exported.returncode == 0, exported.stderr
    shutil.copy(apc.folder / "run.bundle", tmp_path)
    shutil.copy(offline_verifier.__file__, tmp_path)
    command = [sys.executable, "offline_verifier.py", "run.bundle", "--key", key]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"run {run_id}: " in checked.stdout
    assert apc("log", "check", "run.bundle", "--key", key).stdout == checked.stdout


def test_a_packet_and_the_growth_of_the_log_are_proven(finished_run: FinishedRun) -> None:
    apc, run_id = finished_run.apc, finished_run.summary["run_id"]
    packet_id = json.loads(apc("packet", "trace", "--run-id", run_id, "--limit", "1").stdout)[0]["packet_id"]
    assert apc("log", "prove", packet_id, "--out", "packet.proof").returncode == 0
    proven = apc("log", "check", "packet.proof", "--no-key").stdout
    assert f" {packet_id} by " in proven
    assert "its bytes have the hash" in proven
    notes = offline_verifier.split_notes((apc.folder / ".apc/checkpoints/shard-0.checkpoints").read_text())
    sizes = [offline_verifier.parse_note(note).checkpoint.size for note in notes]
    assert apc("log", "consistency", str(sizes[0]), str(sizes[-1]), "--out", "growth.proof").returncode == 0
    assert "extends" in apc("log", "check", "growth.proof", "--no-key").stdout
    proof = apc.folder / "packet.proof"
    proof.write_text(proof.read_text().replace('"path": [', '"path": ["00", '))
    assert apc("log", "check", "packet.proof", "--no-key").returncode == 1
    assert apc("log", "check", "packet.proof").returncode == 2, "whom do you trust?"
    assert apc("log", "prove", "no-packet").returncode == 2
