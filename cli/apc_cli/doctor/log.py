"""Checks of the checkpoints: an administrator can change unseen what was logged after the last exported one."""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import asyncpg

from apc_bus.database import DATABASE_AWAY, connect, first_line, undurable_settings
from apc_bus.errors import QueueMissing, ShardsDiffer
from apc_bus.port import QueueDepth
from apc_bus.rabbit.administration import queue_depth
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.settings import ArchiveSettings, DatabaseSettings
from apc_bus.settings.database import HOME
from apc_bus.topology import gate_queue, log_queue
from apc_cli.connections import CONNECT_PATIENCE
from apc_cli.doctor.finding import Finding, ok, warning, wrong
from apc_contracts.text import numbered, some_of
from apc_log.heads import AnyConnection, read_head
from apc_log.placement import (
    DatabasePlace,
    check_places,
    read_database_places,
    read_held_shards,
    read_open_sessions,
    split_sessions,
)
from apc_log.queries.health import (
    count_unstored,
    days_here,
    days_left,
    read_age,
    read_exports,
    read_growth,
    read_seconds_ahead,
    read_segments_ahead,
    read_unarchived,
)
from apc_log.queries.search import read_lag
from apc_persister.database.guard import read_guard
from apc_persister.database.migrate import SCHEMA_REVISION, read_additions, read_revision
from apc_persister.database.several import read_name
from apc_persister.follower import AHEAD, PROJECTIONS, YOUNG
from apc_persister.verification import findings
from apc_persister.verification.log_ends import check_ends, check_registry, count_released_changes

TOLERANCE = timedelta(seconds=10)
"""A working exporter exports a checkpoint within about a second."""


async def look_at_checkpoints(pool: asyncpg.Pool) -> list[Finding]:
    """Check, for each shard, the age of the last exported checkpoint, and how long the next one has waited."""
    return [_checkpoints_of(row) for row in await read_exports(pool)]


def _checkpoints_of(row: asyncpg.Record) -> Finding:
    name, waiting = f"shard {row['shard']}", row["waiting_age"]
    if row["target"] is None:
        said = f"{name}: no checkpoint was exported yet"
    else:
        entries = numbered(row["tree_size"], "entry is", "entries are")
        said = f"{name}: {entries} exported to {row['target']}, made {row['exported_age']:.0f} s ago"
    if waiting is None:
        return ok("checkpoints", f"{said}; none waits")
    said = f"{said}; the next one waits for {waiting:.0f} s"
    if waiting <= TOLERANCE.total_seconds():
        return ok("checkpoints", said)
    fix = "let the persister run, and see its log for checkpoints_not_exported; check APC_CHECKPOINTS_URL"
    return wrong("checkpoints", said, fix)


# Checks of the database: version, schema, durability, the guard of the log, its clock.

OLDEST, NEWEST = 15, 18
"""Major versions of PostgreSQL that the tests run on."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Expiry is judged by one clock and recorded by another: beyond this they visibly contradict each other."""
TURN_BACK = (
    "synchronise the clock of that shard's orchestrator (NTP, chrony), then restart the orchestrator: until then "
    "packets expire too early, because recorded time never goes back"
)
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


async def look_at_recorded_time(pool: asyncpg.Pool) -> list[Finding]:
    """Check that the newest verdicts are not ahead of the database's clock."""
    ahead = {
        shard: by for shard, by in (await read_seconds_ahead(pool)).items() if by > CLOCK_TOLERANCE.total_seconds()
    }
    if not ahead:
        return [ok("recorded time", "no verdict is ahead of the database's clock")]
    return [
        wrong(
            "recorded time", f"shard {shard}: the newest verdict is {by:.0f} s ahead of the database's clock", TURN_BACK
        )
        for shard, by in ahead.items()
    ]


async def _schema(connection: AnyConnection) -> list[Finding]:
    revision = await read_revision(connection)
    if revision == SCHEMA_REVISION:
        return [ok("schema", f"revision {revision}")]
    if revision is None:
        return [wrong("schema", "this database holds no log", MIGRATE)]
    if revision < SCHEMA_REVISION:
        return [wrong("schema", f"revision {revision}, this release needs {SCHEMA_REVISION}", MIGRATE)]
    return [wrong("schema", f"revision {revision} is of a newer release", "upgrade apc-bus")]


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


# Quick checks of the log without reading it whole, and of additions to its tables by their owner.

