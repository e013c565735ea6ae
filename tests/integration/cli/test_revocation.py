"""Revoking an agent: the registry first, then each thing that it logs in with, whatever becomes of the others."""

import secrets
from pathlib import Path

import asyncpg
import pytest
from tests.integration.conftest import House
from tests.security.database.conftest import PASSWORD

from apc_cli.commands.agent import AgentForm, add_agent, revoke_agent
from apc_cli.errors import RevocationIncomplete
from apc_log.registry import read_registry
from apc_persister.database.logins import make_login


@pytest.mark.long
async def test_what_is_left_of_a_revoked_agent_is_said(
    house: House, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    agent_id = f"red-{secrets.token_hex(4)}"
    holding = await asyncpg.connect(postgres_url)
    async with house.persister(), house.gate():
        await add_agent(AgentForm(agent_id, "r", "s", "", "", (), None))
        await make_login(house.pool, agent_id, PASSWORD)
        # A transaction that is nobody's to end holds the entry of the login, as a prepared one of the agent would.
        await holding.execute(f"""BEGIN; ALTER ROLE "agent.{agent_id}" PASSWORD 'x'""")
        with pytest.raises(RevocationIncomplete, match=f"Left: database login agent.{agent_id}: a transaction holds"):
            await revoke_agent(agent_id)
        assert (await read_registry(house.pool))[agent_id].is_revoked, "the gate takes nothing of it any more"
        await holding.execute("ROLLBACK")
        remarks = await revoke_agent(agent_id)
    await holding.close()
    assert f"database login agent.{agent_id} is deleted, its connections are closed" in remarks
    assert f"agent {agent_id} was revoked before" in remarks
