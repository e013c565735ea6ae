"""Somebody has taken the web console over, and tries what its users at database and broker let them do."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from tests.orchestrator.waiting.office import Office

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.settings import sources
from apc_bus.topology import RECEIPTS
from apc_cli.connections import PATIENCE
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.vocabulary import Right
from apc_web.access import UsersDocument, read_users, write_users
from apc_web.pool import open_state_reader

PASSWORD = "a-password-of-a-test"
ACTS = {
    "change a task": "UPDATE apc_app.agent_tasks SET status = 'succeeded' WHERE false",
    "forget an effect": "UPDATE apc_app.agent_effects SET is_removed = true WHERE false",
    "plan a task": "INSERT INTO apc_app.agent_tasks (agent_id) SELECT 'x' WHERE false",
    "read memories": "SELECT FROM apc_app.agent_state_store",
    "read conversations": "SELECT FROM apc_app.conversation_history",
}
READ_ONLY = "SET default_transaction_read_only = off"


@pytest.fixture
async def login(postgres_url: str) -> AsyncIterator[str]:
    """URL of a login as deploy/postgres-users.sh makes it for the console."""
    name = f"apc_web_{urlsplit(postgres_url).path.rpartition('_')[2]}"
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' IN ROLE apc_reader, apc_state_reader")
    parts = urlsplit(postgres_url)
    yield urlunsplit(parts._replace(netloc=f"{name}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
    await admin.execute(f"DROP ROLE {name}")
    await admin.close()


@pytest.mark.postgres
@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS)
async def test_its_login_reads_tasks_and_effects_and_does_nothing_else(
    postgres_url: str, login: str, act: str, is_guarded: bool
) -> None:
    """Unguarded, its login is a member of `apc_agent`, as every reader of tasks had to be before."""
    if not is_guarded:
        admin = await asyncpg.connect(postgres_url)
        name = urlsplit(login).username
        await admin.execute(f"REVOKE apc_state_reader FROM {name}; GRANT apc_agent TO {name}")
        await admin.close()
    pool = await open_state_reader(login, PATIENCE)
    try:
        async with pool.acquire() as connection:
            await connection.execute(READ_ONLY)
            assert await connection.fetch("SELECT * FROM apc_app.agent_tasks") == []
            assert await connection.fetch("SELECT * FROM apc_app.agent_effects") == []
            if not is_guarded:
                await connection.execute(ACTS[act])
                return
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(ACTS[act])
    finally:
        pool.terminate()


@pytest.mark.postgres
@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS)
async def test_a_server_with_every_right_reads_tasks_and_effects_with_few(
    act: str, is_guarded: bool, postgres_url: str
) -> None:
    """As on the embedded server, where the URL's user owns everything; unguarded, without its role."""
    pool = await open_state_reader(postgres_url, PATIENCE)
    try:
        async with pool.acquire() as connection:
            await connection.execute(READ_ONLY)
            assert await connection.fetch("SELECT * FROM apc_app.agent_effects") == []
            if not is_guarded:
                await connection.execute("SET ROLE NONE")
                await connection.execute(ACTS[act])
                return
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(ACTS[act])
    finally:
        pool.terminate()


@pytest.mark.parametrize(("user", "is_guarded"), [("operator", False), ("web", True)])
async def test_its_broker_user_registers_nobody(office: Office, user: str, is_guarded: bool) -> None:
    """The console's acts are an operator's, but an agent that it adds would have any right."""
    change = AgentAdded(
        change_id=uuid4(), agent_id="mallory", broker_user="web", role="role", swarm_id="red", rights=(Right.OPERATE,)
    )
    message = Message(encode_registry_change(change), str(change.change_id), type=headers.TYPE_REGISTRY, user_id=user)
    async with office.house.gate():
        await office.house.client(user).publish(Publication(RECEIPTS, "0", message))
        await office.house.quiet()
        rows = await office.house.pool.fetch("SELECT FROM apc_log.agents WHERE agent_id = 'mallory'")
        assert len(rows) == (0 if is_guarded else 1)


def test_accounts_in_a_mounted_secret_are_read_unless_others_may_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine mounts a link, or a file that everybody in the container may read; elsewhere neither is taken."""
    real, file = tmp_path / "..data/users.json", tmp_path / "users.json"
    write_users(real, UsersDocument())
    file.symlink_to("..data/users.json")
    real.chmod(0o444)
    with pytest.raises(InputUnusable):
        read_users(file)

    with monkeypatch.context() as unguarded:
        unguarded.setattr(sources, "SECRETS", tmp_path)
        assert read_users(file) == UsersDocument()
        real.chmod(0o464)
        with pytest.raises(InputUnusable):
            read_users(file)
