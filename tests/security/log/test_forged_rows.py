"""Rows that no gate sent: who can write the database puts them behind the head, and the log writer must not sign.

Each act first succeeds with the guard of it taken away: then the forgery is signed, and `verify` sees nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import AsyncMock, patch

import asyncpg
import pytest
from tests.support.log import LogBench, lifecycle, packet_entry

from apc_bus.settings import PersisterSettings
from apc_cli.doctor import Status
from apc_cli.doctor.log import look_at_evidence
from apc_log.entries import KINDS
from apc_log.merkle import Tree
from apc_log.offline_verifier import leaf_hash
from apc_persister.errors import EntryForeign, TreeBroken
from apc_persister.evidence import tree
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.rows import prepare_reader, read_entries
from apc_persister.evidence.tree import TreeSigner, load_tree
from apc_persister.verification import verify
from apc_persister.verification.verify import Report, verify_shard

FORGED_PACKET = """
INSERT INTO apc_log.agent_packets (
    shard, seq, epoch, batch_no, packet_id, packet_type, channel, run_phase, session_id, run_id, task_id,
    root_packet_id, sender_agent_id, sender_role, sender_swarm_id, recipients, generation, round, step, confidence,
    created_at, expires_at, judged_at, verdict, contract_hash, facts, body_stored, stored_hash, packet_hash, user_id)
SELECT shard, $1, epoch, batch_no, gen_random_uuid(), packet_type, channel, run_phase, session_id, run_id, task_id,
       root_packet_id, 'somebody-else', sender_role, sender_swarm_id, recipients, generation, round, step, confidence,
       created_at, expires_at, judged_at, verdict, contract_hash, facts, body_stored, stored_hash, packet_hash, user_id
FROM apc_log.agent_packets ORDER BY seq LIMIT 1
"""
FORGED_HOP = """
INSERT INTO apc_log.packet_events (shard, seq, epoch, batch_no, session_id, packet_id, recipient, attempt, from_state,
                                   to_state, events, occurred_at, actor)
SELECT shard, $1, epoch, batch_no, session_id, gen_random_uuid(), recipient, attempt, from_state, to_state, events,
       occurred_at, 'somebody-else'
FROM apc_log.packet_events ORDER BY seq LIMIT 1
"""
MOVE_HEAD = "UPDATE apc_log.shards SET next_seq = next_seq + $1 WHERE shard = 0"
SIGNED = "SELECT max(tree_size) FROM apc_log.log_checkpoints WHERE shard = 0"
SIGNER = load_signer(PersisterSettings())


async def log_packet(bench: LogBench) -> None:
    packet = packet_entry()
    await bench.gate.log([packet, *lifecycle(packet)])


@pytest.fixture
async def log(bench: LogBench) -> LogBench:
    """A log of four entries, all of them signed."""
    await bench.gate.open()
    await log_packet(bench)
    await bench.write()
    return bench


async def verified(log: LogBench) -> Report:
    async with log.pool.acquire() as connection:
        return await verify_shard(connection, 0, SIGNER.public_key(0))


async def forge(log: LogBench) -> None:
    """As the log writer's own role, without lifting a trigger: a packet and its hop behind the head."""
    async with log.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL SESSION AUTHORIZATION apc_writer")
        await connection.execute(FORGED_PACKET, 5)
        await connection.execute(FORGED_HOP, 6)
        await connection.execute(MOVE_HEAD, 2)


async def forge_with_leaves(log: LogBench) -> None:
    """As `forge`, and the tree's edge with it: it looks as if the rows had been taken into the tree."""
    await forge(log)
    async with log.pool.acquire() as connection, connection.transaction():
        await prepare_reader(connection)
        entries = {seq: text async for seq, text, _ in read_entries(connection, 0, [5, 6])}
        tree, _ = (await load_tree(connection, 0)).extend([leaf_hash(entries[seq]) for seq in (5, 6)])
        await connection.execute("SET LOCAL SESSION AUTHORIZATION apc_writer")
        await connection.execute(
            "UPDATE apc_log.log_edges SET tree_size = $1, hashes = $2 WHERE shard = 0", tree.size, list(tree.edge)
        )


def every_kind_is_believed() -> AbstractContextManager[object]:
    """Take the guard away: rows behind the checkpoint are signed whatever they are."""
    return patch.object(tree, "RECORDED_KINDS", tuple(KINDS))


def the_edge_is_believed() -> AbstractContextManager[object]:
    """Take the guard away: the stored edge is extended without a look at who signed it."""

    async def load(self: TreeSigner, connection: asyncpg.Connection) -> object:
        return await load_tree(connection, 0)

    return patch.object(tree.TreeSigner, "_load", load)


@contextmanager
def any_edge_is_believed() -> Iterator[None]:
    """Take both guards away: the edge is extended, no matter who signed it or whether a tree of its size has it."""
    with the_edge_is_believed(), patch.object(Tree, "is_well_formed", True):
        yield


async def test_forged_rows_are_signed_without_the_guard(log: LogBench) -> None:
    await forge(log)
    await log_packet(log)
    with every_kind_is_believed():
        await log.write()
        assert await log.pool.fetchval(SIGNED) == 10
        assert (await verified(log)).findings == []


async def test_forged_rows_stop_the_writer_and_are_named(log: LogBench) -> None:
    await forge(log)
    report = await verified(log)
    assert report.first is not None and report.first.seq == 5
    assert report.first.message == (
        "entry 5, behind the last checkpoint, is a row of agent_packets that came in no batch of a gate"
    )
    await log_packet(log)
    with pytest.raises(EntryForeign, match=r"log of shard 0 stopped: entry 5, .* a row of agent_packets"):
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 4