VERIFY = "run `apc log verify`; docs/explanation/log-security.md says how to go on after a forgery"
TAKE_OUT = "take it out inside apc_guard.maintain(), or say why it is there; then `apc log verify`"
RESTORE = "make it again inside apc_guard.maintain() as the migrations do; then `apc log verify`"


async def look_at_evidence(pool: asyncpg.Pool) -> list[Finding]:
    """Check the end of each shard, the registry, and constraints, defaults, indexes, triggers, rules and policies."""
    async with pool.acquire() as connection:
        ends = [_wrong("log end", one) for one in await check_ends(connection)]
        registry = await _registry(connection)
        additions = await read_additions(connection)
    tables = [wrong("log tables", f"added to apc_log.{line}", TAKE_OUT) for line in additions.added]
    tables += [wrong("log tables", f"gone from apc_log.{line}", RESTORE) for line in additions.missing]
    return [
        *(ends or [ok("log end", "nothing stands behind the checkpoints but what the guard recorded")]),
        *(registry or [ok("registry", "every change that the gate believes is in the tree")]),
        *(
            tables
            or [ok("log tables", "constraints, defaults, triggers, rules and policies are those of this release")]
        ),
    ]


async def _registry(connection: AnyConnection) -> list[Finding]:
    settings, released = ArchiveSettings(), await count_released_changes(connection)
    leaf = None
    if released and settings.archive_url is not None:
        from apc_persister.archiving import ArchivedLeaves  # loads an object store

        leaf = (await ArchivedLeaves.open(connection, settings)).leaf
    found = [_wrong("registry", one) for one in await check_registry(connection, leaf)]
    if released and leaf is None:
        said = f"{numbered(released, 'change')} in released segments: the archive has what proves them"
        found.append(warning("registry", said, "set APC_ARCHIVE_URL, and look again"))
    return found


def _wrong(check: str, difference: findings.LogFinding) -> Finding:
    return wrong(check, f"shard {difference.shard}: {difference.message}", VERIFY)


UNSTORED_DAYS = 7


async def look_at_unstored(pool: asyncpg.Pool) -> list[Finding]:
    """Check whether the log writer had to store entries as conflicts lately: what they say is missing where it belongs.

    It counts them as apc_log_unstored_total.
    """
    days = await days_here(pool, UNSTORED_DAYS)
    count, newest = await count_unstored(pool, days)
    if not count or newest is None:
        said = f"none within {numbered(days, 'day')}" if days else "the database has less than a day of the log"
        return [ok("unstored entries", said)]
    entries = numbered(count, "entry", "entries")
    when = f"within {numbered(days, 'day')}, the newest at {newest:%Y-%m-%d %H:%M} UTC"
    said = f"{entries} could not be stored as what they are {when}"
    fix = "packet_conflicts of kind unstorable has their bytes and the reason: mend the cause, and report it with them"
    return [wrong("unstored entries", said, fix)]


MOST_BEHIND = 10_000
"""Entries: a working follower takes as many within seconds."""


async def look_at_projections(pool: asyncpg.Pool) -> list[Finding]:
    """Check how far search, lists of runs and counts are behind the log: they are filled after commit."""
    check = "search"
    behind = await read_lag(pool, *(one.name for one in PROJECTIONS))
    if behind <= MOST_BEHIND:
        return [ok(check, f"{numbered(behind, 'entry', 'entries')} behind the log")]
    said = f"search and lists of runs are {numbered(behind, 'entry', 'entries')} behind the log"
    return [
        warning(check, said, "they follow while a log writer runs: see `projections_lag` in its log if they do not")
    ]


LONGEST_UNARCHIVED = timedelta(days=1)


