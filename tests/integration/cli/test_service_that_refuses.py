"""A service that refuses to start: `apc automl run` and `apc up` say which one, and why."""

from pathlib import Path

import asyncpg
import pytest

from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.errors import ServiceAway
from apc_cli.system.supervisor import run_supervised


@pytest.mark.long
async def test_a_log_writer_that_refuses_says_why(
    amqp_vhost_url: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(postgres_url)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await connection.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)

    with pytest.raises(ServiceAway, match=r"the persister does not start: .*synchronous_commit off"):
        async with run_supervised(BusSettings(), DatabaseSettings(), [], logs=tmp_path / "logs"):
            raise AssertionError("it must not come up")
