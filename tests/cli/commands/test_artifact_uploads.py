"""`apc serve artifacts` over an S3-like store: an agent that may only read it uploads through the service."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.security.artifacts.uploading import send, service, serving
from tests.support.servers import S3Account, S3Server

from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.errors import ArtifactError
from apc_bus.settings import BusSettings
from apc_cli.commands.artifact_uploads import uploads_of

DATA = b"a model" * 1000


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSettings]:
    """Settings of the service: a bucket and a data folder."""
    with S3Server() as server:
        account: S3Account = server.account
        for name, value in account.environment().items():
            monkeypatch.setenv(name, value)
        yield BusSettings(
            artifacts_url=f"s3://{S3Server.BUCKET}/team", artifacts_allow_http=True, data_dir=tmp_path / "data"
        )


@asynccontextmanager
async def serve(settings: BusSettings) -> AsyncIterator[ArtifactStore]:
    """Run the service; give the store as an agent opens it, which writes by the service alone."""
    async with serving(uploads_of(settings, None)) as url:
        yield open_artifacts(settings.model_copy(update={"artifacts_upload_url": url}))


async def test_an_upload_is_in_the_bucket_and_nothing_is_left_behind(settings: BusSettings) -> None:
    async with serve(settings) as store:
        artifact_hash = await store.put(DATA)
        assert artifact_hash == f"sha256:{hashlib.sha256(DATA).hexdigest()}"
        assert await store.put(DATA) == artifact_hash, "twice is once"

    assert await open_artifacts(settings).get(artifact_hash) == DATA
    assert [path for path in settings.data_dir.rglob("*") if path.is_file()] == []


async def test_a_bucket_that_is_missing_is_told(settings: BusSettings) -> None:
    elsewhere = settings.model_copy(update={"artifacts_url": "s3://nowhere/team"})
    async with serve(elsewhere) as store:
        with pytest.raises(ArtifactError, match="check the bucket in APC_ARTIFACTS_URL"):
            await store.put(DATA)


@pytest.mark.parametrize("page", ["/healthz", "/readyz"])
async def test_the_pages_that_a_probe_asks_for_are_there(page: str, tmp_path: Path) -> None:
    async with service(tmp_path / "store") as url:
        answer = await send(url, f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert answer == b"HTTP/1.1 200 OK"
