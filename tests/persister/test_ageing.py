"""Segments age: archived, recorded, let go of; what must stay does, and the log verifies at each step."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from prometheus_client import REGISTRY
from tests.support.log.archived import write_segments
from tests.support.waiting import until

from apc_bus.database import open_pool
from apc_bus.settings import ArchiveSettings
from apc_contracts.contract.contract import load_contract, packaged_contract_bytes
from apc_log.archive import BLOCK, Archive, place_of
from apc_log.cold_verification import verify_cold
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import Reach, released_in
from apc_log.offline_verifier import PublicKey, parse_note
from apc_log.placement import LogDatabases
from apc_log.queries.packets import trace
from apc_log.queries.search import read_lag
from apc_log.thawing import read_archive
from apc_persister import follower
from apc_persister.ageing import Ageing, Archiver, Policy, PolicyUnusable, Step, load_policy
from apc_persister.errors import ProjectionIncomplete, RebuildImpossible
from apc_persister.follower import PROJECTIONS, Follower, Projection
from apc_persister.rebuild import rebuild_projections
from apc_persister.service import LogRoom
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.verify import Report, verify_shard

NOW = Policy(release_after=timedelta(0))
FORBIDDEN = (
    "UPDATE apc_guard.segments SET state = 'open'",
    "SELECT apc_guard.record('segment', '{}')",
    "SELECT apc_guard.record_in(0, 'segment', '{}')",
    "SELECT apc_guard.open_segment(0, 1048577, 1114112)",
    "SELECT apc_guard.drop_table('agent_packets_0_65537')",
    "SELECT apc_guard.attach('apc_log.sessions', 'apc_log.agent_packets', '')",
    "DELETE FROM apc_log.agent_packets",
    "DROP TABLE apc_log.agent_packets_0_65537",
    "INSERT INTO apc_guard.maintenance (actor, reason) VALUES ('', 'x')",
)
"""What the guard alone does."""


class AgeingLog:
    """A log of two full segments, and its archive in a folder."""

    def __init__(self, connection: asyncpg.Connection, archive: Archive, key: PublicKey) -> None:
        self.connection = connection
        self.archive = archive
        self.key = key

    async def age(self, policy: Policy = NOW) -> list[Step]:
        """Look at every segment once."""
        return [step async for step in Ageing(self.connection, self.archive, policy).run()]

    async def export(self) -> None:
        """Say that the newest checkpoint was exported."""
        await self.connection.execute(
            "INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) "
            "SELECT 0, 'held', next_seq FROM apc_log.shards "
            "ON CONFLICT (shard, target) DO UPDATE SET tree_size = excluded.tree_size"
        )

    async def states(self) -> list[str]:
        """The states of the segments."""
        return [row[0] for row in await self.connection.fetch("SELECT state FROM apc_log.segments ORDER BY first_seq")]

    async def verify(self) -> Report:
        """Verify what the database has."""
        return await verify_shard(self.connection, 0, self.key)

    async def packets(self, last: int = 65536) -> int:
        """Packets up to an entry."""
        count: int = await self.connection.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE seq <= $1", last)
        return count


_SESSIONS = """
INSERT INTO apc_log.sessions (session_id, shard, epoch, batch_no, run_id, state, is_terminal, round, generation, step,
                              open_deliveries, document, first_seq, last_seq)
