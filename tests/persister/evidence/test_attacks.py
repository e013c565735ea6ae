"""Every attack of docs/explanation/threat-model.md and more, by a superuser: all are found, and a clean log raises
nothing.
"""

from collections.abc import Callable

import pytest
from tests.persister.evidence.conftest import WrittenLog
from tests.support.log import disable_guards

from apc_log.merkle import Tree
from apc_log.offline_verifier import leaf_hash
from apc_persister.evidence.rows import prepare_reader, read_entries, read_leaves
from apc_persister.verification import chunks

FORGED = "convert_to('{\"packet_id\": \"forged\"}', 'UTF8')"
SIMPLE_ATTACKS = {
    "edit": ("UPDATE apc_log.packet_events SET actor = 'somebody' WHERE seq = 302", 302),
    "edit of a fact": ("UPDATE apc_log.agent_packets SET facts = '{\"outstanding\": 4}' WHERE seq = 303", 303),
    "a refusal that says nothing": (
        "ALTER TABLE apc_log.agent_packets DROP CONSTRAINT agent_packets_check; "
        "UPDATE apc_log.agent_packets SET refusal = 'null' WHERE seq = 303",
        303,
    ),
    "metadata that say nothing": ("UPDATE apc_log.packet_events SET metadata = 'null' WHERE seq = 306", 306),
    "edit of a time by a microsecond": (
        "UPDATE apc_log.packet_events SET occurred_at[1] = occurred_at[1] + '1 microsecond' WHERE seq = 304",
        304,
    ),
    "edit of the body with its hashes": (
        f"UPDATE apc_log.agent_packets SET body_stored = {FORGED}, stored_hash = sha256({FORGED}), "
        f"packet_hash = sha256({FORGED}) WHERE seq = 303",
        303,
    ),
    "edit of the body alone": (
        "ALTER TABLE apc_log.agent_packets DROP CONSTRAINT agent_packets_check1; "
        f"UPDATE apc_log.agent_packets SET body_stored = {FORGED} WHERE seq = 303",
        303,
    ),
    "body without its hash": (
        "ALTER TABLE apc_log.agent_packets ALTER COLUMN stored_hash DROP NOT NULL; "
        "UPDATE apc_log.agent_packets SET stored_hash = NULL WHERE seq = 303",
        303,
    ),
    "delete": ("DELETE FROM apc_log.packet_events WHERE seq = 304", 304),
    "swap": (
        "WITH two AS (SELECT a.body_stored AS body_a, a.stored_hash AS hash_a, b.body_stored AS body_b, "
        "b.stored_hash AS hash_b FROM apc_log.agent_packets a, apc_log.agent_packets b "
        "WHERE a.seq = 303 AND b.seq = 307) "
        "UPDATE apc_log.agent_packets SET body_stored = CASE seq WHEN 303 THEN body_b ELSE body_a END, "
        "stored_hash = CASE seq WHEN 303 THEN hash_b ELSE hash_a END, "
        "packet_hash = CASE seq WHEN 303 THEN hash_b ELSE hash_a END FROM two WHERE seq IN (303, 307)",
        303,
    ),
    "insert at a taken number": (
        "INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail) "
        "VALUES (0, 302, 1, 1, 'k', 'a', '{}')",
        302,
    ),
    "insert at the end": (
        "INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail) "
        "VALUES (0, 607, 1, 1, 'k', 'a', '{}')",
        607,
    ),
    "cut of the rows alone": ("DELETE FROM apc_log.packet_events WHERE seq > 550", 551),
    "cut of the head": ("UPDATE apc_log.shards SET next_seq = 400", 400),
    "edit of a tile": (
        "UPDATE apc_log.log_tiles SET hashes = set_byte(hashes, 288, 255 - get_byte(hashes, 288)) WHERE index = 1",
        266,
    ),
    "tile emptied": (
        "ALTER TABLE apc_log.log_tiles DROP CONSTRAINT log_tiles_hashes_check; "
        "UPDATE apc_log.log_tiles SET hashes = '' WHERE index = 1",
        257,
    ),
    "tile without hashes": (
        "ALTER TABLE apc_log.log_tiles ALTER COLUMN hashes DROP NOT NULL; "
        "UPDATE apc_log.log_tiles SET hashes = NULL WHERE index = 1",
        257,
    ),
    "edit of the edge": (
        "UPDATE apc_log.log_edges SET hashes[1] = set_byte(hashes[1], 0, 255 - get_byte(hashes[1], 0))",
        513,
    ),
    "edit of a checkpoint": ("UPDATE apc_log.log_checkpoints SET root_hash = sha256('x') WHERE tree_size = 404", 203),
    "edit of a signature": (
        "UPDATE apc_log.log_checkpoints SET note = overlay(note placing 'AAAA' from length(note) - 20) "
        "WHERE tree_size = 404",
        203,
    ),
    "delete of the last checkpoint": ("DELETE FROM apc_log.log_checkpoints WHERE tree_size = 606", 405),
}


@pytest.fixture
async def attacked(written: WrittenLog, exercised: Callable[..., None]) -> WrittenLog:
    """A log whose guards a superuser has taken off; it is attacked once (matrix row 43)."""
    packets = await written.pool.fetchval("SELECT count(*) FROM apc_log.agent_packets")
    exercised("the log edited, cut, rewritten", packets=packets)
    await disable_guards(written.pool)
    return written


