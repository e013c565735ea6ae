"""Checks of the database: version, schema, durability, the guard of the log, its clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import asyncpg

from apc_bus.database import undurable_settings
from apc_console.doctor.finding import Finding, ok, warning, wrong
from apc_log.heads import AnyConnection
from apc_persister.database.guard import read_guard
from apc_persister.database.migrate import SCHEMA_REVISION, read_revision

OLDEST, NEWEST = 15, 18
"""Major versions of PostgreSQL that the tests run on."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Expiry is judged by one clock and recorded by another: beyond this they visibly contradict each other."""
MIGRATE = "apc migrate"
MIGRATE_AS_SUPERUSER = (
    "run `apc migrate` as a superuser of the database; the embedded one is migrated when `apc up` starts"
)


def now() -> datetime:
    """Return the time of this machine's clock."""
    return datetime.now(UTC)


async def look_at_database(
    connection: AnyConnection, *, may_be_undurable: bool, clock: Callable[[], datetime] = now
) -> list[Finding]:
    """Check everything that does not need the broker. Raises OSError and asyncpg's errors."""
    findings = [
        await _version(connection),
        await _durability(connection, may_be_undurable),
        await _clock(connection, clock),
    ]
    schema = await _schema(connection)
    findings += schema
    if all(finding.fix == "" for finding in schema):
        findings += await _guard(connection)
    return findings


async def _version(connection: AnyConnection) -> Finding:
    major = connection.get_server_version().major
    if OLDEST <= major <= NEWEST:
        return ok("database", f"PostgreSQL {major} answers")
    return warning("database", f"PostgreSQL {major} was not tested", f"use PostgreSQL {OLDEST} to {NEWEST}")


async def _durability(connection: AnyConnection, may_be_undurable: bool) -> Finding:
    off = await undurable_settings(connection)
    if not off:
        return ok("durability", "fsync, full_page_writes and synchronous_commit are on")
    say = warning if may_be_undurable else wrong
    names = ", ".join(off)
    return say("durability", f"{names} off: committed rows may be lost", f"switch on in postgresql.conf: {names}")


async def _clock(connection: AnyConnection, clock: Callable[[], datetime]) -> Finding:
    before = clock()
    theirs: datetime = await connection.fetchval("SELECT clock_timestamp()")
    after = clock()
    skew = abs(theirs - (before + (after - before) / 2))
    said = f"the database's clock and ours differ by {skew.total_seconds():.3f} s"
    if skew <= CLOCK_TOLERANCE + (after - before) / 2:
        return ok("clock", said)
    return wrong("clock", said, "synchronise the clocks of both machines (NTP, chrony)")


async def _schema(connection: AnyConnection) -> list[Finding]:
    found = await read_revision(connection)
    if found == SCHEMA_REVISION:
        return [ok("schema", f"revision {found}")]
    if found is None:
        return [wrong("schema", "this database holds no log", MIGRATE)]
    if found < SCHEMA_REVISION:
        return [wrong("schema", f"revision {found}, this release needs {SCHEMA_REVISION}", MIGRATE)]
    return [wrong("schema", f"revision {found} is of a newer release", "upgrade apc-bus")]


async def _guard(connection: AnyConnection) -> list[Finding]:
    try:
        state = await read_guard(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        fix = "connect as a member of apc_reader, apc_writer or apc_owner"
        return [warning("guard", f"cannot be read: {error}", fix)]
    findings = [wrong("guard", hole, f"{MIGRATE_AS_SUPERUSER}, then `apc log verify`") for hole in state.holes]
    if state.lacks:
        degraded = f"degraded to triggers and roles: {'; '.join(state.lacks)}"
        findings.append(warning("guard", degraded, f"{MIGRATE_AS_SUPERUSER}; docs/explanation/log-security.md"))
    return findings or [ok("guard", "full: triggers, roles and event triggers")]
