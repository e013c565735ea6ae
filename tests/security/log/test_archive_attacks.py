"""A lying archiver, and anyone else who writes to the store: each change is found, with its segment and object."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.log.archived import APPROVAL, ArchivedLog

from apc_log import parquet_bounds
from apc_log.archive import BESIDE, BLOCK, LEAVES, MANIFEST, ROW_GROUP, SCHEMAS, Manifest, parse_manifest
from apc_log.cold import open_cold, prove_cold
from apc_log.cold_verification import ColdReport, verify_cold
from apc_log.errors import ArchiveDiffers
from apc_log.merkle import fold_bytes
from apc_log.offline_verifier import COLUMNS, CheckFailed, leaf_hash
from apc_log.parquet_bounds import BeyondBounds, check_bounds

pytestmark = pytest.mark.postgres


@pytest.fixture
def copied(archived: ArchivedLog, tmp_path: Path) -> ArchivedLog:
    """A copy of the archive, to be attacked."""
    shutil.copytree(archived.folder, tmp_path / "copy")
    return archived.at(tmp_path / "copy")


async def verify(copied: ArchivedLog) -> ColdReport:
    return await verify_cold(copied.archive(), copied.key, checkpoints=copied.checkpoints)


def path_of(copied: ArchivedLog, segment: int, name: str) -> Path:
    return copied.folder / copied.manifests[segment].place / name


def write(table: pa.Table, path: Path, **options: Any) -> None:
    """Write a table as the archiver does, so that nothing but what is in it is looked at."""
    often = [field.name for field in table.schema if field.type in (pa.string(), pa.list_(pa.string()))]
    shape: dict[str, Any] = {
        "use_dictionary": [name for name in often if name not in BESIDE],
        "row_group_size": ROW_GROUP,
        "store_schema": False,
        "compression": "zstd",
    }
    pq.write_table(table, path, **(shape | options))


def change_rows(path: Path, change: Callable[[dict[str, Any]], None], *, at: int = 0) -> None:
    """Write a table again with one row changed."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows[at])
    write(pa.Table.from_pylist(rows, schema=table.schema), path)


def sign_off(copied: ArchivedLog, segment: int, **changes: Any) -> None:
    """Write the manifest again, so that it names what stands in the folder: what a lying archiver does."""
    manifest = copied.manifests[segment]
    objects = []
    for one in manifest.objects:
        data = (copied.folder / manifest.place / one.name).read_bytes()
        objects.append(replace(one, size=len(data), sha256=sha256(data).hexdigest()))
    lie = replace(manifest, objects=tuple(objects), **changes)
    path_of(copied, segment, MANIFEST).write_bytes(lie.text)
    assert parse_manifest(lie.text, lie.origin, lie.first) == lie


def message_of(report: ColdReport, copied: ArchivedLog, segment: int, name: str | None) -> str:
    """Return the message of the finding about this object."""
    place = copied.manifests[segment].place
    found = [one for one in report.findings if (one.segment, one.name) == (place, name)]
    assert found, [str(one) for one in report.findings]
    return found[0].message


async def test_the_archive_as_it_is_has_no_finding(copied: ArchivedLog) -> None:
    assert (await verify(copied)).findings == []
    sign_off(copied, 0)
    assert (await verify(copied)).findings == [], "what the attacks do beside their lie is no finding"


# The first object of a segment that differs is told: so one of each segment is attacked at a time.


