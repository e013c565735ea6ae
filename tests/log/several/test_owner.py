"""Databases that ask for passwords, joined by an owner of the log who is no superuser."""

import asyncio
import secrets
from collections.abc import Iterator

import asyncpg
import pytest
from tests.support.log.split import AWAY, write_log
from tests.support.servers.ports import free_ports
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries

from apc_bus.database import open_pool
from apc_persister.database.migrate import migrate
from apc_persister.database.several import name_database, place_shard

pytestmark = [pytest.mark.postgres, pytest.mark.long]
RIGHTS = """
CREATE EXTENSION postgres_fdw;
GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO apc_owner;
GRANT CREATE ON DATABASE home TO apc_owner;
"""
"""What docs/how-to/read-several-databases.md asks for."""
COUNTS = "SELECT shard, count(*) > 100 FROM apc_log.agent_packets GROUP BY shard ORDER BY shard"


@pytest.fixture
def server() -> Iterator[tuple[PrivatePostgres, int]]:
    """A Postgres that asks for passwords on a port."""
    binaries, (port,) = find_binaries(15), free_ports(1)
    if binaries is None or not (binaries.parent / "lib" / "postgres_fdw.so").exists():
        pytest.skip("joining databases by passwords needs the programs of PostgreSQL 15 with postgres_fdw")
    server = PrivatePostgres(binaries, port)
    yield server, port
    server.close()


async def test_an_owner_with_a_password_joins_databases(server: tuple[PrivatePostgres, int]) -> None:
    postgres, port = server
    passwords = {name: secrets.token_hex(8) for name in ("operator", "reader")}

    def administered(database: str) -> str:
        return postgres.url.replace("/postgres?", f"/{database}?")

    def url(user: str, database: str) -> str:
        return f"postgresql://{user}:{passwords[user]}@127.0.0.1:{port}/{database}"

    administrator = await asyncpg.connect(postgres.url)
    for database in ("home", AWAY):
        await administrator.execute(f"CREATE DATABASE {database}")
        await migrate(administered(database))
    for user, role in (("operator", "apc_owner"), ("reader", "apc_reader")):
        await administrator.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{passwords[user]}' IN ROLE {role}")
    await administrator.close()
    home, away = await asyncpg.connect(administered("home")), await asyncpg.connect(administered(AWAY))
    await home.execute(RIGHTS)
    await name_database(away, AWAY)
    await asyncio.gather(home.close(), away.close())

    home, away = await asyncpg.connect(url("operator", "home")), await asyncpg.connect(url("operator", AWAY))
    assert await place_shard({"home": home, AWAY: away}, 1, AWAY, {AWAY: url("reader", AWAY)}) == "home"
    await asyncio.gather(home.close(), away.close())
    await write_log(administered("home"), batches=1, shards=[0])
    await write_log(administered(AWAY), batches=1, shards=[1])
    pool = await open_pool(url("reader", "home"), max_size=1, parts={AWAY: [1]})
    assert [tuple(row) for row in await pool.fetch(COUNTS)] == [(0, True), (1, True)]
    await pool.close()
