"""Segments of a log in an archive: written once, read back, verified without the database, read as the database is."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import psutil
import pytest
from tests.support.log.archived import APPROVAL, ArchivedLog
from tests.support.waiting import until

from apc_log import cold_verification
from apc_log.archive import BLOCK, parse_manifest
from apc_log.cold import open_cold, prove_cold, stale_in, state_in, transitions_in
from apc_log.cold_verification import verify_cold
from apc_log.errors import ArchiveDiffers, ArchiveUnavailable
from apc_log.offline_verifier import CheckFailed, PublicKey, check_file
from apc_persister.archiving import archive_segment
from apc_persister.errors import TreeBroken

pytestmark = pytest.mark.postgres


def to_text(proof: dict[str, Any]) -> str:
    return orjson.dumps(proof).decode()


def stranger(archived: ArchivedLog) -> PublicKey:
    """Return another key under the log's name."""
    return PublicKey(archived.key.name, bytes(32))


async def note_of(archived: ArchivedLog, size: int) -> str:
    connection = await asyncpg.connect(archived.url)
    note: str = await connection.fetchval("SELECT note FROM apc_log.log_checkpoints WHERE tree_size = $1", size)
    await connection.close()
    return note


async def test_an_auditor_verifies_the_archive_without_the_database(archived: ArchivedLog) -> None:
    report = await verify_cold(archived.archive(), archived.key, checkpoints=archived.checkpoints)
    assert report.findings == []
    assert (report.segments, report.entries, report.size) == (2, 2 * BLOCK, 2 * BLOCK)
    within = [one.size for one in archived.checkpoints if one.size <= 2 * BLOCK]
    assert report.compared == len(within)
    assert report.proven >= within[-1]


