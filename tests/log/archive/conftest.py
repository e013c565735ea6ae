"""An archived log that the tests of this folder share: they copy what they change."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.log.archived import ArchivedLog, archive_log
from tests.support.servers import PostgresServer, S3Server


@pytest.fixture(scope="session")
def archived(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchivedLog]:
    """Two segments in a folder, the second one's database still there."""
    name = asyncio.run(postgres_server.clone())
    yield asyncio.run(archive_log(postgres_server.url_of(name), tmp_path_factory.mktemp("archive")))
    asyncio.run(postgres_server.drop(name))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server with a bucket of locked objects, which checks keys."""
    with S3Server() as server:
        yield server
