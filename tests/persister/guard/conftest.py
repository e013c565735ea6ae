"""A log with entries on each available server: the embedded PostgreSQL, and the one of this machine if it answers."""

import asyncio
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.support.log import coordination, lifecycle, packet_entry
from tests.support.servers import PostgresServer, asked_version, containers_asked, local_postgres

from apc_bus.settings import PersisterSettings
from apc_log.batch import Entry
from apc_log.entries import Placed
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.transaction import store


def _servers() -> tuple[str, ...]:
    """Return the server that the run asks for, else the embedded one and that of this machine if it answers."""
    if asked_version() is not None or containers_asked():
        return ("asked",)
    return ("embedded", "machine") if asyncio.run(local_postgres()) else ("embedded",)


SERVERS = _servers()


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server with a migrated template; the run's own when it is the one asked for."""
    if request.param == "asked" or (postgres_server.description == "embedded") == (request.param == "embedded"):
        yield postgres_server
        return
    prepared = asyncio.run(_prepare(request.param))
    yield prepared
    asyncio.run(prepared.close())


async def _prepare(choice: str) -> PostgresServer:
    prepared = await (_start_embedded() if choice == "embedded" else local_postgres())
    assert prepared is not None
    await prepared.prepare(migrate)
    return prepared


async def _start_embedded() -> PostgresServer:
    resources = AsyncExitStack()
    folder = Path(tempfile.mkdtemp(prefix="apc-postgres-"))
    resources.callback(shutil.rmtree, folder, ignore_errors=True)
    embedded = await start_embedded(folder)
    resources.push_async_callback(embedded.stop)
    return PostgresServer("embedded", embedded.url, resources)


@dataclass(frozen=True, slots=True)
class GuardedLog:
    """A database with a log, and a log-in user that may become its owner."""

    url: str
    migrator: str

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.url.split("?")[0].rpartition("/")[2]

    @property
    def migrator_url(self) -> str:
        """The URL of the log-in user."""
        return re.sub("//[^/]*@", f"//{self.migrator}:p@", self.url)


@pytest.fixture(scope="session")
def guarded_log(server: PostgresServer) -> Iterator[GuardedLog]:
    """A log with an entry in every table, for tests that leave it as it is."""
    log = asyncio.run(_make_log(server))
    yield log
    asyncio.run(_drop_log(server, log))


@pytest.fixture
async def fresh_log(server: PostgresServer) -> AsyncIterator[GuardedLog]:
    """A log of the test's own."""
    log = await _make_log(server)
    yield log
    await _drop_log(server, log)


@pytest.fixture
async def superuser(guarded_log: GuardedLog) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to `guarded_log`."""
    connection = await asyncpg.connect(guarded_log.url)
    yield connection
    await connection.close()


async def _make_log(server: PostgresServer) -> GuardedLog:
    log = GuardedLog(server.url_of(await server.clone()), f"apc_test_{secrets.token_hex(6)}")
    connection = await asyncpg.connect(log.url)
    try:
        # NOINHERIT: a member that has to become the owner by SET ROLE.
        await connection.execute(f"CREATE ROLE {log.migrator} LOGIN PASSWORD 'p' NOINHERIT IN ROLE apc_owner")
        # Whatever the database lets a role do beside the log, the owner may do: the guard alone must hold.
        await connection.execute("CREATE SCHEMA elsewhere AUTHORIZATION apc_owner")
        await connection.execute(f"GRANT CREATE ON DATABASE {log.database} TO apc_owner")
        await connection.execute("INSERT INTO apc_log.shards VALUES (0, 1, NULL, 1, 1), (1, 1, NULL, 1, 1)")
        packet = packet_entry()
        entries: list[Entry] = [packet, *lifecycle(packet), coordination(packet, 1, "open", "A", "B")]
        placed = [Placed((0, seq, 1, 1), packet.created_at, entry) for seq, entry in enumerate(entries, 1)]
        await connection.set_type_codec("jsonb", schema="pg_catalog", format="binary", encoder=_jsonb, decoder=bytes)
        async with connection.transaction():
            leaves = await store(connection, placed, await connection.fetchval("SELECT now()"))
            await TreeSigner(0, load_signer(PersisterSettings())).attest(connection, 1, leaves)
        await connection.execute("UPDATE apc_log.shards SET next_seq = $1 WHERE shard = 0", len(placed) + 1)
        await connection.execute(
            "INSERT INTO apc_log.log_checkpoints (shard, tree_size, root_hash, note) VALUES (9, 1, sha256('x'), 'n')"
        )
    finally:
        await connection.close()
    return log


def _jsonb(value: bytes) -> bytes:
    return b"\x01" + value


async def _drop_log(server: PostgresServer, log: GuardedLog) -> None:
    await server.drop(log.database)
    await server._execute(f"DROP ROLE {log.migrator}")
