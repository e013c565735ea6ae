"""Anyone who may make logins of agents, and what else he would like to get by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest
from tests.security.database.conftest import PASSWORD, Logins
from tests.support.waiting import until

from apc_bus.database import open_pool
from apc_log.heads import AnyConnection
from apc_persister.database.logins import end_login, make_login, may_make_logins, scram_verifier
from apc_persister.database.migrate import migrate

VERIFIER = scram_verifier(PASSWORD)
ANY_NAME = ("agent_id !~ '^[A-Za-z0-9][A-Za-z0-9._:-]*$' OR octet_length(agent_id) > 57", "false")
"""What takes the check of a login's name away."""
MAKE = "SELECT apc_access.make_login($1, $2)"
MEMBERSHIPS = """
SELECT array_agg(DISTINCT roleid::regrole::text) FROM pg_auth_members WHERE member = to_regrole($1)
"""


async def as_registrar(logins: Logins, statement: str, *arguments: object) -> object:
    """Return what a member of apc_registrar gets, as the role itself: nobody's superuser."""
    async with logins.admin.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL ROLE apc_registrar")
        return await connection.fetchval(statement, *arguments)


@asynccontextmanager
async def unguarded(logins: Logins, **checks: tuple[str, str]) -> AsyncIterator[AnyConnection]:
    """As a registrar, until the end: functions of apc_access whose text says the second where it says the first."""
    async with logins.admin.acquire() as connection:
        attempt = connection.transaction()
        await attempt.start()
        try:
            query = "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1"
            for function, (check, instead) in checks.items():
                row = await connection.fetchrow(f"{query} AND pronamespace = 'apc_access'::regnamespace", function)
                assert row is not None
                name, text = row
                assert check in text
                await connection.execute(text.replace(check, instead))
                await connection.execute(f"ALTER FUNCTION {name} OWNER TO CURRENT_USER")
            await connection.execute("SET LOCAL ROLE apc_registrar")
            yield connection
        finally:
            await attempt.rollback()


async def everything_of(logins: Logins, roles: list[str]) -> list[asyncpg.Record]:
    """Return the rights of roles and what they are members of; and whatever this test made."""
    known: list[asyncpg.Record] = await logins.admin.fetch(
        "SELECT * FROM pg_roles WHERE rolname = ANY($1) OR rolname LIKE $2 ORDER BY oid", roles, f"%{logins.name}%"
    )
    return known + await logins.admin.fetch(
        "SELECT roleid, member, admin_option FROM pg_auth_members JOIN pg_roles ON pg_roles.oid = member "
        "WHERE rolname = ANY($1) AND roleid::regrole::text NOT LIKE '\"agent.%' ORDER BY roleid, member, grantor",
        roles,
    )


async def test_it_makes_members_of_apc_agent(logins: Logins) -> None:
    pool = await logins.pool("a")
    login = f"agent.{logins.agent('a')}"
    assert await pool.fetchval("SELECT session_user") == login
    assert await logins.admin.fetchval(MEMBERSHIPS, f'"{login}"') == ["apc_agent"]
    rights = await logins.admin.fetchrow(
        "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls FROM pg_roles WHERE rolname = $1",
        login,
    )
    assert rights is not None and not any(rights)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await pool.fetch("SELECT * FROM apc_log.agents")


async def test_nobody_but_a_registrar_may_call_it(logins: Logins) -> None:
    pool = await logins.pool("a")
    async with pool.acquire() as connection:
        assert not await may_make_logins(connection)
    other = logins.agent("x")
    statements = (
        f"SELECT apc_access.make_login('{other}', '{VERIFIER}')",
        f"SELECT apc_access.close_login('{other}')",
        f"SELECT apc_access.send_away('{other}') = 0",
        f"SELECT apc_access.end_login('{other}')",
    )
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.execute(statement)
    async with logins.admin.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL ROLE apc_registrar")
        assert await may_make_logins(connection)
        for statement in statements:
            assert await connection.fetchval(statement), "the acts work for a registrar"


async def test_no_other_role_is_got_by_it(logins: Logins) -> None:
    """Every role of the server, by its name and by what a name could be made to say."""
    query = "SELECT rolname FROM pg_roles WHERE NOT starts_with(rolname::text, 'agent.')"
    roles = [row["rolname"] for row in await logins.admin.fetch(query)]
    before = await everything_of(logins, roles)
    assert {"apc_owner", "apc_writer", "apc_reader", "apc_logins", "apc_registrar", "postgres"} <= {*roles, "postgres"}
    for role in roles:
        for name in (
            f'x" IN ROLE "{role}',
            f'x" SUPERUSER IN ROLE "{role}"; --',
            f"'; GRANT {role} TO x; --",
            f"../{role}",
        ):
            with pytest.raises(asyncpg.InvalidParameterValueError):
                await as_registrar(logins, "SELECT apc_access.make_login($1, $2)", name, VERIFIER)
    for verifier in (PASSWORD, f"{VERIFIER}' SUPERUSER", f"{VERIFIER} ", "", "md5" + "0" * 32, None):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await as_registrar(logins, "SELECT apc_access.make_login($1, $2)", logins.agent("a"), verifier)
    assert await everything_of(logins, roles) == before
    async with unguarded(logins, login_of=ANY_NAME, make_login=("%I", '"%s"')) as registrar:
        await registrar.execute(MAKE, f'{logins.agent("x")}" SUPERUSER IN ROLE "apc_reader"; --', VERIFIER)
        made = f"agent.{logins.agent('x')}"
        assert await registrar.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = $1", made), "without the guards"
        assert await registrar.fetchval(MEMBERSHIPS, f'"{made}"') == ["apc_reader"]