async def look_at_segments(pool: asyncpg.Pool) -> list[Finding]:
    """Check that the log has room, that full segments are archived, and when the database will be full."""
    check, settings = "segments", ArchiveSettings()
    found: list[Finding] = []
    for row in await read_segments_ahead(pool, YOUNG):
        if row["ahead"] < AHEAD:
            said = f"shard {row['shard']}: {numbered(row['ahead'], 'segment')} open ahead of the log, of {AHEAD}"
            found.append(warning(check, said, "the log writer opens them: see `projections_lag` in its log"))
    late, growth = await read_unarchived(pool), await read_growth(pool)
    if settings.archive_url and late["since"] is not None and now() - late["since"] > LONGEST_UNARCHIVED:
        said = f"{numbered(late['segments'], 'full segment')} not archived, the oldest since {late['since']:%Y-%m-%d}"
        found.append(warning(check, said, "run `apc log archive`, and see what it says"))
    a_day = int((growth["entries"] or 0) * (growth["bytes_an_entry"] or 0))
    said = f"the database has {_gigabytes(growth['size'])}, and {_gigabytes(a_day)} came in the last day"
    if growth["released"]:
        said += f", {_gigabytes(int(growth['released'] * growth['bytes_an_entry']))} were let go of"
    days = days_left(growth, settings.database_capacity)
    if days == math.inf:
        return [*found, ok(check, said)]
    said = f"{said}: full in {days:.0f} days"
    if days > FEWEST_DAYS:
        return [*found, ok(check, said)]
    fix = "let segments go earlier (`apc log archive`, APC_HOT_DAYS), or give it more space"
    return [*found, warning(check, said, fix)]


FEWEST_DAYS = 14
"""Fewer days until the database is full are a warning."""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


# Checks of what orchestrators have logged and the database does not hold yet.

PATIENCE = timedelta(seconds=3)
"""A working persister commits at least once in this time."""
_POLL_S = 0.2


async def look_at_lag(pool: asyncpg.Pool, depths: dict[str, QueueDepth], shards: Iterable[int]) -> list[Finding]:
    """Check, for each shard, how many log batches wait, how old the log's end is, and whether it grows."""
    return [await _shard(pool, depths[log_queue(shard)], shard) for shard in shards if log_queue(shard) in depths]


async def _shard(pool: asyncpg.Pool, depth: QueueDepth, shard: int) -> Finding:
    if depth.messages == 0:
        if depth.consumers:
            return ok("log", f"shard {shard}: written up to date")
        return warning("log", f"shard {shard}: nothing waits, and no log writer runs", "apc serve persister")
    age = await read_age(pool, shard)
    since = "nothing was written yet" if age is None else f"the last entry was written {age:.1f} s ago"
    waiting = f"shard {shard}: {depth.messages} log batches wait; {since}"
    if depth.consumers == 0:
        return wrong("log", f"{waiting}; no log writer runs", "apc serve persister")
    if await _moves(pool, shard):
        return ok("log", f"{waiting}; the writer is at work")
    return wrong("log", f"{waiting}; the writer stands still", "its own log says why (log_stopped, log_database_away)")


async def _moves(pool: asyncpg.Pool, shard: int) -> bool:
    before = await read_head(pool, shard)
    for _ in range(int(PATIENCE.total_seconds() / _POLL_S)):
        await asyncio.sleep(_POLL_S)
        if await read_head(pool, shard) != before:
            return True
    return False


# Checks of the number of shards: the broker's, and the shards in which sessions are.

CHECK = "shards"
NAMED = 3
STOP_SPLIT = (
    "stop the open ones (`apc session stop`) and start their work again under other keys; their entries are evidence "
    "and stay, so `apc log verify` goes on to report these sessions: keep its report, and compare later ones with it"
)
END_MISPLACED = (
    "stop them (`apc session stop`), or leave them to their deadlines, which a paused one does not have; then start "
    "their work again"
)
SET_BACK = "set it for every process, or change the number as docs/how-to/operations.md says"


async def look_at_places(pool: asyncpg.Pool, shards: int) -> list[Finding]:
    """Check that sessions are in one shard, that of APC_SHARDS, and that each shard is with whom it was given to."""
    findings = []
    split = await split_sessions(pool)
    if split:
        named = ", ".join(one.session_id for one in split[:NAMED]) + (", …" if len(split) > NAMED else "")
        still_open = sum(not one.is_terminal for one in split)
        what = (
            f"{numbered(len(split), 'session')} with entries in two shards, {still_open} of them open ({named}): "
            "the number of shards was changed while they ran"
        )
        findings.append(wrong(CHECK, what, STOP_SPLIT))
    try:
        lost = check_places(await read_open_sessions(pool), shards)
    except ShardsDiffer as error:
        findings.append(wrong(CHECK, str(error), SET_BACK))
    else:
        if lost:
            what = f"no number of shards fits the open sessions; with APC_SHARDS={shards} the gates take no work for "
            what += f"{numbered(len(lost), 'session')}, such as {lost[0]}"
            findings.append(wrong(CHECK, what, END_MISPLACED))
    findings += [
        warning(
            CHECK,
            f"shard {one.shard} was given to {one.moved_to} and not taken from {one.orchestrator or 'nobody'}",
            f"start {one.moved_to}, or take the order back: `apc shard free {one.shard}`",
        )
        for one in (await read_held_shards(pool)).values()
        if one.moved_to not in (None, one.orchestrator)
    ]
    return findings or [ok(CHECK, "every session is in one shard")]


