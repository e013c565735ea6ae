"""The artifact store over a folder, memory and an S3 server: by hash, verified, bounded, with errors that help."""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from tests.support.servers import S3Account, S3Server

from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge
from apc_bus.settings import BusSettings

MAX_BYTES = 2_000_000
NOBODY = "sha256:" + "0" * 64


def hash_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def path_of(store: ArtifactStore, artifact_hash: str) -> Path:
    return Path(urlsplit(store.uri(artifact_hash)).path)


async def overwrite(store: ArtifactStore, artifact_hash: str, data: bytes) -> None:
    """Puts other bytes where the object stands, as a torn write, a bug or an intruder would."""
    digits = artifact_hash.removeprefix("sha256:")
    await obstore.put_async(store._store, f"sha256/{digits[:2]}/{digits[2:4]}/{digits}", data)


async def in_parts(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Account]:
    with S3Server() as server:
        yield server.account


@pytest.fixture
def s3_account(s3_server: S3Account, monkeypatch: pytest.MonkeyPatch) -> S3Account:
    """The server's account, in force in the environment of this process."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


class ArtifactStoreSuite:
    """What an ArtifactStore promises, wherever it keeps its objects."""

    @pytest.mark.parametrize("data", [b"", b"model", b"x" * 1_500_000])
    async def test_what_was_put_is_got(self, store: ArtifactStore, data: bytes) -> None:
        assert await store.put(data) == hash_of(data)
        assert await store.get(hash_of(data)) == data
        assert await store.exists(hash_of(data))
        await store.check(hash_of(data))
        digits = hash_of(data).removeprefix("sha256:")
        assert store.uri(hash_of(data)).endswith(f"/sha256/{digits[:2]}/{digits[2:4]}/{digits}")

    async def test_many_puts_of_the_same_bytes_are_one_object(self, store: ArtifactStore) -> None:
        assert len({*await asyncio.gather(*(store.put(b"same") for _ in range(10)))}) == 1
        assert [len(page) async for page in obstore.list(store._store)] == [1]

    async def test_what_comes_in_parts_is_stored_whole(self, store: ArtifactStore) -> None:
        data = bytes(range(256)) * 5_000
        assert await store.put_stream(in_parts(data)) == hash_of(data)
        assert await store.put_stream(in_parts(data)) == hash_of(data)
        assert await store.get(hash_of(data)) == data

    async def test_a_missing_artifact(self, store: ArtifactStore) -> None:
        assert not await store.exists(NOBODY)
        for read in (store.get, store.check):
            with pytest.raises(ArtifactMissing, match=f"no artifact {NOBODY} in "):
                await read(NOBODY)

    @pytest.mark.parametrize("wrong", [b"who", b"whale", b"", b"whole and more"])
    async def test_wrong_bytes_under_a_hash_are_refused_and_mended_by_the_next_put(
        self, store: ArtifactStore, wrong: bytes
    ) -> None:
        artifact_hash = await store.put(b"whole")
        await overwrite(store, artifact_hash, wrong)
        for read in (store.get, store.check):
            with pytest.raises(ArtifactCorrupt, match=f"{artifact_hash} holds bytes with hash {hash_of(wrong)}"):
                await read(artifact_hash)
        assert await store.put(b"whole") == artifact_hash
        assert await store.get(artifact_hash) == b"whole"

    async def test_too_many_bytes_are_refused_before_they_are_stored(self, store: ArtifactStore) -> None:
        data = b"x" * (MAX_BYTES + 1)
        with pytest.raises(ArtifactTooLarge, match=f"{MAX_BYTES + 1} bytes; the store takes {MAX_BYTES}"):
            await store.put(data)
        assert not await store.exists(hash_of(data))

    async def test_too_many_bytes_are_refused_while_they_come(self, store: ArtifactStore) -> None:
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1
                yield b"x" * 500_000

        with pytest.raises(ArtifactTooLarge, match="2500000 bytes or more"):
            await store.put_stream(endless())
        assert taken == 5
        assert [len(page) async for page in obstore.list(store._store)] == []

    async def test_too_many_bytes_are_not_read(self, store: ArtifactStore) -> None:
        artifact_hash = await store.put(b"x" * 100)
        with pytest.raises(ArtifactTooLarge, match="has 100 bytes; 99 are allowed"):
            await store.get(artifact_hash, max_bytes=99)
        assert len(await store.get(artifact_hash, max_bytes=100)) == 100
        await overwrite(store, artifact_hash, b"x" * (MAX_BYTES + 1))
        for read in (store.get, store.check):
            with pytest.raises(ArtifactTooLarge):
                await read(artifact_hash)
        assert await store.exists(artifact_hash)

    @pytest.mark.parametrize("text", ["", "sha256:", "sha256:../../etc/passwd", "0" * 64, "SHA256:" + "0" * 64])
    async def test_what_is_no_hash(self, store: ArtifactStore, text: str) -> None:
        with pytest.raises(ArtifactError, match="no artifact hash"):
            await store.get(text)


class TestInAFolder(ArtifactStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ArtifactStore:
        return ArtifactStore.open(tmp_path / "artifacts", max_bytes=MAX_BYTES)

    async def test_another_store_on_the_folder_sees_it(self, store: ArtifactStore, tmp_path: Path) -> None:
        artifact_hash = await store.put(b"shared")
        for location in (str(tmp_path / "artifacts"), (tmp_path / "artifacts").as_uri()):
            assert await ArtifactStore(location).get(artifact_hash) == b"shared"
        assert path_of(store, artifact_hash).read_bytes() == b"shared"

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
    async def test_what_is_no_regular_file_is_not_opened(
        self, store: ArtifactStore, make: Callable[[Path], object]
    ) -> None:
        path = path_of(store, NOBODY)
        path.parent.mkdir(parents=True)
        make(path)
        for read in (store.get, store.check):
            with pytest.raises(ArtifactCorrupt, match="no regular file"):
                await asyncio.wait_for(read(NOBODY), 30)
        assert not await store.exists(NOBODY)

    async def test_a_pipe_in_the_place_of_an_artifact_is_mended_by_the_next_put(self, store: ArtifactStore) -> None:
        path = path_of(store, hash_of(b"whole"))
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
        assert await asyncio.wait_for(store.put(b"whole"), 30) == hash_of(b"whole")
        assert await store.get(hash_of(b"whole")) == b"whole"

    async def test_a_location_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        for location in (tmp_path / "file", "gopher://host/x"):
            with pytest.raises(ArtifactError, match="APC_ARTIFACTS_URL") as failed:
                ArtifactStore.open(location)
            assert "\n" not in str(failed.value)


class TestInMemory(ArtifactStoreSuite):
    @pytest.fixture
    def store(self) -> ArtifactStore:
        return ArtifactStore("memory:///", max_bytes=MAX_BYTES)


class TestInS3(ArtifactStoreSuite):
    @pytest.fixture
    def store(self, s3_account: S3Account, request: pytest.FixtureRequest) -> ArtifactStore:
        """Each test under its own prefix."""
        url = f"s3://{S3Server.BUCKET}/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
        return open_artifacts(BusSettings(artifacts_url=url, artifacts_allow_http=True, max_artifact_bytes=MAX_BYTES))

    async def test_an_object_that_is_there_is_not_written_again(self, store: ArtifactStore) -> None:
        artifact_hash = await store.put(b"first")
        before = await obstore.head_async(store._store, store.uri(artifact_hash).split("/", 4)[4])
        await store.put(b"first")
        after = await obstore.head_async(store._store, store.uri(artifact_hash).split("/", 4)[4])
        assert after["last_modified"] == before["last_modified"]

    async def test_a_larger_object(self, s3_account: S3Account) -> None:
        store = ArtifactStore(f"s3://{S3Server.BUCKET}/large", allow_http=True)
        data = b"0123456789abcdef" * 750_000  # 12 MB: more than the parts that an upload is made of
        assert await store.put_stream(in_parts(data, 1_000_000)) == hash_of(data)
        await store.check(hash_of(data))

    @pytest.mark.parametrize(
        ("name", "value", "code"),
        [
            ("AWS_ACCESS_KEY_ID", "AKIAXXXXXXXXXXXXXXXX", "InvalidAccessKeyId"),
            ("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"),
        ],
    )
    async def test_a_key_that_is_refused(
        self, s3_account: S3Account, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: str
    ) -> None:
        monkeypatch.setenv(name, value)
        store = ArtifactStore(f"s3://{S3Server.BUCKET}/x", allow_http=True)
        await _fails_clearly(store, code, "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY")

    async def test_a_bucket_that_is_not_there(self, s3_account: S3Account) -> None:
        store = ArtifactStore("s3://no-such-bucket/x", allow_http=True)
        await _fails_clearly(store, "NoSuchBucket", "; check the bucket in APC_ARTIFACTS_URL")

    async def test_http_has_to_be_allowed(self, s3_account: S3Account) -> None:
        store = ArtifactStore(f"s3://{S3Server.BUCKET}/x")
        await _fails_clearly(store, "HTTP error", "; an http:// endpoint wants APC_ARTIFACTS_ALLOW_HTTP=true")

    async def test_a_store_that_is_away_is_asked_a_few_times(
        self, s3_account: S3Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = 0

        def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            writer.transport.abort()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            store = ArtifactStore(f"s3://{S3Server.BUCKET}/x", allow_http=True)
            with pytest.raises(ArtifactError, match="; check AWS_ENDPOINT_URL, and whether the store is up"):
                await store.get(NOBODY)
        assert 1 <= asked <= 5

    async def test_what_was_put_while_it_was_away_can_be_put_again(
        self, s3_account: S3Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as nobody_listens:
            nobody_listens.bind(("127.0.0.1", 0))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody_listens.getsockname()[1]}")
            with pytest.raises(ArtifactError, match="cannot store artifact"):
                await ArtifactStore(f"s3://{S3Server.BUCKET}/x", allow_http=True).put(b"kept")
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_account.endpoint)
        store = ArtifactStore(f"s3://{S3Server.BUCKET}/x", allow_http=True)
        assert await store.get(await store.put(b"kept")) == b"kept"


async def _fails_clearly(store: ArtifactStore, code: str, remedy: str) -> None:
    """Every call names what the store said (to HEAD it says nothing) and what to look at, in a line."""
    works: dict[str, Any] = {
        code: store.put(b"x"),
        f"read.*{code}": store.get(NOBODY),
        f"cannot read.*{code}": store.check(NOBODY),
        "cannot .*artifact": store.exists(NOBODY),
    }
    for words, work in works.items():
        with pytest.raises(ArtifactError, match=f"{words}.*{remedy}") as failed:
            await work
        assert not isinstance(failed.value, ArtifactMissing)
        assert len(str(failed.value)) < 400 and "\n" not in str(failed.value)
