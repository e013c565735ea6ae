"""What guards the log in a database: triggers, roles, and event triggers where the server gives a superuser.

docs/explanation/log-security.md tells what holds against whom.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from apc_bus.telemetry import get_logger
from apc_log.heads import AnyConnection

ROLES = ("apc_owner", "apc_writer", "apc_reader", "apc_agent", "apc_recorder")
EVENT_TRIGGERS = (
    "apc_guard_before_rights",
    "apc_guard_after_rights",
    "apc_guard_ddl",
    "apc_guard_drop",
    "apc_guard_rewrite",
)
_ROLES_SCRIPT = "0101_roles"
_GUARD_SCRIPT = "0107_guard"
_FREEZE_SCRIPT = "0108_freeze"

LOCK_SCHEMA = """
DO $$
BEGIN
    IF to_regclass('apc_guard.alembic_version') IS NULL THEN
        PERFORM pg_advisory_xact_lock(x'6170636d696772'::bigint);
    END IF;
    IF to_regclass('apc_guard.alembic_version') IS NOT NULL THEN
        LOCK TABLE apc_guard.alembic_version IN SHARE ROW EXCLUSIVE MODE;
    END IF;
END $$
"""
"""Of several migrations that start together, one works and the rest wait, until their transactions end.

Any login can take an advisory lock by its key, and would keep migrations waiting: it is used for the first one alone.
"""

_FAULTS = "SELECT log_table::text || ' ' || fault FROM apc_guard.faults()"
_IN_FORCE = """
SELECT evtname FROM pg_event_trigger JOIN pg_roles ON pg_roles.oid = evtowner
WHERE evtenabled IN ('O', 'A') AND rolsuper AND coalesce(current_setting('event_triggers', true), 'on') = 'on'
"""
_OWNERS = """
SELECT (SELECT relowner::regrole::text FROM pg_class WHERE oid = 'apc_log.agent_packets'::regclass) AS log_owner,
       rolname AS guard_owner, rolsuper AS is_superuser
FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner WHERE pg_proc.oid = 'apc_guard.refuse_change()'::regprocedure
"""
_RECORDERS = """
SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname <> 'apc_recorder' AND pg_has_role(
    oid, (SELECT proowner FROM pg_proc WHERE oid = 'apc_guard.record(text, jsonb)'::regprocedure), 'MEMBER')
"""
_MY_RIGHTS = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
# The former owner of the log goes on working with it, as a member of its owner.
_TAKE_OVER = """
DO $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT rolname FROM pg_roles
        WHERE NOT rolsuper AND rolname <> 'apc_owner' AND oid IN (
            SELECT nspowner FROM pg_namespace WHERE nspname IN ('apc_log', 'apc_guard'))
    LOOP
        EXECUTE format('GRANT apc_owner TO %I', item.rolname);
    END LOOP;
    FOR item IN
        SELECT format('EVENT TRIGGER %I', evtname) AS name FROM pg_event_trigger WHERE evtname LIKE 'apc_guard_%'
    LOOP
        EXECUTE 'DROP ' || item.name;
    END LOOP;
    FOR item IN
        SELECT format('TABLE %s', oid::regclass) AS name FROM pg_class
        WHERE relnamespace = 'apc_guard'::regnamespace AND relkind = 'r'
        UNION ALL
        SELECT format('FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'apc_guard'::regnamespace
        UNION ALL
        SELECT 'SCHEMA apc_guard'
    LOOP
        EXECUTE format('ALTER %s OWNER TO CURRENT_USER', item.name);
    END LOOP;
END $$
"""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GuardState:
    """What stands between the log and those who would change it."""

    holes: tuple[str, ...]
    """Tables of the log whose rows can be changed, each with the reason; must be empty on every server."""
    lacks: tuple[str, ...]
    """What the server did not give: the log is then guarded by what is left."""

    @property
    def is_full(self) -> bool:
        """It holds against the owner of the tables too."""
        return not self.holes and not self.lacks


async def read_guard(connection: AnyConnection) -> GuardState:
    """Return the guard of a database with the schema of this release; needs no right but to read schema apc_guard."""
    holes = tuple(sorted(row[0] for row in await connection.fetch(_FAULTS)))
    in_force = {row[0] for row in await connection.fetch(_IN_FORCE)}
    owners = await connection.fetchrow(_OWNERS)
    roles = {row[0] for row in await connection.fetch("SELECT rolname FROM pg_roles WHERE rolname = ANY($1)", ROLES)}
    assert owners is not None
    lacks = [f"role {name} is missing" for name in ROLES if name not in roles]
    lacks += [f"event trigger {name} is missing or disabled" for name in EVENT_TRIGGERS if name not in in_force]
    if not owners["is_superuser"]:
        lacks.append(f"the guard belongs to {owners['guard_owner']}, who is no superuser")
    lacks += [f"{row[0]} can write log_events as the guard does" for row in await connection.fetch(_RECORDERS)]
    if owners["log_owner"] == owners["guard_owner"]:
        lacks.append(f"the log and its guard both belong to {owners['log_owner']}")
    return GuardState(holes, tuple(lacks))


async def is_superuser(connection: AnyConnection) -> bool:
    """Return whether the user of this connection may install the whole guard."""
    return bool(await connection.fetchval(_MY_RIGHTS))


def warn_of_guard(state: GuardState) -> None:
    """Log at start what the guard lacks; nothing if it is complete."""
    if state.holes:
        log.error("log_unguarded", holes=state.holes, fix="run `apc migrate` as a superuser")
    if state.lacks:
        log.warning("log_guard_degraded", lacks=state.lacks, fix="run `apc migrate` once as a superuser")


async def harden(connection: asyncpg.Connection, scripts: Path) -> None:
    """Reinstall the guard, as a superuser, where it has holes or was installed without one; recorded.

    Args:
        scripts: folder `sql` of the migrations.
    """
    async with connection.transaction():
        await connection.execute(LOCK_SCHEMA)
        await _run(connection, scripts / f"{_ROLES_SCRIPT}.sql")
        await connection.execute(_TAKE_OVER)
        await _run(connection, scripts / f"{_GUARD_SCRIPT}.sql")
        await _run(connection, scripts / f"{_FREEZE_SCRIPT}.sql")
        await connection.execute("SELECT apc_guard.maintain('the guard was installed again')")


async def _run(connection: asyncpg.Connection, script: Path) -> None:
    await connection.execute(await asyncio.to_thread(script.read_text, encoding="utf-8"))