async def test_doctor_reports_forged_rows(log: LogBench) -> None:
    assert {(one.check, one.status) for one in await look_at_evidence(log.pool)} == {
        ("log end", Status.OK), ("registry", Status.OK), ("log tables", Status.OK)
    }  # fmt: skip
    await forge(log)
    wrong = [one for one in await look_at_evidence(log.pool) if one.status is Status.WRONG]
    assert {one.check for one in wrong} == {"log end"}
    assert "entry 5, behind the last checkpoint, is a row of agent_packets" in wrong[0].finding


async def test_forged_leaves_are_signed_without_the_guard(log: LogBench) -> None:
    await forge_with_leaves(log)
    await log_packet(log)
    with the_edge_is_believed():
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 10
    assert (await verified(log)).findings == []


async def test_forged_leaves_stop_the_writer(log: LogBench) -> None:
    await forge_with_leaves(log)
    assert (await verified(log)).findings
    assert [one for one in await look_at_evidence(log.pool) if one.status is Status.WRONG]
    await log_packet(log)
    with pytest.raises(TreeBroken, match="the stored tree of 6 entries is not the signed one of 4"):
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 4


ROOT_ALONE = "(SELECT array_agg(root_hash) FROM apc_log.log_checkpoints)"
"""One hash where there are four: the root over it is the signed one, and the tree behind it would be none."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("edge", ["'{}'", "ARRAY[''::bytea]", "ARRAY[sha256('x'), sha256('y')]", ROOT_ALONE])
async def test_an_edge_of_another_shape_stops_the_writer(log: LogBench, edge: str, is_guarded: bool) -> None:
    """Without the guards a head is signed to which no entries lead."""
    await log.pool.execute(f"UPDATE apc_log.log_edges SET hashes = {edge}")
    await log_packet(log)
    if not is_guarded:
        with any_edge_is_believed():
            await log.write()
        assert await log.pool.fetchval(SIGNED) == 8
        assert (await verified(log)).findings
        return
    with pytest.raises(TreeBroken, match="is not the signed one"):
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 4


async def test_an_edge_that_stands_for_its_root_has_the_signed_root(log: LogBench) -> None:
    """Behind one guard alone it passes: the signature is over the root, not over the shape."""
    await log.pool.execute(f"UPDATE apc_log.log_edges SET hashes = {ROOT_ALONE}")
    await log_packet(log)
    with patch.object(Tree, "is_well_formed", True):
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 8


@pytest.mark.parametrize("by", [1, 10, 60_000, 1 << 50])
async def test_a_head_that_was_moved_is_found(log: LogBench, by: int) -> None:
    await log.pool.execute(MOVE_HEAD, by)
    report = await verified(log)
    assert report.first is not None and report.first.seq == 5
    assert "entry 5, behind the last checkpoint, is missing" in report.first.message


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_writer_goes_on_behind_a_gap(log: LogBench, is_guarded: bool) -> None:
    """Numbers that no entry has: anyone who puts rows there later would find them signed over."""
    await log.pool.execute(MOVE_HEAD, 10)
    await log_packet(log)
    if not is_guarded:
        with any_edge_is_believed(), patch.object(tree, "_check", AsyncMock()):
            await log.write()
        assert await log.pool.fetchval(SIGNED) == 18
        return
    with pytest.raises(EntryForeign, match=r"entry 5, .* is missing"):
        await log.write()
    assert await log.pool.fetchval(SIGNED) == 4


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_fresh_log_is_not_begun_by_others(bench: LogBench, is_guarded: bool) -> None:
    """Where nothing is signed yet, there is nothing that vouches for a row either."""
    await bench.pool.execute("INSERT INTO apc_log.shards VALUES (0, 0, NULL, 0, 2)")
    await bench.pool.execute(
        "INSERT INTO apc_log.registry_events (shard, seq, epoch, batch_no, change_id, agent_id, change) "
        "VALUES (0, 1, 0, 0, gen_random_uuid(), 'mallory', '{}')"
    )
    if not is_guarded:
        await bench.gate.open()
        with every_kind_is_believed():
            await bench.write()
        assert await bench.pool.fetchval(SIGNED) == 1, "the forged entry"
        return
    async with bench.pool.acquire() as connection:
        report = await verify.verify_shard(connection, 0, SIGNER.public_key(0))
    assert report.first is not None and "entry 1" in report.first.message
    await bench.gate.open()
    with pytest.raises(EntryForeign, match=r"entry 1, .* a row of registry_events"):
        await bench.write()


async def test_what_the_guard_recorded_is_signed(log: LogBench) -> None:
    await log.pool.execute("SELECT apc_guard.maintain('an index')")
    await log_packet(log)
    await log.write()
    report = await verified(log)
    assert (report.findings, report.size) == ([], 9)


async def test_an_entry_of_the_guards_kind_is_inserted_without_the_guard(log: LogBench) -> None:
    async with log.pool.acquire() as connection:
        attempt = connection.transaction()
        await attempt.start()
        for (name,) in await connection.fetch("SELECT evtname FROM pg_event_trigger"):
            await connection.execute(f"ALTER EVENT TRIGGER {name} DISABLE")
        await connection.execute("ALTER TABLE apc_log.log_events DISABLE TRIGGER refuse_foreign_insert")
        await connection.execute("GRANT INSERT ON apc_log.log_events TO apc_writer")
        faults = [row[0] for row in await connection.fetch("SELECT fault FROM apc_guard.faults()")]
        await connection.execute("SET LOCAL SESSION AUTHORIZATION apc_writer")
        await connection.execute(
            "INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail) "
            "VALUES (0, 5, 1, 1, 'erasure', 'nobody', '{}')"
        )
        await attempt.rollback()
    assert faults == [
        "lacks trigger refuse_foreign_insert, or it was altered or disabled",
        "can be inserted into by apc_writer",
    ]