SELECT session_id, 0, 1, 1, min(run_id), 'CLOSED', true, 0, 0, 0, 0, '{}', min(seq), max(seq)
FROM apc_log.agent_packets WHERE session_id <> '_presence' GROUP BY session_id
"""


@pytest.fixture
async def ageing(postgres_url: str, tmp_path: Path) -> AsyncIterator[AgeingLog]:
    """A log that nothing was archived of yet."""
    name, key, _ = await write_segments(postgres_url)
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=2)
    await Follower(pool).catch_up()
    await pool.close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(_SESSIONS)
    yield AgeingLog(connection, Archive(tmp_path / "archive", name, cache=tmp_path / "cache"), key)
    await connection.close()


@pytest.mark.long
async def test_a_segment_is_archived_recorded_and_let_go_of(ageing: AgeingLog) -> None:
    steps = await ageing.age()
    assert [step.done for step in steps] == ["archived", "waits", "archived", "waits"]
    assert "no exported checkpoint covers its record" in steps[1].detail
    before = await ageing.packets()
    await ageing.export()

    steps = await ageing.age()

    assert [step.done for step in steps] == ["released", "released"]
    assert await ageing.states() == ["released", "released", "open"]
    assert await ageing.packets() < before
    assert await ageing.connection.fetch("SELECT * FROM apc_guard.faults()") == []
    leftover = "SELECT relname FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relname ~ '_0_1$'"
    assert await ageing.connection.fetch(leftover) == []
    report = await ageing.verify()
    assert (report.findings, report.released) == ([], 2 * 65536)
    assert [one for one in await compare_derived(ageing.connection) if "is said to be" in one.message] == []
    assert await ageing.age() == []
    with pytest.raises(RebuildImpossible, match="segments were released"):
        await rebuild_projections(ageing.connection)


@pytest.mark.long
async def test_what_is_open_held_or_counted_stays(ageing: AgeingLog) -> None:
    connection = ageing.connection
    sessions = [row[0] for row in await connection.fetch("SELECT session_id FROM apc_log.sessions ORDER BY first_seq")]
    assert len(sessions) >= 2
    await connection.execute("UPDATE apc_log.sessions SET is_terminal = false WHERE session_id = $1", sessions[0])
    hold = await connection.fetchval("SELECT apc_guard.hold($1, NULL, NULL, 'a dispute', NULL)", sessions[1])
    counted = "SELECT session_id, packet_type, seq FROM apc_log.agent_packets WHERE seq <= 65536 ORDER BY seq"
    before = await connection.fetch(counted)
    ledger = await connection.fetch("SELECT * FROM apc_log.decay_decisions ORDER BY shard, seq")
    assert len(ledger) > 4 and ledger[0]["seq"] <= 65536
    await ageing.age()
    await ageing.export()

    assert [step.done for step in await ageing.age()] == ["released", "released"]

    def stays(row: asyncpg.Record) -> bool:
        return row["session_id"] in sessions[:2] or row["packet_type"] in ("TRANSFER", "EVAL", "DECISION")

    assert await connection.fetch(counted) == [row for row in before if stays(row)]
    assert await connection.fetch("SELECT * FROM apc_log.decay_decisions ORDER BY shard, seq") == ledger
    ids = "SELECT count(*) FROM apc_log.packet_ids WHERE seq <= 65536"
    assert await connection.fetchval(ids) == await ageing.packets()
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="have to stay"):
        await connection.fetchval("SELECT apc_guard.expire(0, 1)")
    await connection.execute("SELECT apc_guard.lift_hold($1)", hold)
    told = await connection.fetch("SELECT detail FROM apc_log.log_events WHERE kind = 'hold' ORDER BY seq")
    assert len(told) == 2
    assert (await ageing.verify()).findings == []


@pytest.mark.long
async def test_a_state_that_no_entry_tells_is_found(ageing: AgeingLog) -> None:
    """Who can write the guard's table could hide rows by it: that a segment was let go of stands in the signed log."""
    connection = ageing.connection
    untold = [one for one in await compare_derived(connection) if "is said to be" in one.message]
    assert untold == []
    await connection.execute("UPDATE apc_guard.segments SET state = 'released' WHERE first_seq = 1")
    untold = [one for one in await compare_derived(connection) if "is said to be released" in one.message]
    assert [(one.shard, one.seq, one.place) for one in untold] == [(0, 1, "segments 1")]


async def refuse_records(connection: asyncpg.Connection, root: bytes, manifest: str) -> None:
    """Try to record a segment without the digest of its manifest, or with a summary that readers cannot take."""
    wrong = ((None, "{}"), (manifest, None), (manifest, '{"bytes": "x"}'), (manifest, '{"bytes": 1e300}'))
    for digest, summary in wrong:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="SHA-256 of its manifest and a summary"):
            await connection.fetchval("SELECT apc_guard.record_segment(0, 1, $1, $2, $3)", root, digest, summary)


