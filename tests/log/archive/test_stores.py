"""What an archive promises over a folder and over S3: written once, read by version, changed bytes are an error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import asyncpg
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log.archived import ArchivedLog
from tests.support.servers import S3Account, S3Server

from apc_bus.settings import ArchiveSettings
from apc_log.archive import BLOCK, LEAVES, MANIFEST, OBJECTS, Archive, check_range, place_of
from apc_log.cold import open_cold
from apc_log.cold_verification import verify_cold
from apc_log.errors import ArchiveDiffers, ArchiveError, ArchiveUnavailable
from apc_persister.archiving import archive_segment

pytestmark = pytest.mark.postgres
PLACE = place_of("a-log/0", 1)


@contextmanager
def account(one: S3Account) -> Iterator[None]:
    """Act as an account of the S3 server."""
    before = {name: os.environ.get(name) for name in one.environment()}
    os.environ.update(one.environment())
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class ArchiveSuite:
    """The promises; `open_archive` opens the store for who writes."""

    async def test_an_object_is_written_once(self, archive: Archive) -> None:
        first = await archive.put(PLACE, "leaves", b"bytes")
        assert await archive.put(PLACE, "leaves", b"bytes") == first
        assert (first.size, first.sha256) == (5, sha256(b"bytes").hexdigest())
        with pytest.raises(ArchiveDiffers, match=r"log/a-log/0/0{19}1/leaves: it was written before, with other bytes"):
            await archive.put(PLACE, "leaves", b"other")
        assert await archive.put(PLACE, "leaves", b"bytes") == first, "it is left as it is"

    async def test_a_segment_is_written_read_and_verified(
        self, archive: Archive, archived: ArchivedLog, tmp_path: Path
    ) -> None:
        archive = self.named(archive, archived.log_name)
        connection = await asyncpg.connect(archived.url)
        manifest = await archive_segment(connection, archive, 0, 1, BLOCK)
        await connection.close()
        assert [one.sha256 for one in manifest.objects] == [one.sha256 for one in archived.manifests[0].objects]
        assert await archive.segments(0) == [1]
        assert await archive.segments(1) == []
        assert await archive.read_manifest(0, 1, manifest.sha256) == manifest
        with pytest.raises(ArchiveDiffers, match="the log's segment entry names other bytes"):
            await archive.read_manifest(0, 1, "0" * 64)
        report = await verify_cold(archive, archived.key, checkpoints=archived.checkpoints)
        assert (report.findings, report.size) == ([], BLOCK)
        async with open_cold(archive, [manifest]) as cold:
            assert await cold.packets(run_id="run-1")
        block = await archive.read_block(manifest, 0)
        async with archive.fetched(manifest, LEAVES) as files:
            assert files[LEAVES].read_bytes() == block

    async def test_what_is_missing_is_named(self, archive: Archive) -> None:
        with pytest.raises(ArchiveUnavailable, match=r"log/a-log/0/0{19}1/manifest\.json: it is missing") as caught:
            await archive.read_manifest(0, 1)
        assert (caught.value.segment, caught.value.name, caught.value.code) == (PLACE, MANIFEST, "ARCHIVE_UNAVAILABLE")

    def named(self, archive: Archive, log_name: str) -> Archive:
        """Return the archive of another log at the same place."""
        raise NotImplementedError


class TestInAFolder(ArchiveSuite):
    @pytest.fixture
    def archive(self, tmp_path: Path) -> Archive:
        return Archive(tmp_path / "archive", "a-log", cache=tmp_path / "cache")

    def named(self, archive: Archive, log_name: str) -> Archive:
        return Archive(archive.location, log_name, cache=Path(archive.location) / "cache")

    async def test_a_link_is_no_object(self, archive: Archive, tmp_path: Path) -> None:
        await archive.put(PLACE, MANIFEST, b"{}")
        target = tmp_path / "archive" / PLACE / MANIFEST
        target.rename(tmp_path / "elsewhere")
        target.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ArchiveDiffers, match="it is no regular file"):
            await archive.read_manifest(0, 1)


class TestInS3(ArchiveSuite):
    @pytest.fixture
    def archive(self, s3_server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Archive]:
        """Each test under its own prefix of the bucket with object lock, with keys that cannot delete."""
        self.prefix = sha256(request.node.nodeid.encode()).hexdigest()[:12]
        self.cache = tmp_path / "cache"
        with account(s3_server.archiver):
            yield self.open("a-log")

    def open(self, log_name: str, cache_bytes: int = 1 << 30) -> Archive:
        url = f"s3://{S3Server.LOCKED}/{self.prefix}"
        return Archive(url, log_name, cache=self.cache, cache_bytes=cache_bytes, allow_http=True)

    def named(self, archive: Archive, log_name: str) -> Archive:
        return self.open(log_name)

    async def test_an_overwritten_object_is_read_by_its_version(
        self, archive: Archive, archived: ArchivedLog, s3_server: S3Server
    ) -> None:
        """Object lock keeps the version; an overwrite gives new bytes to who asks by name alone."""
        archive = self.open(archived.log_name)
        connection = await asyncpg.connect(archived.url)
        manifest = await archive_segment(connection, archive, 0, 1, BLOCK)
        await connection.close()
        store = archive._writer
        await obstore.put_async(store, f"{manifest.place}/packet.parquet", b"other bytes")
        newest = await obstore.get_async(store, f"{manifest.place}/packet.parquet")
        assert bytes(await newest.bytes_async()) == b"other bytes", "the overwrite works"
        report = await verify_cold(archive.with_cache(self.cache / "fresh"), archived.key)
        assert report.findings == []

    async def test_the_archiver_cannot_delete_and_readers_cannot_write(
        self, archive: Archive, s3_server: S3Server
    ) -> None:
        await archive.put(PLACE, LEAVES, b"bytes")
        with pytest.raises(Exception, match="AccessDenied"):
            await obstore.delete_async(archive._writer, f"{PLACE}/{LEAVES}")
        with account(s3_server.reader):
            reader = self.open("a-log")
            assert bytes(await (await obstore.get_async(reader._store, f"{PLACE}/{LEAVES}")).bytes_async()) == b"bytes"
            with pytest.raises(ArchiveUnavailable, match=r"ids\.parquet: AccessDenied"):
                await reader.put(PLACE, "ids.parquet", b"bytes")
        with account(s3_server.account):
            await obstore.delete_async(self.open("a-log")._writer, f"{PLACE}/{LEAVES}")

    async def test_the_cache_is_bounded_and_verified(self, archive: Archive, archived: ArchivedLog) -> None:
        archive = self.open(archived.log_name)
        connection = await asyncpg.connect(archived.url)
        manifest = await archive_segment(connection, archive, 0, 1, BLOCK)
        await connection.close()
        small = self.open(archived.log_name, cache_bytes=1 << 20)
        for name in OBJECTS:
            async with small.fetched(manifest, name) as files:
                assert sha256(files[name].read_bytes()).hexdigest() == manifest.object(name).sha256
        assert sum(path.stat().st_size for path in self.cache.iterdir()) <= 1 << 20

    async def test_a_server_that_is_away(self, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAXXXXXXXXXXXXXXXX")
        with pytest.raises(ArchiveUnavailable, match=r"manifest\.json: InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"):
            await self.open("a-log").read_manifest(0, 1)


@given(first=st.integers(-BLOCK, 1 << 52), last=st.integers(-BLOCK, 1 << 52))
def test_ranges_of_whole_blocks_alone(first: int, last: int) -> None:
    is_whole = first >= 1 and last > first and first % BLOCK == 1 and last % BLOCK == 0
    try:
        check_range(first, last)
    except ValueError:
        assert not is_whole
    else:
        assert is_whole


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 10))
def test_places_sort_as_segments_do(block: int, more: int) -> None:
    first, second = block * BLOCK + 1, (block + more) * BLOCK + 1
    assert place_of("log/0", first) < place_of("log/0", second)
    assert int(place_of("log/0", first).rpartition("/")[2]) == first


@pytest.mark.parametrize("name", ["..", "a/../b", "a//b", ""])
def test_a_log_name_that_would_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveError, match="is no name of objects"):
        Archive(tmp_path, name, cache=tmp_path / "cache")


def test_no_archive_is_configured() -> None:
    with pytest.raises(ArchiveError, match="set APC_ARCHIVE_URL"):
        Archive.open(ArchiveSettings(), "a-log")


def test_a_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match=r"APC_ARCHIVE_URL .*file is a file: name a folder"):
        Archive.open(ArchiveSettings(archive_url=str(tmp_path / "file")), "log")