@pytest.mark.parametrize("names", [("packet.parquet", "hop.parquet"), ("other.parquet", "ids.parquet"), (LEAVES,)])
async def test_an_object_with_other_bytes(copied: ArchivedLog, names: tuple[str, ...]) -> None:
    for segment, name in enumerate(names):
        path = path_of(copied, segment, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    report = await verify(copied)
    for segment, name in enumerate(names):
        assert "have SHA-256" in message_of(report, copied, segment, name)


@pytest.mark.parametrize("names", [("packet.parquet", "lineage.parquet"), ("checkpoints.parquet", MANIFEST), (LEAVES,)])
async def test_a_missing_object(copied: ArchivedLog, names: tuple[str, ...]) -> None:
    for segment, name in enumerate(names):
        path_of(copied, segment, name).unlink()
    report = await verify(copied)
    for segment, name in enumerate(names):
        assert message_of(report, copied, segment, name) == "it is missing"


async def test_a_missing_segment(copied: ArchivedLog) -> None:
    shutil.rmtree(copied.folder / copied.manifests[0].place)
    message = message_of(await verify(copied), copied, 0, None)
    assert message == f"there is no segment of entries 1 to {BLOCK}"


async def test_a_swapped_manifest(copied: ArchivedLog) -> None:
    shutil.copy(path_of(copied, 0, MANIFEST), path_of(copied, 1, MANIFEST))
    message = message_of(await verify(copied), copied, 1, MANIFEST)
    assert message.startswith("it is the manifest of the segment from entry 1 of")
    with pytest.raises(ArchiveDiffers, match="it is the manifest of the segment from entry 1"):
        await copied.archive().read_manifest(0, BLOCK + 1)


async def test_an_older_object(copied: ArchivedLog) -> None:
    """The bytes of another segment, as an older version of an object would be."""
    shutil.copy(path_of(copied, 0, "hop.parquet"), path_of(copied, 1, "hop.parquet"))
    assert "have SHA-256" in message_of(await verify(copied), copied, 1, "hop.parquet")
    sign_off(copied, 1)
    report = await verify(copied)
    assert any("are not of this segment" in one.message or "is missing" in one.message for one in report.findings)


def blame(row: dict[str, Any]) -> None:
    values = json.loads(row["entry"])
    values[values.index("accepted")] = "held"
    row["entry"] = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    row["verdict"] = "held"


async def test_a_lying_archiver_changes_an_entry_and_the_manifest_along(copied: ArchivedLog) -> None:
    change_rows(path_of(copied, 0, "packet.parquet"), blame)
    sign_off(copied, 0)
    report = await verify(copied)
    assert any("differs from its leaf" in one.message for one in report.findings)
    assert all(one.segment == copied.manifests[0].place for one in report.findings)


async def test_a_lying_archiver_changes_the_leaves_too(copied: ArchivedLog) -> None:
    """Everything in the bucket agrees with itself then; the signed checkpoints do not."""
    changed: list[dict[str, Any]] = []

    def change(row: dict[str, Any]) -> None:
        blame(row)
        changed.append(row)

    change_rows(path_of(copied, 0, "packet.parquet"), change)
    leaves = path_of(copied, 0, LEAVES)
    seq, data = changed[0]["seq"], bytearray(leaves.read_bytes())
    data[(seq - 1) * 32 : seq * 32] = leaf_hash(changed[0]["entry"].encode())
    leaves.write_bytes(data)
    tallies = {**copied.manifests[0].tallies, "packets": dict(copied.manifests[0].tallies["packets"])}
    kind = changed[0]["packet_type"]
    tallies["packets"][f"{kind}/accepted"] -= 1
    tallies["packets"][f"{kind}/held"] = tallies["packets"].get(f"{kind}/held", 0) + 1
    sign_off(copied, 0, subtrees=(fold_bytes(bytes(data)),), tallies=tallies)
    report = await verify(copied)
    message = message_of(report, copied, 0, LEAVES)
    covering = next(one.size for one in copied.checkpoints if one.size >= seq)
    assert f"of {covering} entries is not that of the leaves" in message
    assert report.proven < covering
    alone = await verify_cold(copied.archive(), copied.key)
    assert "the signed checkpoint" in message_of(alone, copied, 0, LEAVES), "without kept checkpoints, too"
    with pytest.raises(CheckFailed, match="does not fold to the checkpoint"):
        await prove_cold(copied.archive(), copied.key, seq)


async def test_a_body_that_is_not_the_one_of_its_entry(copied: ArchivedLog) -> None:
    change_rows(path_of(copied, 1, "packet.parquet"), lambda row: row.update(body=b"{}"), at=7)
    sign_off(copied, 1)
    message = message_of(await verify(copied), copied, 1, "packet.parquet")
    assert "are not those that it was made of" in message


async def test_a_column_that_hides_a_row_from_readers(copied: ArchivedLog) -> None:
    changes: list[tuple[int, str, str, object]] = [
        (0, "packet", "session_id", "another"),
        (1, "packet", "recipients", ["nobody"]),
        (0, "hop", "recipient", "nobody"),
        (0, "lineage", "protocol_id", "another"),
        (0, "other", "event", "another"),
    ]
    for segment, name, column, value in changes:
        change_rows(path_of(copied, segment, f"{name}.parquet"), partial(dict.update, **{column: value}), at=3)
        sign_off(copied, segment)
    report = await verify(copied)
    for segment, name, _, _ in changes:
        assert "are not what it says" in message_of(report, copied, segment, f"{name}.parquet")


async def test_a_column_of_an_id_that_hides_a_row(copied: ArchivedLog) -> None:
    change_rows(path_of(copied, 0, "packet.parquet"), lambda row: row.update(cause_packet_id=bytes(16)), at=3)
    sign_off(copied, 0)
    assert "are not what it says" in message_of(await verify(copied), copied, 0, "packet.parquet")


async def test_an_id_that_leads_elsewhere(copied: ArchivedLog) -> None:
    change_rows(path_of(copied, 0, "ids.parquet"), lambda row: row.update(packet_id=bytes(16)))
    async with open_cold(copied.archive(), [manifest_in(copied, 0)]) as cold:
        assert await cold.find_packet(APPROVAL), "another row was changed"
    sign_off(copied, 0)
    assert "is not that of its packet" in message_of(await verify(copied), copied, 0, "ids.parquet")


async def test_an_id_that_stands_twice(copied: ArchivedLog) -> None:
    path = path_of(copied, 0, "ids.parquet")
    table = pq.read_table(path)
    write(pa.concat_tables([table, table.slice(0, 1)]), path)
    sign_off(copied, 0)
    assert "is not that of its packet" in message_of(await verify(copied), copied, 0, "ids.parquet")


def manifest_in(copied: ArchivedLog, segment: int) -> Manifest:
    """Return the manifest that names what stands in the folder."""
    sign_off(copied, segment)
    manifest = copied.manifests[segment]
    return parse_manifest(path_of(copied, segment, MANIFEST).read_bytes(), manifest.origin, manifest.first)


async def test_what_expired_by_an_entry_is_no_finding_and_stays_provable(copied: ArchivedLog) -> None:
    for name in ("packet", "hop", "lineage", "other", "ids"):
        path_of(copied, 0, f"{name}.parquet").unlink()
    report = await verify(copied)
    assert message_of(report, copied, 0, "packet.parquet") == "it is missing"
    told = await verify_cold(copied.archive(), copied.key, checkpoints=copied.checkpoints, expired={1})
    assert (told.findings, told.expired, told.size) == ([], 1, 2 * BLOCK)
    assert told.proven >= 2 * BLOCK - 5_000
    path_of(copied, 0, LEAVES).unlink()
    gone = await verify_cold(copied.archive(), copied.key, checkpoints=copied.checkpoints, expired={1})
    assert message_of(gone, copied, 0, LEAVES) == "it is missing", "leaves never expire"


async def test_a_stranger_signs_the_manifests_checkpoint(copied: ArchivedLog) -> None:
    note = copied.manifests[0].checkpoint
    forged = note[:-10] + ("A" if note[-10] != "A" else "B") + note[-9:]
    sign_off(copied, 0, checkpoint=forged)
    assert "cannot be trusted" in message_of(await verify(copied), copied, 0, MANIFEST)


@pytest.mark.parametrize("digest", ["../../../etc/hostname", "/etc/hostname", "", "A" * 64, "0" * 63, "0" * 64 + "\n"])
async def test_a_digest_that_is_a_path_names_no_file(copied: ArchivedLog, digest: str) -> None:
    """Objects of a bucket are cached under their digests."""
    manifest = copied.manifests[0]
    lie = replace(manifest, objects=(replace(manifest.objects[0], sha256=digest), *manifest.objects[1:]))
    path_of(copied, 0, MANIFEST).write_bytes(lie.text)
    with pytest.raises(ArchiveDiffers, match=r"'packet\.parquet' has no digest"):
        await copied.archive().read_manifest(0, 1)


def no_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 is no table PAR1")


def without_a_column(path: Path) -> None:
    table = pq.read_table(path)
    write(table.drop_columns(["session_id"]), path)


def of_another_type(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("seq")
    write(table.set_column(at, "seq", table["seq"].cast(pa.string())), path, use_dictionary=["session_id"])


def without_an_entry(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("entry")
    write(table.set_column(at, "entry", pa.nulls(len(table), pa.string())), path)


def torn_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:5_000] = bytes(4_900)
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [no_parquet, without_a_column, of_another_type, without_an_entry, torn_in_the_middle])
async def test_an_object_that_is_no_table_is_a_finding(copied: ArchivedLog, spoil: Callable[[Path], None]) -> None:
    """Its digest in the manifest is right: nothing in a bucket makes the verification raise."""
    spoil(path_of(copied, 0, "packet.parquet"))
    sign_off(copied, 0)
    report = await verify(copied)
    assert any("cannot be read" in one.message for one in report.findings), report.findings
    assert {one.segment for one in report.findings} == {copied.manifests[0].place}
    assert report.size == 2 * BLOCK, "the tree goes on from the leaves"


async def test_a_number_that_is_sql_is_not_run_by_a_reader(copied: ArchivedLog, tmp_path: Path) -> None:
    """Places that were read stand in the next statement: a column of numbers may hold nothing else."""
    written = tmp_path / "written"
    statement = f"'0' AND '0'; COPY (SELECT 1) TO '{written}'; SELECT '', '' WHERE ? IS NULL --"
    path = path_of(copied, 0, "packet.parquet")
    table = pq.read_table(path)
    numbers = pa.array([statement, *("9" for _ in range(len(table) - 1))])
    write(table.set_column(table.column_names.index("seq"), "seq", numbers), path, use_dictionary=["session_id"])

    async with open_cold(copied.archive(), [manifest_in(copied, 0)]) as cold:
        unguarded = {"packet": f"SELECT 0 AS shard, * FROM read_parquet('{path}')"}
        cold._ready.update(unguarded)
        with pytest.raises(KeyError):
            await cold.packets(limit=1)
    assert written.exists(), "the reader's own rights wrote it"

    written.unlink()
    async with open_cold(copied.archive(), [manifest_in(copied, 0)]) as cold:
        with pytest.raises(ArchiveDiffers, match=r"packet\.parquet: it cannot be read"):
            await cold.packets(limit=1)
    assert not written.exists()


async def test_a_folder_of_any_name_is_read(copied: ArchivedLog, tmp_path: Path) -> None:
    folder = (tmp_path / 'it\'s "quoted" [ab]*\n').resolve()
    (copied.folder).rename(folder)
    there = copied.at(folder)
    async with open_cold(there.archive(), [copied.manifests[0]]) as cold:
        assert len(await cold.packets(limit=3)) == 3
    assert (await verify(there)).findings == []


def log_entry(kind: str, detail: object) -> str:
    """Return an entry as the guard writes them, of another detail."""
    values = {"kind": kind, "detail": detail}
    return json.dumps(["log", 1, 0, 5, *(values.get(name) for name in COLUMNS["log", 1])], separators=(",", ":"))


async def test_made_up_entries_of_the_log_in_a_manifest_are_findings(copied: ArchivedLog) -> None:
    """The verification is ended by none of them: it goes on to the end of the log."""
    details: list[object] = [None, {}, "x", {"first_seq": [1]}, {"first_seq": "x"}, {"first_seq": 1}]
    entries = ["garbage", "", '["packet",1,0,5]', json.dumps(["packet", 1, 0, 5, *[None] * len(COLUMNS["packet", 1])])]
    entries += [log_entry(kind, detail) for kind in ("expire", "segment") for detail in details]
    sign_off(copied, 0, log_entries=tuple(entries))
    report = await verify(copied)
    told = [one.message for one in report.findings if one.name == MANIFEST]
    assert sum(one.startswith(("a log entry cannot be read", "log entry 5 differs")) for one in told) == len(entries)
    assert report.size == 2 * BLOCK


@pytest.mark.parametrize("entry", [5, None, ["log"]])
async def test_an_entry_of_the_log_that_is_no_text_is_a_finding(copied: ArchivedLog, entry: object) -> None:
    lie = replace(copied.manifests[0], log_entries=(entry,))  # type: ignore[arg-type]
    path_of(copied, 0, MANIFEST).write_bytes(lie.text)
    assert message_of(await verify(copied), copied, 0, MANIFEST) == "its log entries are no texts"


async def test_leaves_without_end_are_not_read(copied: ArchivedLog) -> None:
    """A file with holes costs nothing to make: its size is compared before its bytes."""
    path = path_of(copied, 0, LEAVES)
    with path.open("r+b") as file:
        file.truncate(1 << 24)
    objects = [replace(one, size=1 << 24) if one.name == LEAVES else one for one in copied.manifests[0].objects]
    path_of(copied, 0, MANIFEST).write_bytes(replace(copied.manifests[0], objects=tuple(objects)).text)
    message = message_of(await verify(copied), copied, 0, MANIFEST)
    assert message == "a segment of 1 blocks has no leaves of 16777216 bytes"


async def test_more_rows_than_entries_are_not_read(copied: ArchivedLog) -> None:
    """A few kilobytes of Parquet say as many rows as they like."""
    path = path_of(copied, 0, "hop.parquet")
    schema = pq.read_schema(path)
    count = BLOCK + 1
    said = {"seq": pa.repeat(1, count), "entry": pa.repeat("[]", count)}
    columns = [said.get(field.name, pa.nulls(count, field.type)) for field in schema]
    columns = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    write(pa.Table.from_arrays(columns, schema=schema), path)
    assert path.stat().st_size < 50_000
    sign_off(copied, 0)
    assert "more than the segment has entries" in message_of(await verify(copied), copied, 0, "hop.parquet")


def with_columns(path: Path, rows: int, **columns: pa.Array) -> pa.Table:
    """Return a table of the schema of another, of nothing but these columns."""
    schema = pq.read_schema(path)
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in schema], schema=schema
    )


