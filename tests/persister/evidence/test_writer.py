"""The writer attests what it writes: rows, tiles and signed checkpoint in one transaction."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic

import asyncpg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support.log import LogBench, ScriptedGate, lifecycle, packet_entry, until

from apc_bus.database import open_pool
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import build_topology
from apc_log.batch import Entry
from apc_log.merkle import Tree
from apc_log.offline_verifier import parse_note, split_notes
from apc_persister.errors import LogStopped, PreviousKeyUnusable, TreeBroken
from apc_persister.evidence.checkpoint import Signer, ensure_key, load_signer
from apc_persister.evidence.rows import prepare_reader, read_leaves
from apc_persister.verification.verify import Report, verify_shard

KEY = load_signer(PersisterSettings()).public_key(0)


BY_GUARD = "SELECT apc_guard.record('maintenance', '{\"a\": 1.50}')"
"""An entry as an erasure or a maintenance writes it."""
IS_CHECKPOINTED = "SELECT max(tree_size) >= $1 FROM apc_log.log_checkpoints"


async def verify(pool: asyncpg.Pool) -> Report:
    async with pool.acquire() as connection:
        return await verify_shard(connection, 0, KEY)


async def log_packets(bench: LogBench, count: int) -> None:
    packets = [packet_entry() for _ in range(count)]
    entries: list[Entry] = []
    for packet in packets:
        entries += [packet, *lifecycle(packet)]
    await bench.gate.log(entries)


async def test_every_transaction_has_its_checkpoint(bench: LogBench) -> None:
    await bench.gate.open()
    for count in (1, 70, 3):
        await log_packets(bench, count)
        await bench.write()
    notes = await bench.pool.fetch("SELECT tree_size, root_hash, note FROM apc_log.log_checkpoints ORDER BY tree_size")
    async with bench.pool.acquire() as connection:
        await prepare_reader(connection)
        leaves = (await read_leaves(connection, 0, 1, 296)).hashes
    assert [row["tree_size"] for row in notes] == [4, 284, 296]
    for row in notes:
        checkpoint = parse_note(row["note"]).check(KEY)
        assert checkpoint.origin == KEY.name
        assert checkpoint.root == row["root_hash"] == Tree().extend(leaves[: row["tree_size"]])[0].root
    assert await bench.pool.fetchval("SELECT hashes FROM apc_log.log_tiles WHERE level = 0") == b"".join(leaves[:256])
    report = await verify(bench.pool)
    assert (report.findings, report.entries, report.checkpoints) == ([], 296, 3)


async def test_entries_of_the_guard_are_taken_along_by_the_next_batch(bench: LogBench) -> None:
    await bench.gate.open()
    await log_packets(bench, 80)
    await bench.write()
    for _ in range(3):
        await bench.pool.execute(BY_GUARD)
    waiting = await verify(bench.pool)
    assert (waiting.findings, waiting.pending) == ([], 3)
    await log_packets(bench, 2)
    await bench.write()
    report = await verify(bench.pool)
    assert (report.findings, report.size, report.pending) == ([], 331, 0)


async def test_an_entry_of_the_guard_on_an_idle_log_is_attested_and_exported(bench: LogBench, tmp_path: Path) -> None:
    bench.settings = PersisterSettings(checkpoints_url=str(tmp_path), checkpoint_interval=timedelta(milliseconds=10))
    await bench.gate.open()
    await log_packets(bench, 1)
    await bench.write()
    async with bench.writing() as persister:
        for size in (5, 6):
            await bench.pool.execute(BY_GUARD)
            await until(partial(bench.pool.fetchval, IS_CHECKPOINTED, size))
        # The writer goes on behind them.
        await log_packets(bench, 1)
        await until(lambda: persister.writers[0].counts.messages == 1)
    report = await verify(bench.pool)
    assert (report.findings, report.size, report.pending) == ([], 10, 0)
    held = split_notes((tmp_path / "shard-0.checkpoints").read_text(encoding="utf-8"))
    assert [parse_note(text).check(KEY).size for text in held] == [4, 5, 6, 10]


def test_two_installations_have_logs_of_two_names() -> None:
    here, there = (Signer(Ed25519PrivateKey.generate(), None).public_key(3) for _ in range(2))
    assert here.name != there.name
    assert re.fullmatch(r"apc-log-[0-9a-f]{16}/3", here.name)
    assert load_signer(PersisterSettings(log_name="example.org/log")).public_key(3).name == "example.org/log/3"


async def test_a_log_that_was_given_another_key(bench: LogBench, tmp_path: Path) -> None:
    await bench.gate.open()
    await log_packets(bench, 1)
    await bench.write()
    name = KEY.name.rpartition("/")[0]
    settings = PersisterSettings(log_key=None, log_key_file=tmp_path / "new.pem", log_name=name)
    assert ensure_key(settings)
    bench.settings = settings
    await log_packets(bench, 1)
    with pytest.raises(TreeBroken, match=r"the last checkpoint cannot be trusted: .* is not signed by"):
        await bench.write()
    bench.settings = settings.model_copy(update={"log_previous_keys": str(KEY)})
    await bench.write()
    new = load_signer(settings).public_key(0)
    async with bench.pool.acquire() as connection:
        both = await verify_shard(connection, 0, new, older=[KEY])
        assert (both.findings, both.checkpoints, both.size) == ([], 2, 8)
        for one, of_the_other in ((new, 4), (KEY, 8)):
            [finding] = (await verify_shard(connection, 0, one)).findings
            assert f"stored checkpoint of {of_the_other} entries" in finding.message
            assert "is not signed by" in finding.message


def test_a_previous_key_that_is_none_is_named() -> None:
    with pytest.raises(PreviousKeyUnusable, match=r"APC_LOG_PREVIOUS_KEYS: not an Ed25519 key .*: 'mine'"):
        load_signer(PersisterSettings(log_previous_keys="mine"))


async def test_a_row_that_is_missing_stops_the_writer(bench: LogBench) -> None:
    await bench.gate.open()
    await log_packets(bench, 1)
    await bench.write()
    await bench.pool.execute("UPDATE apc_log.shards SET next_seq = next_seq + 1")
    await log_packets(bench, 1)
    with pytest.raises(TreeBroken, match="entry 5, behind the last checkpoint, is missing"):
        await bench.write()
    await bench.pool.execute("UPDATE apc_log.shards SET next_seq = 3")
    with pytest.raises(LogStopped, match="the tree has 4 entries and the log 2"):
        await bench.write()


async def test_an_entry_without_a_canonical_form_becomes_a_conflict(bench: LogBench) -> None:
    packet = packet_entry()
    values = {name: getattr(packet, name) for name in type(packet).__struct_fields__}
    await bench.gate.open()
    await bench.gate.log([type(packet)(**{**values, "confidence": float("nan")}), packet_entry()])
    await bench.write()
    assert await bench.count("agent_packets") == await bench.count("packet_conflicts") == 1
    assert (await verify(bench.pool)).findings == []


SERVE = """
import asyncio
from apc_bus.database import open_pool
from apc_bus.rabbit import connect_rabbit
from apc_persister import PersisterSettings, serve_persister

