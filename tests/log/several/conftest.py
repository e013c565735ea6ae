"""Two fresh databases, for a log that commands divide between them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log.split import as_server_reaches
from tests.support.servers import PostgresServer


@pytest.fixture
async def urls(fdw_server: PostgresServer) -> AsyncIterator[list[str]]:
    """Two fresh databases, of which the server of the first reaches the second."""
    names = [await fdw_server.clone(), await fdw_server.clone()]
    home, away = map(fdw_server.url_of, names)
    connection = await asyncpg.connect(home)
    away = await as_server_reaches(connection, away)
    await connection.close()
    yield [home, away]
    for name in names:
        await fdw_server.drop(name)