@pytest.mark.long
async def test_what_the_guard_refuses_of_an_archiver(ageing: AgeingLog, postgres_url: str) -> None:
    """Each refusal, and that the same call works when its reason is gone."""
    connection = ageing.connection
    manifest = "a" * 64
    record = "SELECT apc_guard.record_segment(0, $1, $2, $3, '{}')"
    root = await connection.fetchval("SELECT apc_guard.segment_root(0, 1, 65536)")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="33 bytes are not hashes"):
        await connection.fetchval("SELECT apc_guard.fold($1)", bytes(33))
    await connection.execute("SET SESSION AUTHORIZATION apc_archiver")
    await refuse_records(connection, root, manifest)
    with pytest.raises(asyncpg.DataError, match="root of the segment from entry 1"):
        await connection.fetchval(record, 1, b"\0" * 32, manifest)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="no full segment from entry 131073"):
        await connection.fetchval(record, 131073, root, manifest)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="no full segment from entry 2"):
        await connection.fetchval(record, 2, root, manifest)
    for act in ("build_thin(0, 1, '{}')", "release(0, 1, '{}')"):
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="it is open"):
            await connection.fetchval(f"SELECT apc_guard.{act}")
    for act in ("drop_released(0, 1)", "expire(0, 1)"):
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="not released"):
            await connection.fetchval(f"SELECT apc_guard.{act}")

    entry = await connection.fetchval(record, 1, root, manifest)
    assert await connection.fetchval(record, 1, root, manifest) == entry  # once
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="no exported checkpoint"):
        await connection.fetchval("SELECT apc_guard.build_thin(0, 1, '{}')")
    await connection.execute("RESET SESSION AUTHORIZATION")
    await ageing.export()
    await connection.execute("SET SESSION AUTHORIZATION apc_archiver")
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="thin tables are not made"):
        await connection.fetchval("SELECT apc_guard.release(0, 1, '{}')")
    await connection.fetchval("SELECT apc_guard.build_thin(0, 1, '{}')")
    await connection.fetchval("SELECT apc_guard.build_thin(0, 1, '{}')")  # again, as after a kill
    await connection.execute("RESET SESSION AUTHORIZATION")
    await connection.execute("UPDATE apc_log.sessions SET is_terminal = false")  # sessions that go on again meanwhile
    await connection.execute("SET SESSION AUTHORIZATION apc_archiver")
    with pytest.raises(asyncpg.SerializationError, match="make it again"):
        await connection.fetchval("SELECT apc_guard.release(0, 1, '{}')")
    await connection.fetchval("SELECT apc_guard.build_thin(0, 1, '{}')")
    # A policy that keeps more than they were made by.
    with pytest.raises(asyncpg.SerializationError, match="make it again"):
        await connection.fetchval("SELECT apc_guard.release(0, 1, ARRAY[sha256('a contract')])")
    reader = await asyncpg.connect(postgres_url)
    async with reader.transaction():
        await reader.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE seq < 10")
        with pytest.raises(asyncpg.LockNotAvailableError):  # it gives up, so that nobody waits long behind it
            await connection.fetchval("SELECT apc_guard.release(0, 1, '{}')")
    await reader.close()
    await connection.fetchval("SELECT apc_guard.release(0, 1, '{}')")
    for statement in FORBIDDEN:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release_after: soon\n", "release_after: Value error, write seconds"),
        ("release_afer: P7D\n", "release_afer: no such key: write release_after, expire_after, contracts$"),
        ("contracts: [a]\n", "contracts: Input should be a valid dictionary"),
        ("contracts: {a: {expire: P1D}}\n", "contracts.a.expire: no such key: write release_after, expire_after$"),
        ("- a\n", "Input should be a valid dictionary"),
        ("release_after: &a P7D\n", "no anchors"),
        ("a: b: c\n", "cannot be read"),
        ("", "the file is empty"),
    ],
)
def test_a_policy_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "policy.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyUnusable, match=said) as refused:
        load_policy(path, timedelta(days=7))
    assert "APC_ARCHIVE_POLICY" in str(refused.value)


def test_a_policy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yml"
    path.write_text("expire_after: P365D\ncontracts:\n  incident: {release_after: P90D}\n", encoding="utf-8")
    policy = load_policy(path, timedelta(days=7))
    assert (policy.release_after, policy.expire_after) == (timedelta(days=7), timedelta(days=365))
    assert policy.contracts["incident"].release_after == timedelta(days=90)
    assert load_policy(None, timedelta(days=3)) == Policy(release_after=timedelta(days=3))
    with pytest.raises(PolicyUnusable, match="cannot be read"):
        load_policy(tmp_path / "none.yml", timedelta(days=7))


LATER = Projection("later", (), "apc_log.index_packets")