async def test_processes_find_what_threads_find(
    archived: ArchivedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long archive is verified by processes; a finding keeps its place."""
    shutil.copytree(archived.folder, tmp_path / "copy")
    copy = archived.at(tmp_path / "copy")
    path = copy.folder / copy.manifests[1].place / "hop.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"2")
    found, others = [], helpers()
    for entries in (1 << 30, BLOCK // 2):
        monkeypatch.setattr(cold_verification, "_WORTH_A_PROCESS", entries)
        found.append(await verify_cold(copy.archive(), archived.key, checkpoints=archived.checkpoints))
    assert found[0] == found[1]
    assert [(one.segment, one.name) for one in found[1].findings] == [(copy.manifests[1].place, "hop.parquet")]
    assert helpers() <= others


def helpers() -> set[psutil.Process]:
    """Return the processes that verify, and those of tests before; the tracker of resources stays for others."""
    return {one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())}


async def test_a_process_that_is_killed_is_a_finding_for_each_segment_that_it_had(
    archived: ArchivedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = helpers()
    monkeypatch.setattr(cold_verification, "_WORTH_A_PROCESS", BLOCK // 2)
    verifying = asyncio.create_task(verify_cold(archived.archive(), archived.key))
    await until(lambda: helpers() - others)
    for one in helpers() - others:
        one.kill()
    report = await verifying
    assert {(one.seq, one.name, one.message) for one in report.findings} == {
        (first, None, "it was not verified: one of the processes that verify was killed") for first in (1, BLOCK + 1)
    }
    assert helpers() <= others


async def test_a_checkpoint_below_the_archive_proves_all_of_it(archived: ArchivedLog) -> None:
    """Who kept no checkpoint has the signed ones of the manifests, which the holder of the key can make again."""
    report = await verify_cold(archived.archive(), archived.key)
    assert (report.findings, report.compared, report.proven) == ([], 0, 0)
    assert report.size == 2 * BLOCK


async def test_an_approval_two_segments_old_is_proven_from_the_bucket(archived: ArchivedLog) -> None:
    async with open_cold(archived.archive(), archived.manifests) as cold:
        (found,) = await cold.find_packet(APPROVAL)
    proof = await prove_cold(archived.archive(), archived.key, found["seq"])
    said = check_file([to_text(proof)], [archived.key])
    assert f"APPROVAL {APPROVAL}" in said[1]
    for kept in archived.checkpoints[:40:7]:
        note = await note_of(archived, kept.size)
        if found["seq"] <= kept.size <= 2 * BLOCK:
            proof = await prove_cold(archived.archive(), archived.key, found["seq"], note)
            assert check_file([to_text(proof)], [archived.key])[1:] == said[1:]
    with pytest.raises(CheckFailed, match="not signed by"):
        await prove_cold(archived.archive(), stranger(archived), found["seq"])


async def test_the_same_segment_is_written_again_with_the_same_bytes(archived: ArchivedLog, tmp_path: Path) -> None:
    copy = archived.at(tmp_path / "again")
    connection = await asyncpg.connect(archived.url)
    assert await archive_segment(connection, copy.archive(), 0, 1, BLOCK) == archived.manifests[0]
    assert await archive_segment(connection, copy.archive(), 0, 1, BLOCK) == archived.manifests[0]
    await connection.close()


async def test_a_run_goes_on_where_one_was_killed(archived: ArchivedLog, tmp_path: Path) -> None:
    """Some objects are written: the next run compares them and writes the rest; it stops at other bytes."""
    manifest = archived.manifests[0]
    connection = await asyncpg.connect(archived.url)
    for kept in range(len(manifest.objects)):
        copy = archived.at(tmp_path / str(kept))
        shutil.copytree(archived.folder / manifest.place, copy.folder / manifest.place)
        (copy.folder / manifest.place / "manifest.json").unlink()
        for one in manifest.objects[kept:]:
            (copy.folder / manifest.place / one.name).unlink()
        if kept % 3 == 0:
            assert await archive_segment(connection, copy.archive(), 0, 1, BLOCK) == manifest
    torn = tmp_path / "1" / manifest.place / "packet.parquet"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(ArchiveDiffers, match=r"packet\.parquet: it was written before, with other bytes"):
        await archive_segment(connection, archived.at(tmp_path / "1").archive(), 0, 1, BLOCK)
    await connection.close()


@pytest.mark.parametrize("last", [BLOCK - 1, BLOCK + 1])
async def test_a_segment_has_whole_blocks(archived: ArchivedLog, last: int) -> None:
    connection = await asyncpg.connect(archived.url)
    with pytest.raises(ValueError, match="whole blocks"):
        await archive_segment(connection, archived.archive(), 0, 1, last)
    await connection.close()


async def test_a_range_of_three_halves_and_more_folds_as_rfc_6962_says(archived: ArchivedLog, tmp_path: Path) -> None:
    """A migrated log is archived by ranges that are no powers of two."""
    copy = archived.at(tmp_path / "ranges")
    connection = await asyncpg.connect(archived.url)
    manifest = await archive_segment(connection, copy.archive(), 0, 1, 2 * BLOCK)
    await connection.close()
    assert manifest.subtrees == (archived.manifests[0].root, archived.manifests[1].root)
    report = await verify_cold(copy.archive(), archived.key, checkpoints=archived.checkpoints)
    assert (report.findings, report.segments, report.size) == ([], 1, 2 * BLOCK)


async def test_what_the_tree_does_not_have_is_not_archived(archived: ArchivedLog, tmp_path: Path) -> None:
    """An entry that was changed in the database differs from its leaf; without the change it is archived."""
    connection = await asyncpg.connect(archived.url)
    transaction = connection.transaction()
    await transaction.start()
    for row in await connection.fetch("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'apc_guard_%'"):
        await connection.execute(f"ALTER EVENT TRIGGER {row[0]} DISABLE")
    for table in ("agent_packets", "agent_packets_0_1"):
        await connection.execute(f"ALTER TABLE apc_log.{table} DISABLE TRIGGER ALL")
    await connection.execute("UPDATE apc_log.agent_packets SET verdict = 'held' WHERE packet_id = $1", APPROVAL)
    with pytest.raises(TreeBroken, match="entry 1 is missing, or differs from its leaf"):
        await archive_segment(connection, archived.at(tmp_path).archive(), 0, 1, BLOCK)
    await transaction.rollback()
    await connection.close()
    assert not (tmp_path / archived.manifests[0].place).exists()


async def test_a_manifest_has_one_spelling(archived: ArchivedLog) -> None:
    for manifest in archived.manifests:
        assert parse_manifest(manifest.text, manifest.origin, manifest.first) == manifest
        with pytest.raises(ArchiveDiffers, match="one spelling"):
            parse_manifest(manifest.text + b"\n", manifest.origin, manifest.first)
        with pytest.raises(ArchiveDiffers, match=r"it is the manifest of the segment from entry"):
            parse_manifest(manifest.text, manifest.origin, manifest.first + BLOCK)


async def test_rows_are_those_of_the_database(archived: ArchivedLog) -> None:
    connection = await asyncpg.connect(archived.url)
    await connection.execute("SET TIME ZONE 'UTC'")
    last = 2 * BLOCK
    async with open_cold(archived.archive(), archived.manifests) as cold:
        wanted = await connection.fetch(
            "SELECT *, body_stored AS body, refusal::text AS refusal_text FROM apc_log.agent_packets "
            "WHERE run_id = 'run-1' AND seq <= $1 ORDER BY seq",
            last,
        )
        found = await cold.packets(run_id="run-1", limit=10_000)
        assert [row["seq"] for row in found] == [row["seq"] for row in wanted]
        for row, record in zip(wanted, found, strict=True):
            same(record, dict(row))
        sessions = [f"session-of-run-{number}" for number in range(3)]
        for table, records in (
            ("packet_events", await cold.hops(session_ids=sessions)),
            ("coordination_events", await cold.moves(sessions)),
            ("packet_conflicts", await cold.conflicts(session_ids=sessions)),
            ("packet_lineage", await cold.lineage([(row["session_id"], row["packet_id"]) for row in wanted])),
        ):
            rows = await connection.fetch(
                f"SELECT * FROM apc_log.{table} WHERE session_id = ANY ($1) AND seq <= $2 ORDER BY seq", sessions, last
            )
            if table == "packet_lineage":
                rows = [row for row in rows if row["session_id"] == "session-of-run-1"]
            assert [record["seq"] for record in records] == [row["seq"] for row in rows]
            assert records
            for row, record in zip(rows, records, strict=True):
                same(record, dict(row))
    await connection.close()


async def test_a_session_is_replayed_in_the_order_of_the_log(archived: ArchivedLog) -> None:
    async with open_cold(archived.archive(), archived.manifests) as cold:
        seqs = [record["seq"] async for part in cold.replayed("session-of-run-2") for record in part]
    connection = await asyncpg.connect(archived.url)
    rows = await connection.fetch(
        "SELECT seq FROM apc_log.agent_packets WHERE session_id = $1 UNION ALL "
        "SELECT seq FROM apc_log.packet_events WHERE session_id = $1 UNION ALL "
        "SELECT seq FROM apc_log.coordination_events WHERE session_id = $1 ORDER BY 1",
        "session-of-run-2",
    )
    await connection.close()
    assert seqs == [row["seq"] for row in rows if row["seq"] <= 2 * BLOCK]


async def test_states_and_transitions_are_those_of_the_views(archived: ArchivedLog) -> None:
    """Of a packet whose hops are all archived; the log ends behind the second segment."""
    session, last = "session-of-run-0", 2 * BLOCK
    connection = await asyncpg.connect(archived.url)
    await connection.execute("SET TIME ZONE 'UTC'")
    transitions = await connection.fetch(
        "SELECT * FROM apc_log.packet_transitions WHERE session_id = $1 AND seq <= $2 ORDER BY seq, ordinal",
        session,
        last,
    )
    rows = await connection.fetch("SELECT packet_id, state FROM apc_log.packet_state WHERE seq < $1", BLOCK)
    states = {row["packet_id"]: row["state"] for row in rows}
    stale = await connection.fetch(
        "SELECT * FROM apc_log.packet_stale WHERE session_id = $1 AND seq <= $2", session, last
    )
    await connection.close()
    async with open_cold(archived.archive(), archived.manifests) as cold:
        hops = await cold.hops(session_ids=[session])
        packets = await cold.packets(session_id=session, limit=100_000)
    found = transitions_in(hops)
    assert len(found) == len(transitions) > 100
    for record, row in zip(found, transitions, strict=True):
        same(record, dict(row))
    of_packet: dict[object, list[dict[str, Any]]] = {}
    for hop in hops:
        of_packet.setdefault(hop["packet_id"], []).append(hop)
    compared = {
        row["packet_id"]: state_in(row["recipients"], of_packet.get(row["packet_id"], []))
        for row in packets
        if row["packet_id"] in states
    }
    assert compared == {packet_id: states[packet_id] for packet_id in compared}
    assert len(set(compared.values())) > 2
    assert {key: marked[0] for key, marked in stale_in(hops).items()} == {
        (row["session_id"], row["packet_id"]): row["because_packet_id"] for row in stale
    }
    assert stale


async def test_pages_and_filters(archived: ArchivedLog) -> None:
    async with open_cold(archived.archive(), archived.manifests) as cold:
        whole = await cold.packets(limit=100_000)
        paged: list[int] = []
        after = None
        while page := await cold.packets(after=after, limit=97):
            paged += [row["seq"] for row in page]
            after = page[-1]["shard"], page[-1]["seq"]
        assert paged == [row["seq"] for row in whole]
        newest = await cold.packets(newest=True, limit=50)
        assert [row["seq"] for row in newest] == paged[::-1][:50]
        filters: list[dict[str, Any]] = [{"packet_type": "CLAIM"}, {"verdict": "refused"}, {"task_id": "task-3"}]
        for given in filters:
            ((name, value),) = given.items()
            found = await cold.packets(limit=100_000, **given)
            assert [row["seq"] for row in found] == [row["seq"] for row in whole if row[name] == value]
        to_first = await cold.packets(limit=100_000, recipient="receiver-1")
        assert [row["seq"] for row in to_first] == [row["seq"] for row in whole if "receiver-1" in row["recipients"]]
        (one,) = await cold.packets(packet_id=APPROVAL)
        assert one["packet_type"] == "APPROVAL"
        with pytest.raises(TypeError, match="no such filter: color"):
            await cold.packets(color="red")
        found = await cold.search("WORD17 GRÜß", run_id="run-1", limit=5)
        assert found and all(row["run_id"] == "run-1" for row in found)
        below = await cold.children(whole[0]["session_id"], [row["packet_id"] for row in whole])
        assert below and {row["edge"] for row in below} == {"cause"}
        child = below[0]
        resting = await cold.resting_on(child["session_id"], [child["parent_packet_id"]], [])
        assert child["packet_id"] in {row["packet_id"] for row in resting}
        artifact = next(row for row in whole if row["packet_type"] == "ARTIFACT" and row["verdict"] == "accepted")
        name = orjson.loads(artifact["body"])["payload"]["artifact_hash"]
        resting = await cold.resting_on(artifact["session_id"], [], [name])
        assert artifact["packet_id"] in {row["packet_id"] for row in resting}
        assert all(row["refers_to"] == row["defines"] == [name] for row in resting)
        assert any(
            row["defines"]
            for row in await cold.with_names(
                whole[3]["session_id"], [row["packet_id"] for row in whole if row["packet_type"] == "CLAIM"]
            )
        )
        assert sum((await cold.tally("packets")).values()) == len(whole)


async def test_an_absent_object_is_an_error_and_never_fewer_rows(archived: ArchivedLog, tmp_path: Path) -> None:
    copy = archived.at(tmp_path / "copy")
    shutil.copytree(archived.folder, copy.folder)
    second = archived.manifests[1]
    (copy.folder / second.place / "hop.parquet").unlink()
    async with open_cold(copy.archive(), archived.manifests) as cold:
        assert await cold.packets(run_id="run-1")
        said = r"ARCHIVE_UNAVAILABLE: log/.*/hop\.parquet: it is missing"
        with pytest.raises(ArchiveUnavailable, match=said) as caught:
            await cold.hops(session_ids=["session-of-run-1"])
    assert (caught.value.segment, caught.value.name) == (second.place, "hop.parquet")
    async with open_cold(copy.archive(), archived.manifests[:1]) as cold:
        assert await cold.hops(session_ids=["session-of-run-1"]), "the other segment has all that it needs"


def same(record: dict[str, object], row: dict[str, object]) -> None:
    """Compare a record of the archive with a row of the database, column by column."""
    for name in record.keys() & row.keys():
        if name in ("facts", "refusal", "metadata") and row[name] is not None:
            assert orjson.loads(str(record[name])) == orjson.loads(str(row[name])), name
        else:
            assert record[name] == row[name], name
    missing = row.keys() - record.keys() - {"body_stored", "refusal_text", "entry_version", "refers_to", "defines"}
    assert missing == set()
