"""The artifact store: by hash, verified, synced, bounded."""

import asyncio
import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore.open(tmp_path / "artifacts", max_bytes=2_000_000)


def path_of(store: ArtifactStore, artifact_hash: str) -> Path:
    return Path(urlsplit(store.uri(artifact_hash)).path)


@pytest.mark.parametrize("data", [b"", b"model", b"x" * 1_500_000])
async def test_what_was_put_is_got(store: ArtifactStore, data: bytes) -> None:
    artifact_hash = await store.put(data)
    digest = hashlib.sha256(data).hexdigest()
    assert artifact_hash == f"sha256:{digest}"
    assert await store.get(artifact_hash) == data
    assert await store.exists(artifact_hash)
    path = path_of(store, artifact_hash)
    assert path.parts[-4:] == ("sha256", digest[:2], digest[2:4], digest)
    assert path.read_bytes() == data


async def test_many_puts_of_the_same_bytes_are_one_object(store: ArtifactStore) -> None:
    hashes = await asyncio.gather(*(store.put(b"same") for _ in range(20)))
    assert len(set(hashes)) == 1
    assert [p.name for p in path_of(store, hashes[0]).parent.iterdir()] == [hashes[0].removeprefix("sha256:")]


async def test_another_store_on_the_folder_sees_it(store: ArtifactStore, tmp_path: Path) -> None:
    artifact_hash = await store.put(b"shared")
    for location in (str(tmp_path / "artifacts"), (tmp_path / "artifacts").as_uri()):
        assert await ArtifactStore(location).get(artifact_hash) == b"shared"


async def test_a_missing_artifact(store: ArtifactStore) -> None:
    artifact_hash = "sha256:" + "0" * 64
    assert not await store.exists(artifact_hash)
    with pytest.raises(ArtifactMissing, match=artifact_hash):
        await store.get(artifact_hash)


async def test_torn_bytes_are_noticed_and_mended_by_the_next_put(store: ArtifactStore) -> None:
    artifact_hash = await store.put(b"whole")
    path_of(store, artifact_hash).write_bytes(b"who")
    with pytest.raises(ArtifactCorrupt):
        await store.get(artifact_hash)
    assert await store.put(b"whole") == artifact_hash
    assert await store.get(artifact_hash) == b"whole"


async def test_too_many_bytes(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(ArtifactTooLarge):
        await store.put(b"x" * 2_000_001)
    artifact_hash = await store.put(b"x" * 100)
    with pytest.raises(ArtifactTooLarge):
        await ArtifactStore(tmp_path / "artifacts", max_bytes=99).get(artifact_hash)


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:../../etc/passwd", "0" * 64, "SHA256:" + "0" * 64])
async def test_what_is_no_hash(store: ArtifactStore, text: str) -> None:
    with pytest.raises(ArtifactError, match="no artifact hash"):
        await store.get(text)


async def test_a_location_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ArtifactError, match="APC_ARTIFACTS_URL"):
        ArtifactStore.open(tmp_path / "file")
    with pytest.raises(ArtifactError, match="APC_ARTIFACTS_URL"):
        ArtifactStore.open("gopher://host/x")


async def test_an_object_store_by_url() -> None:
    store = ArtifactStore.open("memory:///")
    artifact_hash = await store.put(b"remote")
    assert await store.get(artifact_hash) == b"remote"
    with pytest.raises(ArtifactMissing):
        await store.get("sha256:" + "1" * 64)


async def test_bytes_are_checked_part_by_part(store: ArtifactStore, tmp_path: Path) -> None:
    for data in (b"", b"x", b"0123456789abcdef" * 100_000):
        artifact_hash = await store.put(data)
        await store.check(artifact_hash)
        if data:
            path_of(store, artifact_hash).write_bytes(data[:-1] + b"?")
            with pytest.raises(ArtifactCorrupt):
                await store.check(artifact_hash)
    with pytest.raises(ArtifactMissing):
        await store.check("sha256:" + "0" * 64)
    with pytest.raises(ArtifactTooLarge):
        await ArtifactStore(tmp_path / "artifacts", max_bytes=1).check(artifact_hash)
