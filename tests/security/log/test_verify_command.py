"""`apc log verify` compares with the exported checkpoints, and fails on a log that is not the one they tell of."""

import json
from pathlib import Path

import pytest
from tests.support.log import LogBench, disable_guards, packet_entry
from tests.support.servers import PostgresServer

from apc_bus.settings import PersisterSettings
from apc_cli.commands import log_verification
from apc_cli.commands.log_verification import print_uncovered, say_uncovered, verify_log
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.rows import find_strays, list_shards
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import UNCOVERED
from apc_persister.verification.sessions import compare_sessions
from apc_persister.verification.verify import verify_shard


@pytest.fixture
async def exported(bench: LogBench, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogBench:
    """A log of two entries whose checkpoints went into the data folder."""
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("APC_CHECKPOINTS_URL", "")
    bench.settings = PersisterSettings()
    await bench.gate.open()
    for _ in range(2):
        await bench.gate.log([packet_entry()])
        await bench.write()
    return bench


async def verify() -> bool:
    return await verify_log(1, [], [], None, as_json=True)


async def test_the_exported_checkpoints_are_compared_by_default(
    exported: LogBench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await verify()
    captured = capsys.readouterr()
    [report] = json.loads(captured.out)
    assert report["is_whole"] and report["outside"] == 2
    assert "compared with 2 checkpoints held outside" in captured.err


async def test_a_checkpoint_that_is_being_written_is_passed_over(exported: LogBench, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints" / "shard-0.checkpoints"
    file.write_bytes(file.read_bytes() + b"apc-log/0\n3\nabc")
    assert await verify()


@pytest.mark.parametrize(
    "act",
    [
        "UPDATE apc_log.shards SET next_seq = next_seq + 10",
        "DELETE FROM apc_log.shards",
        "DELETE FROM apc_log.log_edges",
        "DELETE FROM apc_log.log_checkpoints WHERE tree_size = 1",
        "UPDATE apc_log.agent_packets SET seq = 7000 WHERE seq = 2",
        "UPDATE apc_log.packet_ids SET packet_hash = sha256('x')",
        "INSERT INTO apc_log.task_tallies (shard, run_id, task_id, evals) VALUES (0, 'run-1', 'task-1', 1)",
        "INSERT INTO apc_log.protocol_tasks VALUES ('p', 'run-1', 'task-1', '', 0)",
        "INSERT INTO apc_log.protocol_runs VALUES ('p', 'run-1', '', 0, now())",
        "INSERT INTO apc_log.run_changes VALUES ('run-1', 0, 1, now())",
        "INSERT INTO apc_log.run_blocks VALUES ('run-1', 0, 7)",
        "DELETE FROM apc_log.run_blocks",
        "INSERT INTO apc_log.summed_uses VALUES ('run-1', 'p', 'task-1', '{}', 1, 1, 1, 1)",
        "INSERT INTO apc_log.protocol_sums VALUES ('p', 'task-1', '{}', 1, 1, 1, 1, 1)",
    ],
)
async def test_each_is_found(exported: LogBench, act: str) -> None:
    assert await verify()
    await disable_guards(exported.pool)
    await exported.pool.execute(act)
    assert not await verify()


async def test_another_database_is_not_the_log_of_the_checkpoints(
    exported: LogBench,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = await postgres_server.clone()
    monkeypatch.setenv("APC_DATABASE_URL", postgres_server.url_of(name))
    with monkeypatch.context() as unguarded:
        unguarded.setattr(log_verification, "read_exported", lambda _: {})
        assert await verify(), "without the checkpoints an empty log is whole"
    assert not await verify()
    assert "the log only 0: its tail is cut" in capsys.readouterr().err
    await postgres_server.drop(name)


async def test_a_reader_may_verify(exported: LogBench) -> None:
    async with exported.pool.acquire() as connection:
        await connection.execute("SET SESSION AUTHORIZATION apc_reader")
        assert await list_shards(connection) == [0]
        assert await find_strays(connection) == []
        key = load_signer(exported.settings).public_key(0)
        assert (await verify_shard(connection, 0, key)).findings == []
        assert await compare_derived(connection) == []
        assert (await compare_sessions(connection, ())).findings == []
        await connection.execute("RESET SESSION AUTHORIZATION")


def test_what_is_not_covered_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_uncovered()
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == list(UNCOVERED)


async def test_an_export_says_what_its_bundle_does_not_hold(
    exported: LogBench, capsys: pytest.CaptureFixture[str]
) -> None:
    async with exported.pool.acquire() as connection:
        await say_uncovered(connection, "run-1", [])
        assert "not in the bundle" not in capsys.readouterr().err
        await disable_guards(exported.pool)
        await connection.execute("UPDATE apc_log.packet_ids SET packet_hash = sha256('x')")
        await say_uncovered(connection, "run-1", [])
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("not in the bundle, and not what the entries say: packet_ids ")]