@pytest.mark.parametrize(
    "rights",
    [
        "SUPERUSER",
        "CREATEROLE",
        "BYPASSRLS",
        "IN ROLE apc_reader",
        "IN ROLE apc_agent, apc_owner",
        "NOLOGIN",
        "IN ROLE apc_agent ADMIN apc_reader",
    ],
)
async def test_a_mightier_role_of_such_a_name_is_not_taken_over(logins: Logins, rights: str) -> None:
    agent_id = logins.agent("old")
    await logins.admin.execute(f'CREATE ROLE "agent.{agent_id}" {rights}')
    try:
        for statement in (
            f"SELECT apc_access.make_login($1, '{VERIFIER}')",
            "SELECT apc_access.close_login($1)",
            "SELECT apc_access.end_login($1)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="its administrator changes it"):
                await as_registrar(logins, statement, agent_id)
        async with unguarded(logins, is_ours=("RAISE EXCEPTION", "RAISE NOTICE"), make_login=("%I", "%I")) as registrar:
            await registrar.execute(MAKE, agent_id, VERIFIER)
            await registrar.execute("RESET ROLE")
            query = "SELECT rolpassword FROM pg_authid WHERE rolcanlogin AND rolname = $1"
            assert await registrar.fetchval(query, f"agent.{agent_id}") == VERIFIER, "taken over without the guard"
    finally:
        await logins.admin.execute(f'DROP ROLE "agent.{agent_id}"')


async def test_a_name_is_never_cut_short(logins: Logins) -> None:
    """Postgres cuts names at 63 bytes: two agents would share a login."""
    with pytest.raises(asyncpg.InvalidParameterValueError, match="57 characters"):
        await make_login(logins.admin, "a" * 58, PASSWORD)
    async with unguarded(logins, login_of=ANY_NAME, make_login=("%I", "%I")) as registrar:
        assert await registrar.fetchval(MAKE, "a" * 58, VERIFIER)
        assert not await registrar.fetchval(MAKE, "a" * 57, VERIFIER), "without the guard it is the login of the other"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_what_a_schema_in_the_way_says_does_not_count(logins: Logins, is_guarded: bool) -> None:
    path = "SET search_path TO 'pg_catalog', 'pg_temp'"
    async with unguarded(logins, make_login=(path, path if is_guarded else "")) as registrar:
        await registrar.execute("RESET ROLE")
        await registrar.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO apc_registrar")
        await registrar.execute(
            "CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS "
            "$$ SELECT 'ALTER ROLE apc_registrar SUPERUSER' $$"
        )
        await registrar.execute("SET LOCAL search_path = evil, pg_catalog; SET LOCAL ROLE apc_registrar")
        await registrar.fetchval(MAKE, logins.agent("evil"), VERIFIER)
        await registrar.execute("RESET ROLE")
        is_super = await registrar.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = 'apc_registrar'")
        assert is_super is not is_guarded


async def test_a_revoked_login_is_sent_away_and_cannot_come_back(logins: Logins) -> None:
    agent_id = logins.agent("a")
    await logins.make(agent_id)
    inside = await asyncpg.connect(logins.url_for(agent_id))
    await inside.execute("SELECT lo_create(0)")  # what it owns keeps its role from being dropped
    assert await end_login(logins.admin, agent_id) is False

    async def is_sent_away() -> bool:
        await asyncio.gather(inside.execute("SELECT 1"), return_exceptions=True)
        return inside.is_closed()

    await until(is_sent_away, 60)
    assert not await logins.admin.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", f"agent.{agent_id}")
    with pytest.raises((asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
        await asyncpg.connect(logins.url_for(agent_id))
    await make_login(logins.admin, agent_id, PASSWORD)
    again = await open_pool(logins.url_for(agent_id), max_size=1)
    await again.close()
    await logins.admin.execute(f'DROP OWNED BY "agent.{agent_id}"')
    assert await end_login(logins.admin, agent_id) is True
    assert await end_login(logins.admin, agent_id) is None


async def test_an_agent_does_not_prevent_its_own_revocation(logins: Logins) -> None:
    """It locks the entry of its login in a transaction that it leaves open, and comes back when it is sent away."""
    agent_id = logins.agent("a")
    await logins.make(agent_id)

    async def hold(connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN; ALTER ROLE CURRENT_USER SET work_mem = '1MB'")
        await connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{PASSWORD}'")

    async def come_back() -> None:
        while True:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                connection = await asyncpg.connect(logins.url_for(agent_id))
                try:
                    await hold(connection)
                    await connection.execute("SELECT pg_sleep(60)")
                finally:
                    connection.terminate()

    first = await asyncpg.connect(logins.url_for(agent_id))
    await hold(first)
    with pytest.raises(asyncpg.LockNotAvailableError):  # nobody else waits for it without end
        await logins.admin.fetchval("SELECT apc_access.close_login($1)", agent_id)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await make_login(logins.admin, agent_id, PASSWORD)
    coming = [asyncio.create_task(come_back()) for _ in range(3)]
    try:
        assert await end_login(logins.admin, agent_id) is True
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        first.terminate()
    assert await logins.admin.fetchval("SELECT to_regrole($1)", f'"agent.{agent_id}"') is None
    with pytest.raises((asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
        await asyncpg.connect(logins.url_for(agent_id))


async def test_the_functions_of_an_older_release_are_replaced(logins: Logins) -> None:
    await logins.admin.execute("DROP FUNCTION apc_access.send_away(text)")
    await migrate(logins.url)
    await logins.make(logins.agent("a"))
    assert await logins.admin.fetchval("SELECT apc_access.send_away($1)", logins.agent("a")) == 0