@pytest.mark.long
async def test_a_projection_that_begins_after_a_release_is_an_error(
    ageing: AgeingLog, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lack in silence what released entries said; the error names how it begins behind them."""
    monkeypatch.setattr(follower, "PROJECTIONS", (LATER, *PROJECTIONS))
    place = "SELECT seq FROM apc_log.followed WHERE projection = 'later'"
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2) as pool:
        assert await ageing.connection.fetchval(place) is None
        await ageing.age()
        await ageing.export()
        await ageing.age()
        with pytest.raises(ProjectionIncomplete, match="entries 1 to 131072 of shard 0 were released") as refused:
            await Follower(pool).take_piece()
        assert await ageing.connection.fetchval(place) is None
        behind = await read_lag(pool, *(one.name for one in PROJECTIONS))
        assert behind == 0, "it holds up none of the others"

        stop = asyncio.Event()
        following = asyncio.create_task(Follower(pool, interval=timedelta(milliseconds=5)).run(stop))
        await pool.execute(str(refused.value).partition("begin behind them: ")[2])

        async def is_followed() -> bool:
            return bool(await pool.fetchval(f"{place} AND seq = (SELECT next_seq - 1 FROM apc_log.shards)"))

        await until(is_followed)
        stop.set()
        await following


NAMES = "SELECT session_id FROM apc_log.unopened_sessions ORDER BY 1"
NAME = "INSERT INTO apc_log.unopened_sessions (session_id, shard, first_seq, last_seq) VALUES ($1, $2, $3, $4)"


@pytest.mark.long
async def test_names_of_sessions_that_never_began_go_with_their_segment(ageing: AgeingLog) -> None:
    """Who asks for one is told that the archive has it; names that later entries say stay."""
    connection = ageing.connection
    await connection.execute("DELETE FROM apc_log.unopened_sessions")
    named = {"first": (0, 1, 9), "both": (0, 65_536, 65_537), "second": (0, 70_000, 131_072), "later": (0, 9, 131_073)}
    for name, place in {**named, "shared": (0, 0, 65_000), "shared-late": (0, 0, 140_000)}.items():
        await connection.execute(NAME, name, *place)
    await ageing.age()
    await ageing.export()
    assert [row[0] for row in await connection.fetch(NAMES)] == [
        "both", "first", "later", "second", "shared", "shared-late",
    ]  # fmt: skip
    steps = Ageing(connection, ageing.archive, NOW).run()
    assert (await anext(steps)).done == "released"
    assert [row[0] for row in await connection.fetch(NAMES)] == ["both", "later", "second", "shared-late"]
    for name in ("first", "shared", "never-named"):
        assert [one.first for one in await released_in(connection, Reach(sessions=[name]))] == [1], name
    assert (await anext(steps)).done == "released"
    assert [row[0] for row in await connection.fetch(NAMES)] == ["later", "shared-late"]
    opened = await connection.fetchval("SELECT session_id FROM apc_log.sessions ORDER BY session_id LIMIT 1")
    await connection.execute("UPDATE apc_log.sessions SET first_seq = 131073, last_seq = 131073")
    assert await released_in(connection, Reach(sessions=[opened])) == []
    assert (await ageing.verify()).findings == []


WAITING = "apc_archive_waiting_seconds"


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.long
async def test_the_service_archives_and_tells_why_it_does_not(
    ageing: AgeingLog, postgres_url: str, tmp_path: Path
) -> None:
    """A store that is away is told in its health, and the wait of the oldest segment grows; then it goes on."""
    (tmp_path / "file").write_text("")
    away = ArchiveSettings(archive_url=str(tmp_path / "file" / "archive"), data_dir=tmp_path)
    there = ArchiveSettings(archive_url=str(tmp_path / "there"), data_dir=tmp_path)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2) as pool:
        archiver, stop = Archiver(LogDatabases(pool), away, NOW), asyncio.Event()
        running = asyncio.create_task(archiver.run(stop))

        async def has_problem() -> bool:
            return bool(archiver.problems)

        await until(has_problem)
        assert archiver.problems[0].startswith("segments are not archived: ")
        assert sample(WAITING) > 0
        stop.set()
        await running
        assert await ageing.states() == ["sealed", "sealed", "open"]

        archiver, before = (
            Archiver(LogDatabases(pool), there, NOW),
            sample("apc_archive_segments_total", done="archived"),
        )
        assert await archiver.look()
        assert await ageing.states() == ["recorded", "recorded", "open"]
        assert (archiver.problems, sample(WAITING)) == ([], 0)
        assert sample("apc_archive_segments_total", done="archived") == before + 2


@pytest.mark.long
async def test_the_log_writer_tells_how_much_room_there_is(ageing: AgeingLog, postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2) as pool:
        await LogRoom(LogDatabases(pool), None).look()
        assert sample("apc_log_segments_ahead", shard="0") == 0
        assert sample("apc_log_database_days_left") == math.inf
        size = await pool.fetchval("SELECT pg_database_size(current_database())")
        assert sample("apc_log_database_bytes") == pytest.approx(size, rel=0.1)
        async with pool.acquire() as connection:
            await follower.open_ahead(connection, BLOCK)
        await LogRoom(LogDatabases(pool), 10**12).look()
        assert sample("apc_log_segments_ahead", shard="0") == follower.AHEAD
        assert 0 < sample("apc_log_database_days_left") < 10**6
        await LogRoom(LogDatabases(pool), 1).look()
        assert sample("apc_log_database_days_left") == 0


EVER = Policy(release_after=timedelta(0), expire_after=timedelta(0))
KEEP_CONTRACT = "INSERT INTO apc_log.contracts (contract_hash, document) VALUES (sha256($1), $1)"
ARCHIVED_ALONE = """
INSERT INTO apc_log.sessions (session_id, shard, epoch, batch_no, run_id, state, is_terminal, round, generation, step,
                              open_deliveries, document, first_seq, last_seq)
VALUES ('only-there', 0, 1, 1, 'run-there', 'CLOSED', true, 0, 0, 0, 0, '{}', 5, 70000)
"""
"""A session of which the database has no packet any more."""
GOING = ("packet", "hop", "lineage", "other", "ids")


@pytest.mark.long
async def test_a_segment_expires_and_the_tree_is_proven_all_the_same(ageing: AgeingLog, postgres_url: str) -> None:
    """What is held stays until the hold ends; then readers say that it has expired, and an auditor proves the rest."""
    connection = ageing.connection
    held, other = [row[0] for row in await connection.fetch("SELECT session_id FROM apc_log.sessions ORDER BY 1")][:2]
    hold = await connection.fetchval("SELECT apc_guard.hold($1, NULL, NULL, 'a dispute', NULL)", held)
    keeping = Policy(release_after=timedelta(0), expire_after=timedelta(0), contracts={load_contract().name: NOW})
    await connection.execute(KEEP_CONTRACT, packaged_contract_bytes())
    await ageing.age()
    await ageing.export()
    assert [step.done for step in await ageing.age()] == ["released", "released"]

    assert await ageing.age(NOW) == [], "without expire_after nothing expires"
    assert await ageing.age(keeping) == [], "nor what a contract keeps without end"
    steps = await ageing.age(EVER)
    assert [step.done for step in steps] == ["waits", "waits"]
    assert "of its packets have to stay" in steps[0].detail
    await connection.execute("SELECT apc_guard.lift_hold($1)", hold)
    await connection.execute(ARCHIVED_ALONE)
    for names in (("only-there", None), (None, "run-there"), (None, "a run that nobody knows yet")):
        later = await connection.fetchval("SELECT apc_guard.hold($1, $2, NULL, 'late', NULL)", *names)
        steps = await ageing.age(EVER)
        assert (steps[0].done, "1 hold in force may name" in steps[0].detail) == ("waits", True), steps
        await connection.execute("SELECT apc_guard.lift_hold($1)", later)
    assert [step.done for step in await ageing.age(EVER)] == ["expired", "expired"]
    assert await ageing.states() == ["expired", "expired", "open"]
    assert await ageing.age(EVER) == []
    told = await connection.fetch("SELECT detail::jsonb ->> 'first_seq' FROM apc_log.log_events WHERE kind = 'expire'")
    assert {row[0] for row in told} == {"1", str(BLOCK + 1)}

    for first in (1, BLOCK + 1):
        for name in GOING:
            (Path(ageing.archive.location) / place_of(ageing.archive.origin(0), first) / f"{name}.parquet").unlink()
    pool = await open_pool(postgres_url, max_size=3)
    read_archive(pool, ArchiveSettings(archive_url=ageing.archive.location, data_dir=Path(ageing.archive.location)))
    with pytest.raises(ArchiveUnavailable, match="its rows have expired"):
        await trace(pool, session_id=other)
    await pool.close()
    notes = await connection.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    kept = [parse_note(row["note"]).check(ageing.key) for row in notes]
    cold = await verify_cold(ageing.archive, ageing.key, checkpoints=kept, expired={1, BLOCK + 1})
    assert (cold.findings, cold.expired, cold.size) == ([], 2, 2 * BLOCK)
    assert cold.proven >= 2 * BLOCK, "every entry, expired ones too"
    assert (await ageing.verify()).findings == []
