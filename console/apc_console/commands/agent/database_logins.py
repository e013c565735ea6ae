"""Create and delete the database logins of agents, together with their broker users."""

from collections.abc import Sequence

import asyncpg

from apc_bus.settings import ConsoleSettings
from apc_console.commands.agent.broker_users import Remarks
from apc_console.connections.passwords import default_file, known_passwords
from apc_contracts.identity.registry import Registration
from apc_persister.database.logins import end_login, make_login, may_make_logins

_REFUSALS = (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError)


async def make_agent_logins(pool: asyncpg.Pool, added: Sequence[Registration]) -> Remarks:
    """Create or repair the logins of agents, each with the password that is known for `agent.<agent_id>`.

    Does nothing where our user is no member of apc_registrar. Raises InputUnusable for passwords that cannot be read.
    """
    if not await may_make_logins(pool):
        return []
    known = known_passwords(default_file())
    remarks = []
    for one in added:
        login = f"agent.{one.agent_id}"
        if login in known:
            remarks += await _make(pool, one.agent_id, login, known[login])
        elif ConsoleSettings().management_url is not None:
            remarks.append(f"database login {login} was not made: its password is not in {default_file()}")
    return remarks


async def _make(pool: asyncpg.Pool, agent_id: str, login: str, password: str) -> Remarks:
    try:
        is_new = await make_login(pool, agent_id, password)
    except _REFUSALS as error:
        return [f"database login {login} was not made: {error}"]
    return [f"made database login {login}: its password is that of the broker user {login}"] if is_new else []


async def end_agent_login(pool: asyncpg.Pool, agent_id: str) -> Remarks:
    """Delete an agent's login and end its connections; does nothing unless our user is a member of apc_registrar."""
    login = f"agent.{agent_id}"
    if not await may_make_logins(pool):
        return []
    try:
        is_gone = await end_login(pool, agent_id)
    except _REFUSALS as error:
        return [f"database login {login} stays: {error}"]
    if is_gone is None:
        return []
    if is_gone:
        return [f"database login {login} is deleted, its connections are closed"]
    return [
        f'database login {login} is closed, and stays because it owns something: DROP OWNED BY "{login}", then again'
    ]