async def main():
    settings = PersisterSettings()
    pool = await open_pool(settings.database_url.get_secret_value())
    await serve_persister(settings, await connect_rabbit(settings), pool, asyncio.Event())

asyncio.run(main())
"""


async def test_killed_after_signing(
    amqp_vhost_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, exercised: Callable[..., None]
) -> None:
    """Matrix row 45: killed with -9 between signing and commit, another writer goes on: one root for each size."""
    await apply_rabbit(amqp_vhost_url, build_topology())
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    bus, pool = await connect_rabbit(BusSettings()), await open_pool(postgres_url)
    bench = LogBench(ScriptedGate(bus), bus, pool)
    await bench.gate.open()
    for _ in range(5):
        await log_packets(bench, 2)
    environment = {**os.environ, "APC_CRASH_AT": "persister.after_signing:3", "APC_DATABASE_URL": postgres_url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, stdout=PIPE, stderr=PIPE, env={**environment, "APC_TRANSACTION_ENTRIES": "1"}
    )
    output, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, (output + errors).decode()
    before = await bench.count("log_checkpoints")
    assert before == 2, "the third was signed and not committed"
    bench.settings = PersisterSettings(transaction_entries=1)
    repaired_at = monotonic()
    async with bench.writing():
        await until(bench.has_rows("log_checkpoints", 5))
        recovery = monotonic() - repaired_at
    exercised(
        "SIGKILL in signing a checkpoint",
        packets=10,
        lost=10 - await pool.fetchval("SELECT count(DISTINCT packet_id) FROM apc_log.agent_packets"),
        doubled=await bench.count("agent_packets") - 10,
        recovery_seconds=recovery,
    )
    rows = await pool.fetch("SELECT tree_size, note FROM apc_log.log_checkpoints ORDER BY tree_size")
    heads = [parse_note(row["note"]).check(KEY) for row in rows]
    assert [head.size for head in heads] == [8, 16, 24, 32, 40]
    assert (await verify(pool)).findings == []
    await pool.close()
    await bus.close()