async def test_a_clean_log_raises_nothing(written: WrittenLog) -> None:
    for first in (1, 300, 606, 700):
        report = await written.verify(first=first)
        assert report.findings == []
    whole = await written.verify()
    assert (whole.entries, whole.checkpoints, whole.outside, whole.pending) == (606, 3, 3, 0)
    assert whole.root == written.outside[-1].root
    part = await written.verify(first=300)
    assert (part.entries, part.outside, part.root) == (606 - 256, 2, whole.root)


@pytest.mark.parametrize("attack", SIMPLE_ATTACKS)
async def test_a_change_is_found_and_named(attacked: WrittenLog, attack: str) -> None:
    change, seq = SIMPLE_ATTACKS[attack]
    await attacked.pool.execute(change)
    report = await attacked.verify()
    assert report.first is not None and report.first.seq == seq, report.findings
    assert (await attacked.verify(outside=False)).findings, "this one shows from inside too"


async def test_several_processes_say_the_same(
    written: WrittenLog, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 256)  # three pieces
    async with chunks.start_helpers(postgres_url, 2) as helpers:
        for first in (1, 300, 700):
            assert await written.verify(first=first, helpers=helpers) == await written.verify(first=first)
        await disable_guards(written.pool)
        for attack in ("edit", "edit of a signature", "insert at a taken number", "edit of a tile"):
            await written.pool.execute(SIMPLE_ATTACKS[attack][0])
            shared = await written.verify(helpers=helpers)
            assert shared.findings and shared == await written.verify()


async def test_an_edit_with_its_leaf(attacked: WrittenLog) -> None:
    """The attacker knows the format: the row fits its leaf, the tree above does not."""
    await attacked.pool.execute("UPDATE apc_log.packet_events SET actor = 'somebody' WHERE seq = 302")
    async with attacked.pool.acquire() as connection:
        await prepare_reader(connection)
        leaf = (await read_leaves(connection, 0, 302, 302)).hashes[0]
    await attacked.pool.execute(
        "UPDATE apc_log.log_tiles SET hashes = overlay(hashes placing $1 from $2) WHERE level = 0 AND index = 1",
        leaf,
        32 * (301 - 256) + 1,
    )
    report = await attacked.verify()
    assert report.first is not None
    assert report.first.seq == 203 and "an entry from 203 to 404 was changed" in report.first.message


async def test_a_tail_cut_with_everything_that_tells_of_it(attacked: WrittenLog) -> None:
    """What only a checkpoint held outside can tell."""
    for table in ("agent_packets", "packet_events", "coordination_events"):
        await attacked.pool.execute(f"DELETE FROM apc_log.{table} WHERE seq > 404")
    await attacked.pool.execute("UPDATE apc_log.shards SET next_seq = 405, batch_no = 2")
    await rebuild_tree(attacked, [202, 404])
    assert (await attacked.verify(outside=False)).findings == []
    report = await attacked.verify()
    assert report.first is not None and report.first.seq == 405 and "tail is cut" in report.first.message


async def test_a_log_rewritten_and_signed_again(attacked: WrittenLog) -> None:
    """With the signing key, from inside it looks as if it had always been so."""
    await attacked.pool.execute("UPDATE apc_log.packet_events SET actor = 'somebody' WHERE seq = 302")
    await rebuild_tree(attacked, [202, 404, 606])
    assert (await attacked.verify(outside=False)).findings == []
    report = await attacked.verify()
    assert report.first is not None and report.first.seq == 203
    assert "an entry from 203 to 404 was changed" in report.first.message


async def test_another_key(attacked: WrittenLog) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from apc_persister.evidence.checkpoint import Signer

    name = attacked.signer.public_key(0).name.rpartition("/")[0]
    own, attacked.signer = attacked.signer, Signer(Ed25519PrivateKey.generate(), name)
    await rebuild_tree(attacked, [202, 404, 606])
    attacked.signer = own
    assert (await attacked.verify(outside=False)).findings


async def rebuild_tree(written: WrittenLog, sizes: list[int]) -> None:
    """Tiles, edge and checkpoints again from the rows, signed with the available key."""
    for table in ("log_tiles", "log_checkpoints", "log_edges"):
        await written.pool.execute(f"DELETE FROM apc_log.{table}")
    tree = Tree()
    async with written.pool.acquire() as connection:
        await prepare_reader(connection)
        for size in sizes:
            entries = {n: text async for n, text, _ in read_entries(connection, 0, range(tree.size + 1, size + 1))}
            tree, tiles = tree.extend([leaf_hash(entries[seq]) for seq in sorted(entries)])
            for tile in tiles:
                await connection.execute(
                    "INSERT INTO apc_log.log_tiles VALUES (0, $1, $2, $3)", tile.level, tile.index, tile.hashes
                )
            note = written.signer.sign(0, size, tree.root)
            await connection.execute(
                "INSERT INTO apc_log.log_checkpoints VALUES (0, $1, $2, $3)", size, tree.root, note
            )
        await connection.execute("INSERT INTO apc_log.log_edges VALUES (0, $1, $2)", tree.size, list(tree.edge))
