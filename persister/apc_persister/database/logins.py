"""Logins of agents at the database: `agent.<agent_id>`, or `host.<host>` for all agents of a host.

Each is a member of apc_agent and of nothing else.

They are made and taken away by functions of schema apc_access, which run as the role apc_logins. Who may call them is a
member of apc_registrar; nobody gets another role by them.
"""

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import asyncpg

from apc_log.heads import AnyConnection
from apc_persister.database.guard import LOCK_SCHEMA, is_superuser

Database = AnyConnection | asyncpg.Pool

_SCRIPT = "logins.sql"
_ARE_INSTALLED = """
SELECT to_regprocedure('apc_access.send_away(text)') IS NOT NULL
    AND (SELECT prosrc LIKE '%host/%' FROM pg_proc WHERE oid = to_regprocedure('apc_access.login_of(text)'))
    AND EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'apc_access_agents' AND evtenabled IN ('O', 'A'))
"""
"""What release 0.1.0 did not have."""
_MAY_MAKE = """
SELECT coalesce(has_schema_privilege(oid, 'USAGE')
                AND has_function_privilege('apc_access.make_login(text, text)', 'EXECUTE'), false)
FROM pg_namespace WHERE nspname = 'apc_access'
"""
_CLOSING_ATTEMPTS = 3
"""Each waits two seconds for the entry of the login (logins.sql)."""
_SENDING_INTERVAL_SECONDS = 0.05
_ITERATIONS = 4096
"""As PostgreSQL itself; passwords of 256 random bits need no more."""


async def complete_logins(connection: asyncpg.Connection, scripts: Path) -> None:
    """Install the functions where they are missing, as a superuser; nothing for anybody else.

    Args:
        scripts: folder `sql` of the migrations.
    """
    if not await is_superuser(connection) or await connection.fetchval(_ARE_INSTALLED):
        return
    async with connection.transaction():
        await connection.execute(LOCK_SCHEMA)
        await connection.execute(await asyncio.to_thread((scripts / _SCRIPT).read_text, encoding="utf-8"))


def host_owner(host: str) -> str:
    """Return the owner of a host's login, for the functions below: no agent has an id like it."""
    return f"host/{host}"


async def may_make_logins(database: Database) -> bool:
    """Return whether our user makes logins of agents here."""
    return bool(await database.fetchval(_MAY_MAKE))


async def make_login(database: Database, owner: str, password: str) -> bool:
    """Make the login of an agent or a host, or give it this password; whether it is new.

    Args:
        owner: the id of the agent, or `host_owner` of the host.

    Raises:
        asyncpg.InvalidParameterValueError: the id is too long for the name of a login.
        asyncpg.InsufficientPrivilegeError: a role of that name is an administrator's, or we may not.
        asyncpg.LockNotAvailableError: a transaction that the login leaves open holds its entry: revoke the agent.
    """
    return bool(await database.fetchval("SELECT apc_access.make_login($1, $2)", owner, scram_verifier(password)))


async def end_login(pool: asyncpg.Pool, owner: str) -> bool | None:
    """Take a login away and end its connections; None when there was none, False when it stays, closed.

    Its connections are ended before, while and after it is closed: one of them may hold its entry locked.

    Args:
        pool: of at least two connections.
        owner: as in `make_login`.

    Raises:
        asyncpg.LockNotAvailableError: something else holds its entry, such as a prepared transaction; it may be open.
        asyncpg.PostgresError: as `make_login`.
    """
    sending = asyncio.create_task(_keep_sending_away(pool, owner))
    try:
        if not await _unless_locked(pool, "SELECT apc_access.close_login($1)", owner):
            return None
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return bool(await _unless_locked(pool, "SELECT apc_access.end_login($1)", owner))


async def _keep_sending_away(pool: asyncpg.Pool, owner: str) -> None:
    while True:
        await pool.fetchval("SELECT apc_access.send_away($1)", owner)
        await asyncio.sleep(_SENDING_INTERVAL_SECONDS)


async def _unless_locked(pool: asyncpg.Pool, statement: str, owner: str) -> object:
    for _ in range(_CLOSING_ATTEMPTS - 1):
        with suppress(asyncpg.LockNotAvailableError):
            return await pool.fetchval(statement, owner)
    return await pool.fetchval(statement, owner)


def scram_verifier(password: str) -> str:
    """Return what a server keeps of a password for SCRAM-SHA-256 (RFC 5803); the password is ASCII."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    parts = (b64encode(part).decode() for part in (salt, stored_key, server_key))
    return "SCRAM-SHA-256${}:{}${}:{}".format(_ITERATIONS, *parts)
