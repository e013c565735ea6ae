"""Commands that name what a running system does not have: one line says so."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import SESSION


@pytest.mark.long
async def test_commands_that_name_what_is_not_there(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}

    async def fails(words: str, *arguments: str) -> None:
        done = await asyncio.to_thread(apc, *arguments, given=given)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done

    nobody = str(UUID(int=7))
    async with house.persister(), house.gate():
        await house.open_session()
        await fails("the log holds no session 'elsewhere'", "session", "show", "elsewhere")
        await fails("nobody is not registered", "session", "stop", SESSION, "--as", "nobody")
        await fails(f"the log holds no packet {nobody}", "packet", "impact", nobody)
