"""Readings of a log that was released: each is complete, or an error with the place of what is missing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
from tests.support.log.answers import EARLY, RUN, SESSION, Answers, arguments, given_to, readings
from tests.support.log.archived import APPROVAL, ReleasedLog, full_log
from tests.support.log.tampering import disable_guards

from apc_bus.settings import PersisterSettings
from apc_cli.doctor.agents import look_at_dead_letters
from apc_contracts.contract.contract import packaged_contract_bytes
from apc_log.archive import BLOCK, Archive
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import released_until
from apc_log.offline_verifier import check_file
from apc_log.queries.activity import latest_packets
from apc_log.queries.health import days_here, days_left, read_growth
from apc_log.queries.packet_pages import page_of_packets, sessions_of_packet
from apc_log.queries.packets import Position, TracePage, trace
from apc_log.queries.replay import read_recorded, replay, verify_run
from apc_log.queries.search import Found, Wanted, search_log
from apc_persister.archiving import ArchivedLeaves
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.documents import bundle_lines
from apc_persister.verification.findings import Report
from apc_persister.verification.log_ends import check_registry, compare_stayed, count_released_changes
from apc_persister.verification.verify import verify_shard

pytestmark = [pytest.mark.postgres, pytest.mark.long]
OPEN = "session-of-run-1"
# Of tables that stay as a whole, or of what is said to be of the database alone.
UNDIVIDED = frozenset(
    "known_keys opened_bodies bodies_here read_said read_lag list_sessions get_session run_transfer_ends "
    "has_run_ended page_of_sessions sessions_of_opener count_of_opener has_other_opener find_session figures_of_runs "
    "list_issues list_acknowledgements troubles_behind list_troubles acknowledge list_questions passages replay "
    "count_minutes first_minute entries_behind list_agent_days read_latencies count_left_behind "
    "list_registered read_signs count_open_deliveries read_seconds_ahead read_exports count_dead_by_reason read_age "
    "recent_work list_shard_ends page_of_cards cards_of get_packet_lineage_summary get_protocol_effectiveness "
    "get_transfer_quality_rollup get_transfer_eval_correlation get_transfer_refusals list_protocol_propagation "
    "list_protocols session_scores session_transfers list_arbitrations "
    "read_segments_ahead read_unarchived read_growth days_here".split()
)
ITSELF = frozenset({"latest_packets", "read_recorded", "search_log"})
"""Look into the archive themselves: each has a test below."""


@pytest.fixture
async def log(postgres_url: str, tmp_path: Path) -> AsyncIterator[ReleasedLog]:
    """A log with two full segments, nothing released."""
    async with full_log(postgres_url, tmp_path) as log:
        yield log


def test_every_reading_is_complete_or_named_here() -> None:
    """A new reading of the log says what it looks at."""
    named = {name for name, function in readings() if "reads" not in vars(function)}
    assert named == UNDIVIDED | ITSELF


async def test_each_reading_of_a_released_log_is_the_same_or_an_error(log: ReleasedLog) -> None:
    known = await arguments(log.pool)
    asked = {
        name: (function, given_to(name, function, known)) for name, function in readings() if "reads" in vars(function)
    }
    before = {name: await function(log.pool, **given) for name, (function, given) in asked.items()}
    await log.release()
    refused, same, wrong = list[str](), list[str](), list[str]()
    for name, (function, given) in asked.items():
        try:
            result = await function(log.pool, **given)
        except ArchiveUnavailable as error:
            assert str(error).startswith("ARCHIVE_UNAVAILABLE: log/"), name
            refused.append(name)
        else:
            (same if result == before[name] else wrong).append(name)
    assert wrong == []
    assert len(refused) > 30
    with pytest.raises(ArchiveUnavailable, match=r"log/.*/00000000000000000001: it was released from the database"):
        [row async for row in replay(log.pool, RUN)]


@pytest.mark.parametrize("released", [1, 2])
async def test_each_reading_goes_on_in_the_archive(log: ReleasedLog, released: int) -> None:
    before = await Answers.of(log.pool)
    await log.release(released)
    log.attach()
    await before.compare(log.pool)


OF_SESSION = {"session_id": SESSION}
PAGED: tuple[dict[str, Any], ...] = (
    {},
    {"session_id": SESSION},
    {"run_id": RUN},
    {"task_id": "task-3"},
    {"packet_type": "TRANSFER"},
    {"packet_type": "CLAIM", "run_id": "run-2"},
    {"packet_id": APPROVAL},
)


async def pages(pool: asyncpg.Pool, given: dict[str, Any]) -> list[TracePage]:
    """Return all pages of a trace, each large enough to take in some of the log that is not archived."""
    found, after = list[TracePage](), None
    while True:
        found.append(await trace(pool, limit=4_000, after=after, **given))
        after = found[-1].after
        if after is None:
            return found


async def test_traces_of_cold_and_hot_are_what_they_were(log: ReleasedLog) -> None:
    """Pages in the order of the log and against it, over both; TRANSFERs stand in both, and are counted once."""
    before = [await pages(log.pool, given) for given in PAGED]
    asked = [
        ({"task_id": "task-3"}, None),
        ({}, None),
        ({}, Position(0, BLOCK + 9_999)),
        ({"session_id": SESSION}, None),
    ]
    newest = [await page_of_packets(log.pool, given, newest=True, after=after, limit=300) for given, after in asked]
    await log.release(1)
    with pytest.raises(ArchiveUnavailable):
        await pages(log.pool, {"task_id": "task-3"})
    log.attach()
    for given, was in zip(PAGED, before, strict=True):
        assert await pages(log.pool, given) == was, given
    for (given, after), rows in zip(asked, newest, strict=True):
        assert await page_of_packets(log.pool, given, newest=True, after=after, limit=300) == rows, (given, after)


async def test_a_session_that_stays_needs_no_archive(log: ReleasedLog) -> None:
    before = await pages(log.pool, {"session_id": "session-of-run-1"})
    await log.release()
    assert await pages(log.pool, {"session_id": "session-of-run-1"}) == before


@pytest.mark.parametrize("run_id", [RUN, "run-1"])
async def test_a_bundle_of_cold_and_hot_is_whole_and_verifies(log: ReleasedLog, run_id: str) -> None:
    """The same entries as before the release, each with its path to a signed checkpoint; run-1 has stayed."""
    signer = load_signer(PersisterSettings())

    async def entries(archive: Archive | None) -> tuple[list[str], list[str]]:
        async with log.pool.acquire() as connection:
            given = [packaged_contract_bytes()]
            lines = [line.decode() async for line in bundle_lines(connection, run_id, signer, given, archive=archive)]
        return [orjson.loads(line)["entry"] for line in lines[1:-1]], lines

    before, _ = await entries(None)
    await log.release(1)
    with pytest.raises(ArchiveUnavailable, match=log.places[0]):
        await entries(None)
    after, lines = await entries(log.archive)
    assert after == before
    assert check_file([f"{line}\n" for line in lines], [signer.public_key(0)])


FORGED = """
INSERT INTO apc_log.registry_events SELECT forged.* FROM (
    SELECT to_jsonb(known) || jsonb_build_object('seq', $1::bigint, 'change_id', gen_random_uuid()) AS row
    FROM apc_log.registry_events AS known ORDER BY seq LIMIT 1
) AS one, jsonb_populate_record(NULL::apc_log.registry_events, row) AS forged
"""


async def test_changes_of_the_registry_are_compared_with_the_archive(log: ReleasedLog) -> None:
    """Their leaves left the database with their segment: without the archive nothing is said of them, true or false."""
    async with log.pool.acquire() as connection:
        changes = await connection.fetchval("SELECT count(*) FROM apc_log.registry_events WHERE seq <= $1", 2 * BLOCK)
        assert changes > 0 and await count_released_changes(connection) == 0
        await log.release()
        leaf = ArchivedLeaves(connection, log.archive).leaf
        assert await check_registry(connection, leaf) == [] and await count_released_changes(connection) == changes
        taken = await connection.fetch("SELECT seq FROM apc_log.registry_events")
        free = next(seq for seq in range(70_000, 2 * BLOCK) if seq not in {row["seq"] for row in taken})
        await connection.execute(FORGED, free)
        (found,) = await check_registry(connection, leaf)
        assert found.message == f"entry {free} is a change of the registry that is not in the tree"
        assert await check_registry(connection) == []


async def test_rows_that_stay_are_compared_with_the_archive(log: ReleasedLog) -> None:
    """A row of a session that is open, changed once its leaf is in the archive alone, and one of the registry gone."""
    async with log.pool.acquire() as connection:
        await log.release()

        async def compared() -> Report:
            report = await verify_shard(connection, 0, load_signer(PersisterSettings()).public_key(0))
            assert report.findings == [] and report.released == 2 * BLOCK, "without the archive nothing tells"
            await compare_stayed(connection, report, ArchivedLeaves(connection, log.archive).leaf)
            return report

        whole = await compared()
        assert whole.findings == [] and whole.stayed is not None and whole.stayed > 100
        seq = await connection.fetchval("SELECT min(seq) FROM apc_log.agent_packets WHERE session_id = $1", OPEN)
        await disable_guards(log.pool)
        await connection.execute("UPDATE apc_log.agent_packets SET task_id = 'another' WHERE seq = $1", seq)
        await connection.execute(
            "DELETE FROM apc_log.registry_events WHERE seq = (SELECT min(seq) FROM apc_log.registry_events)"
        )
        changed, gone = (await compared()).findings
        assert changed.message == f"entry {seq}, which stays in the database, differs from its leaf in the archive"
        assert "entries of registry were recorded with a segment" in gone.message and gone.seq == 1
        (log.folder / "archive").rename(log.folder / "elsewhere")
        (first, *_) = (await compared()).findings
        assert "cannot be compared" in first.message and "0/00000000000000000001" in first.message


async def test_the_growth_of_a_released_log_is_that_of_what_comes(log: ReleasedLog) -> None:
    """Thin rows and what stays with a log are no part of it, and what was let go of is subtracted."""
    before = await read_growth(log.pool)
    assert before["released"] is None and 50 < before["bytes_an_entry"] < 2_000
    await log.release()
    after = await read_growth(log.pool)
    assert after["released"] == 2 * BLOCK
    assert 50 < after["bytes_an_entry"] < 2_000
    assert days_left(after, 10**12) > 1e6 > days_left(before, 10**12)
    assert await days_here(log.pool, 7) == 0


async def test_the_entries_that_a_replay_judges_are_the_same(log: ReleasedLog) -> None:
    """`apc packet replay --verify` and `--what-if` go on in the archive."""

    async def entries() -> list[tuple[str, list[Any]]]:
        async with read_recorded(log.pool) as records:
            return [
                (session_id, [batch async for batch in records.batches(session_id)])
                for session_id in await records.sessions(RUN)
            ]

    before = await entries()
    assert before[0][1]
    await log.release(1)
    with pytest.raises(ArchiveUnavailable):
        await entries()
    log.attach()
    assert await entries() == before
    async with read_recorded(log.pool) as records:
        assert (await verify_run(records, RUN, [])).problem is not None, "its connection is given back all the same"


async def test_the_newest_packets_of_an_agent_are_the_same(log: ReleasedLog) -> None:
    before = await latest_packets(log.pool, "receiver-0", 5_000)
    assert len(before) > 100
    await log.release(1)
    assert await latest_packets(log.pool, "receiver-0", 3) == before[:3]
    with pytest.raises(ArchiveUnavailable):
        await latest_packets(log.pool, "receiver-0", 5_000)
    log.attach()
    for limit in (5_000, len(before) - 5):
        assert await latest_packets(log.pool, "receiver-0", limit) == before[:limit]


SEARCHED = (
    Wanted("word1", run_id=RUN),
    Wanted("gr\u00fc\u00dfe", since=EARLY),
    Wanted(run_id="run-2", code="MALFORMED"),
    Wanted(str(APPROVAL)[-6:], since=EARLY, agent="receiver-0"),
    Wanted("nothing says this", run_id=RUN),
)


async def test_a_search_within_bounds_finds_the_same(log: ReleasedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pages(wanted: Wanted) -> list[Found]:
        found = [await search_log(log.pool, wanted, limit=70)]
        while found[-1].before is not None:
            found.append(await search_log(log.pool, wanted, before=found[-1].before, limit=70))
        return found

    before = [await pages(wanted) for wanted in SEARCHED]
    assert [bool(found[0].packets) for found in before] == [True, True, True, True, False]
    await log.release(1)
    until = await released_until(log.pool)
    for wanted in SEARCHED:
        assert (await search_log(log.pool, wanted)).archived_until == until, "it says what it has not searched"
    log.attach()
    assert [await pages(wanted) for wanted in SEARCHED] == before
    assert (await search_log(log.pool, Wanted("word1"))).archived_until == until
    monkeypatch.setattr("apc_log.queries.search.MOST_ARCHIVED", 9)
    assert (await search_log(log.pool, SEARCHED[0])).archived_until == until


_ELSEWHERE = """
WITH here AS (SELECT next_seq FROM apc_log.shards WHERE shard = 0)
INSERT INTO apc_log.packet_ids (shard, seq, session_id, packet_id, packet_hash, payload_hash)
SELECT 0, next_seq, 'session-elsewhere', packet_id, packet_hash, payload_hash FROM apc_log.packet_ids, here
WHERE packet_id = $1
"""


async def test_an_id_is_looked_for_in_every_session(log: ReleasedLog) -> None:
    """A session has it in the database, another one in the archive."""
    await log.pool.execute(_ELSEWHERE, APPROVAL)
    before = await sessions_of_packet(log.pool, APPROVAL)
    assert before == [SESSION, "session-elsewhere"]
    await log.release()
    log.attach()
    assert await sessions_of_packet(log.pool, APPROVAL) == before


_NEVER_BEGAN = """
INSERT INTO apc_log.unopened_sessions (session_id, shard, first_seq, last_seq)
SELECT session_id, shard, first_seq, last_seq FROM apc_log.sessions WHERE session_id = $1
"""
_LATER = "UPDATE apc_log.sessions SET session_id = 'later', first_seq = $2, last_seq = $2 WHERE session_id = $1"


async def test_what_names_a_run_before_it_began_is_found(log: ReleasedLog) -> None:
    """Packets of a session that never began, all of them before the first session of the run."""
    await log.pool.execute(_NEVER_BEGAN, SESSION)
    await log.pool.execute(_LATER, SESSION, 2 * BLOCK + 1)
    before = await pages(log.pool, {"run_id": RUN})
    assert before[0].packets
    await log.release()
    log.attach()
    assert await pages(log.pool, {"run_id": RUN}) == before


async def test_dead_letters_in_the_archive_are_not_left_out_in_silence(log: ReleasedLog) -> None:
    (before, *_) = await look_at_dead_letters(log.pool)
    assert "in the archive" not in before.finding
    await log.release()
    (after, *_) = await look_at_dead_letters(log.pool)
    assert "not counted: sessions in the archive alone, up to 20" in after.finding
