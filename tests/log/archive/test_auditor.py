"""The commands of an auditor, who has the public key, kept checkpoints and the archive, and no database."""

import json
import shutil
from pathlib import Path

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log.archived import APPROVAL, ArchivedLog

pytestmark = pytest.mark.postgres


@pytest.fixture
async def kept(archived: ArchivedLog, tmp_path: Path) -> Path:
    """A folder with the public key and the exported checkpoints, and nothing else."""
    connection = await asyncpg.connect(archived.url)
    notes = await connection.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    await connection.close()
    folder = tmp_path / "auditor"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "key.txt").write_text(f"{archived.key}\n")
    (folder / "checkpoints" / "shard-0.checkpoints").write_text("".join(f"{row['note']}\n" for row in notes))
    return folder


async def test_an_auditor_without_the_database(archived: ArchivedLog, kept: Path) -> None:
    apc = ApcCommand(kept)
    trusted = ("--key", "key.txt", "--archive", str(archived.folder))
    verified = apc("log", "verify", *trusted, "--checkpoints", "checkpoints", "--json")
    assert verified.returncode == 0, verified.stderr
    (report,) = json.loads(verified.stdout)
    assert (report["is_whole"], report["segments"], report["size"]) == (True, 2, 1 << 17)
    assert "131,072 entries in 2 segments fit the tree" in verified.stderr
    _, shown = apc.at_terminal("log", "verify", *trusted, "--checkpoints", "checkpoints", columns=80)
    assert "100%" in shown, "how far it is"
    proven = apc("log", "prove", str(APPROVAL), *trusted, "--out", "proof.json")
    assert proven.returncode == 0, proven.stderr
    checked = apc("log", "check", "proof.json", "--key", "key.txt")
    assert checked.returncode == 0, checked.stderr
    assert f"APPROVAL {APPROVAL} by sender-1" in checked.stdout


async def test_what_an_auditor_finds(archived: ArchivedLog, kept: Path, tmp_path: Path) -> None:
    copy, second = tmp_path / "copy", archived.manifests[1]
    shutil.copytree(archived.folder, copy)
    (copy / second.place / "packet.parquet").unlink()
    trusted = ("--key", "key.txt", "--archive", str(copy))
    verified = ApcCommand(kept)("log", "verify", *trusted, "--checkpoints", "checkpoints")
    assert verified.returncode == 1
    assert f"NOT WHOLE, {second.place}/packet.parquet: it is missing" in verified.stderr
    elsewhere = ApcCommand(kept)("log", "verify", "--key", "key.txt", "--archive", str(tmp_path / "nothing"))
    assert elsewhere.returncode != 0
    assert "there is no segment of" in elsewhere.stderr and "Traceback" not in elsewhere.stderr
    assert not (tmp_path / "nothing").exists(), "a reader makes no folder"
    missing = ("--key", "key.txt", "--archive", str(tmp_path / "nothing"))
    nowhere = ApcCommand(kept)("log", "prove", str(APPROVAL), *missing)
    assert nowhere.returncode != 0
    assert f"--archive {tmp_path / 'nothing'}: there is no such folder" in nowhere.stderr
    unknown = ApcCommand(kept)("log", "prove", "0/99999999", *trusted)
    assert unknown.returncode != 0
    assert "the archive has no entry 99999999" in unknown.stderr and "Traceback" not in unknown.stderr