async def look_at_number(url: str, shards: int) -> list[Finding]:
    """Check that the broker has no queues of further shards; missing ones are findings of the topology."""
    seconds = CONNECT_PATIENCE.total_seconds()
    link = await Nodes([url], Timing(connect=seconds, patience=seconds)).connect("apc doctor")
    existing = shards
    try:
        while True:
            await queue_depth(link, gate_queue(existing), seconds)
            existing += 1
    except QueueMissing:
        pass
    finally:
        await link.close()
    if existing == shards:
        return []
    return [wrong(CHECK, f"APC_SHARDS is {shards}, and the broker has the queues of {existing} shards", SET_BACK)]


# Checks of the further databases of the log: each answers, knows its name, and has the shards that home says.

DATABASES = "databases"
MIGRATE_ALL = "run `apc migrate` with APC_DATABASES as a superuser"
_STATE = "SELECT apc_guard.state_of(shard) = 'here' FROM unnest($1::integer[]) AS shard"


async def look_at_databases(pool: asyncpg.Pool, settings: DatabaseSettings, shards: int) -> list[Finding]:
    """Check the databases of APC_DATABASES, and where home says that the shards are; nothing where there is home alone.

    The user needs the right to read schema apc_guard, as members of apc_reader have.
    """
    places = await read_database_places(pool)
    if not places and not settings.other_urls:
        return []
    findings = [*_unnamed(places, settings), *_on_the_way(places)]
    async with AsyncExitStack() as stack:
        for name, url in settings.other_urls.items():
            of_it = [shard for shard in range(shards) if places.get(shard, DatabasePlace()).database == name]
            try:
                connection = await connect(url, patience=CONNECT_PATIENCE.total_seconds(), is_reader=True)
                stack.push_async_callback(connection.close)
                findings += await _look_at_other(connection, name, of_it)
            except DATABASE_AWAY as error:
                has = f"{numbered(len(of_it), 'shard')} {'is' if len(of_it) == 1 else 'are'} in it"
                fix = "start it, or correct APC_DATABASES"
                findings.append(wrong(DATABASES, f"{name} does not answer ({first_line(error)}); {has}", fix))
    return findings or [ok(DATABASES, f"{some_of([HOME, *settings.other_urls])} have the shards that home says")]


def _unnamed(places: dict[int, DatabasePlace], settings: DatabaseSettings) -> Iterable[Finding]:
    for shard, place in places.items():
        if place.database not in (HOME, *settings.other_urls):
            said = f"shard {shard} is in {place.database}, which APC_DATABASES does not name"
            yield wrong(DATABASES, said, "add it there, for every process")


def _on_the_way(places: dict[int, DatabasePlace]) -> Iterable[Finding]:
    for shard, place in places.items():
        if place.moving_to is not None:
            said = f"shard {shard} is on its way from {place.database} to {place.moving_to}, and nobody serves it"
            fix = f"if no command is at it: apc shard move {shard} --database {place.moving_to}"
            yield warning(DATABASES, said, fix)


async def _look_at_other(connection: AnyConnection, name: str, shards: list[int]) -> list[Finding]:
    revision = await read_revision(connection)
    if revision != SCHEMA_REVISION:
        return [wrong(DATABASES, f"{name} has schema {revision}, this release needs {SCHEMA_REVISION}", MIGRATE_ALL)]
    found = await read_name(connection)
    if found != name:
        return [wrong(DATABASES, f"the URL of {name} leads to {found}", "correct APC_DATABASES")]
    findings = [wrong(DATABASES, f"{name}: {hole}", MIGRATE_ALL) for hole in (await read_guard(connection)).holes]
    here = [row[0] for row in await connection.fetch(_STATE, shards)]
    for shard, is_here in zip(shards, here, strict=True):
        if not is_here:
            fix = "apc shard place or apc shard move was interrupted: repeat it"
            findings.append(wrong(DATABASES, f"home says that shard {shard} is in {name}, which refuses it", fix))
    return findings
