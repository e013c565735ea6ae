"""Real services for every test: its own virtual host and database, never a mock, never a skip."""

import asyncio
import functools
import inspect
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from tests.support.failover.demotion import Demoted
from tests.support.servers import (
    PostgresServer,
    PrivateNode,
    RabbitServer,
    local_postgres,
    postgres_choice,
    rabbit_choice,
    start_given_postgres,
)
from tests.support.servers.containers import docker_answers
from tests.support.servers.folders import make_server_folder, prefer_memory

from apc_bus.in_memory import InMemoryBroker
from apc_bus.topology import build_topology
from apc_persister.database.several import name_database

pytest_plugins = ["tests.faults.results", "tests.scheduling", "tests.sharing"]

# Signs the checkpoints of every log of the tests, here and in the processes that they start; bytes 0 to 31.
TEST_LOG_KEY = (
    "-----BEGIN PRIVATE KEY-----\n"
    "MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"
    "-----END PRIVATE KEY-----\n"
)
os.environ["APC_LOG_KEY"] = TEST_LOG_KEY
os.environ["APC_CHECKPOINTS_URL"] = "memory:///"  # not into the folder that the tests are run from

prefer_memory()

# A busy machine is no fault of what is tested: speed belongs in benchmarks/.
settings.register_profile(
    "apc",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("APC_TEST_EXAMPLES", "40")),
)
settings.load_profile("apc")

_NODE_FIXTURES = {"rabbit_node", "guarded_broker"}
_RABBIT_FIXTURES = {"rabbit_server", *_NODE_FIXTURES}
_POSTGRES_FIXTURES = {"postgres_server"}
_executed: Counter[str] = Counter()


@pytest.fixture(scope="session")
def rabbit_url(rabbit_server: RabbitServer) -> str:
    """AMQP URL of a virtual host that the whole run shares."""
    return rabbit_server.fresh_vhost_url()


@pytest.fixture
def amqp_vhost_url(rabbit_server: RabbitServer) -> Iterator[str]:
    """AMQP URL of a fresh virtual host, nothing declared in it."""
    url = rabbit_server.fresh_vhost_url()
    yield url
    rabbit_server.give_back(url)


@pytest.fixture
def rabbit_node() -> Iterator[PrivateNode]:
    """A started broker node that the test may stop, kill and start again."""
    with PrivateNode() as node:
        yield node


@pytest.fixture
def memory_broker() -> InMemoryBroker:
    """The in-process broker with one shard and no agents."""
    return InMemoryBroker(build_topology())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The Postgres of this run, with a migrated template database."""
    from apc_persister.database.migrate import migrate

    async def prepare() -> PostgresServer:
        server = await start_given_postgres() or await _start_embedded()
        await server.prepare(migrate)
        return server

    server = asyncio.run(prepare())
    yield server
    asyncio.run(server.close())


@pytest.fixture(scope="session")
def fdw_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A Postgres with the extension postgres_fdw: this run's, or the machine's: the embedded one has it not."""
    from apc_persister.database.migrate import migrate

    async def prepare() -> PostgresServer:
        server = await local_postgres()
        if server is None:
            pytest.skip("reading over several databases needs a PostgreSQL with postgres_fdw on this machine")
        await server.prepare(migrate)
        return server

    if asyncio.run(postgres_server.offers("postgres_fdw")):
        yield postgres_server
        return
    server = asyncio.run(prepare())
    yield server
    asyncio.run(server.close())


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """URL of a fresh database with the current schema."""
    name = await postgres_server.clone()
    yield postgres_server.url_of(name)
    await postgres_server.drop(name)


@pytest.fixture
async def east_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """URL of a second fresh database, which is called `east`."""
    name = await postgres_server.clone()
    connection = await asyncpg.connect(postgres_server.url_of(name))
    await name_database(connection, "east")
    await connection.close()
    yield postgres_server.url_of(name)
    await postgres_server.drop(name)


@pytest.fixture
async def demoted(postgres_url: str) -> AsyncIterator[Demoted]:
    """A fresh database on a server that refuses changes, until the test restores it."""
    demoted = Demoted(postgres_url)
    await demoted.demote()
    yield demoted
    demoted.close()


@pytest.fixture(scope="module")
def file_database(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a database that the tests of a file share (`app_database_url`)."""
    name = asyncio.run(postgres_server.clone())
    yield postgres_server.url_of(name)
    asyncio.run(postgres_server.drop(name))


@pytest.fixture
async def app_database_url(file_database: str) -> AsyncIterator[str]:
    """URL of a database whose agents' tables are empty: for what writes nowhere else. Cheaper than `postgres_url`."""
    yield file_database
    connection = await asyncpg.connect(file_database)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'apc_app'")
    await connection.execute(f"TRUNCATE {', '.join(f'apc_app.{row[0]}' for row in tables)} RESTART IDENTITY CASCADE")
    await connection.close()


async def _start_embedded() -> PostgresServer:
    from apc_persister.database.embedded import start_embedded

    resources = AsyncExitStack()
    folder = make_server_folder("apc-postgres-")
    resources.callback(shutil.rmtree, folder, ignore_errors=True)
    embedded = await start_embedded(folder)
    resources.push_async_callback(embedded.stop)
    return PostgresServer("embedded", embedded.url, resources)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        action="store_true",
        help="only long fault runs and the tests that docs/explanation/faults.md names; fails on a row not exercised",
    )


def pytest_report_header() -> list[str]:
    return [
        f"rabbitmq: {rabbit_choice() or 'NONE FOUND: broker tests will fail'}",
        f"postgres: {postgres_choice()}",
        f"containers: {'an engine answers' if docker_answers() else 'no Docker engine answers'}",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & _RABBIT_FIXTURES:
            item.add_marker(pytest.mark.broker)
        if fixtures & _NODE_FIXTURES:
            item.add_marker(pytest.mark.own_node)
        if fixtures & _POSTGRES_FIXTURES:
            item.add_marker(pytest.mark.postgres)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _cancelled_after(item.obj, 0.8 * _time_limit(item))


def _time_limit(item: pytest.Function) -> float:
    """Return the seconds after which pytest-timeout interrupts a test."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getoption("timeout") or item.config.getini("timeout"))


def _cancelled_after(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    """Return the test with a limit in its own event loop, before pytest-timeout's.

    A signal is raised inside whatever callback happens to run, and an event loop may swallow it.
    """

    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return limited


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and not report.skipped:
        _executed.update({"broker", "postgres"} & set(report.keywords))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(
        f"really run: {_executed['broker']} RabbitMQ tests, {_executed['postgres']} Postgres tests"
    )