async def refused(copied: ArchivedLog, name: str) -> str:
    """Return what is said of an object, by who verifies and by who reads."""
    manifest = manifest_in(copied, 0)
    message = message_of(await verify(copied), copied, 0, name)
    with pytest.raises(ArchiveDiffers) as caught:
        async with copied.archive().fetched(manifest, name):
            pass
    assert (caught.value.segment, caught.value.name, caught.value.problem) == (manifest.place, name, message)
    return message


async def test_a_value_that_stands_a_million_times_is_not_decoded(copied: ArchivedLog) -> None:
    """A dictionary has it once: what is decoded has nothing to do with the size of the object."""
    path = path_of(copied, 0, "hop.parquet")
    entries = pa.repeat("x" * 20_000, ROW_GROUP)
    write(with_columns(path, ROW_GROUP, seq=pa.repeat(1, ROW_GROUP), entry=entries), path, use_dictionary=["entry"])
    unguarded = duckdb.read_parquet(str(path)).aggregate("sum(strlen(entry))").fetchall()
    assert (path.stat().st_size < 50_000, unguarded) == (True, [(20_000 * ROW_GROUP,)])
    assert "column entry: it has a dictionary" in await refused(copied, "hop.parquet")


async def test_pages_that_are_larger_than_a_reader_holds_are_not_decoded(
    copied: ArchivedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros take no room in an object: the bound is lowered here to what a test may make."""
    path = path_of(copied, 0, "hop.parquet")
    rows = 2_048
    entries = pa.repeat("x" * 16_000, rows)
    write(with_columns(path, rows, seq=pa.repeat(1, rows), entry=entries), path)
    assert path.stat().st_size < 100_000
    unguarded = await verify(copied)
    assert not any("more than a reader holds" in one.message for one in unguarded.findings)
    monkeypatch.setattr(parquet_bounds, "MOST_AT_ONCE", 30_000_000)
    assert "in 2048 rows are more than a reader holds" in await refused(copied, "hop.parquet")


async def test_a_list_longer_than_any_is_not_decoded(copied: ArchivedLog) -> None:
    path = path_of(copied, 0, "packet.parquet")
    names = pa.ListArray.from_arrays(pa.array([0, 1_000_000], pa.int32()), pa.repeat("me", 1_000_000))
    write(with_columns(path, 1, seq=pa.array([1]), entry=pa.array(["[]"]), recipients=names), path)
    unguarded = duckdb.read_parquet(str(path)).aggregate("sum(len(recipients))").fetchall()
    assert (path.stat().st_size < 20_000, unguarded) == (True, [(1_000_000,)])
    assert "column recipients: 1000000 values are not those of 1 rows" in await refused(copied, "packet.parquet")


def in_one_row_group(table: pa.Table, path: Path) -> None:
    write(table, path, row_group_size=1 << 20)


def in_other_pages(table: pa.Table, path: Path) -> None:
    write(table, path, data_page_version="2.0")


def in_another_encoding(table: pa.Table, path: Path) -> None:
    write(table, path, use_dictionary=False, column_encoding={"entry": "DELTA_BYTE_ARRAY"})


def in_another_codec(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="gzip", use_dictionary=False, row_group_size=ROW_GROUP)


def with_bytes_between(table: pa.Table, path: Path) -> None:
    write(table, path)
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    path.write_bytes(data[:-footer] + b"between" + data[-footer:])


def with_a_footer_of_zeros(table: pa.Table, path: Path) -> None:
    write(table, path)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    data[-footer - 8 : -8] = bytes(footer)
    path.write_bytes(data)


def with_a_page_that_lies(table: pa.Table, path: Path) -> None:
    """Its header names other bytes than the footer does; the first one is a dictionary, of column entry_kind."""
    write(table, path, compression="none")
    data = bytearray(path.read_bytes())
    assert data[4:7] == b"\x15\x04\x15", "the kind of the page, then its decoded size"
    data[7] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (in_one_row_group, "a row group has"),
        (in_other_pages, "a page is of kind 3"),
        (in_another_encoding, "column entry: a page has encoding 7"),
        (in_another_codec, "column entry_kind: it is compressed by codec 2"),
        (with_bytes_between, "there are bytes in it that are of no column"),
        (with_a_footer_of_zeros, "it is no Parquet"),
        (with_a_page_that_lies, "column entry_kind: its pages are not those that the footer tells of"),
    ],
)
async def test_parquet_of_another_shape_is_not_decoded(
    copied: ArchivedLog, spoil: Callable[[pa.Table, Path], None], problem: str
) -> None:
    """Bounds are those of the shape in which the archiver writes: in every other one there would be others."""
    path = path_of(copied, 0, "other.parquet")
    table = pq.read_table(path)
    assert len(table) > ROW_GROUP
    write(table, path)
    check_bounds(path, SCHEMAS["other"], plain=BESIDE, most_rows=BLOCK, row_group=ROW_GROUP)
    spoil(table, path)
    assert problem in await refused(copied, "other.parquet")


async def test_no_byte_of_a_footer_or_header_ends_the_reading(copied: ArchivedLog, tmp_path: Path) -> None:
    """Whatever stands there: it is read, or refused."""
    data = path_of(copied, 0, "checkpoints.parquet").read_bytes()
    numbers, path, refusals = random.Random(7), tmp_path / "changed", 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([numbers.randrange(256)]) + data[at + 1 :])
        try:
            check_bounds(path, SCHEMAS["checkpoints"], plain=BESIDE, most_rows=BLOCK, row_group=ROW_GROUP)
        except BeyondBounds:
            refusals += 1
    assert refusals > 100
