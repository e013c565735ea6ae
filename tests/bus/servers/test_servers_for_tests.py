"""Which servers the tests run on: what the machine has comes first, and a version that is missing fails."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from tests.support.servers import PostgresServer, rabbit, rabbit_choice, start_given_postgres
from tests.support.servers import postgres as postgres_servers
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries

from apc_bus.errors import BusUnavailable


@pytest.fixture
def programs() -> Path:
    """The programs of the newest Postgres on this machine: the embedded wheel's at least."""
    return next(found for version in (18, 17, 16, 15) if (found := find_binaries(version)) is not None)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `docker` whose engine answers."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 0\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_private_server_answers_and_leaves_nothing_behind(programs: Path) -> None:
    server = PrivatePostgres(programs)
    folder = Path(server.url.partition("host=")[2])
    try:
        assert asyncio.run(_is_superuser(server.url))
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        server.close()
    assert not folder.exists()


async def _is_superuser(url: str) -> bool:
    connection = await asyncpg.connect(url, timeout=30)
    try:
        return bool(await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"))
    finally:
        await connection.close()


def test_a_private_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    for name in ("initdb", "pg_ctl"):
        (tmp_path / name).write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    with pytest.raises(BusUnavailable, match=r"initdb failed: (no room|.*Permission denied)"):
        PrivatePostgres(tmp_path)


async def test_a_version_that_is_missing_fails_and_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> PostgresServer | None:
        return None

    monkeypatch.setenv("APC_TEST_POSTGRES", "9")
    monkeypatch.delenv("APC_TEST_CONTAINERS", raising=False)
    monkeypatch.setattr(postgres_servers, "local_postgres", nothing)
    monkeypatch.setattr(postgres_servers, "docker_answers", lambda: False)
    with pytest.raises(BusUnavailable, match="the tests need Postgres 9: install postgresql-9"):
        await start_given_postgres()


async def test_a_version_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_TEST_POSTGRES", "latest")
    with pytest.raises(BusUnavailable, match="APC_TEST_POSTGRES must be a major version"):
        await start_given_postgres()


def test_the_installed_broker_is_used_before_a_container(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APC_AMQP_URL", raising=False)
    monkeypatch.delenv("APC_TEST_CONTAINERS", raising=False)
    monkeypatch.setattr(rabbit, "find_scripts", lambda: Path("/usr/lib/rabbitmq/bin"))
    assert rabbit_choice() == "private node"
    monkeypatch.setattr(rabbit, "find_scripts", lambda: None)
    assert rabbit_choice() == "container"


def test_containers_are_used_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_TEST_CONTAINERS", "1")
    assert rabbit_choice() == "container"
    assert postgres_servers.postgres_choice().startswith("container")


def test_what_starts_containers_warns_of_nothing() -> None:
    needed = "from testcontainers.core import container, wait_strategies"
    done = subprocess.run([sys.executable, "-W", "error", "-c", needed], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
