"""A client that is killed while it starts a session: the broker has the whole start, or nothing of it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.integration.clients.interrupted_starter import team
from tests.integration.conftest import House
from tests.support.traffic import until

from apc_client.registration import register_schemas

STATES = "SELECT state FROM apc_log.sessions"
ROOT = Path(__file__).parents[3]
SIZE = 200_000
"""Characters of the input: beyond what packets that are sent by chance at once may have together."""


async def start(house: House, postgres_url: str, **environment: str) -> tuple[int, str]:
    """Run the starter; return its exit code and what it printed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
    amqp_url = house.settings.amqp_url
    assert amqp_url is not None
    given = {"APC_AMQP_URL": amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.clients.interrupted_starter", str(SIZE),
        env=inherited | given | environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode().strip()


@pytest.mark.long
async def test_a_client_that_dies_after_the_first_confirm_has_sent_everything(house: House, postgres_url: str) -> None:
    async with house.persister(), house.gate():
        await house.agents.register()
        await register_schemas(house.agents.bus, house.pool, 1, team().documents)
        code, said = await start(house, postgres_url, APC_CRASH_AT="publisher.after_confirm")
        assert (code, said) == (-signal.SIGKILL, ""), "not exercised"

        async def is_at_work() -> bool:
            return [row["state"] for row in await house.pool.fetch(STATES)] == ["WORKING"]

        await until(is_at_work)
        code, session_id = await start(house, postgres_url)
        assert code == 0
        assert [row[0] for row in await house.pool.fetch("SELECT session_id FROM apc_log.sessions")] == [session_id]
