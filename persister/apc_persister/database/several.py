"""The databases of a log: their names, and the shards that are placed in them (ADR 27).

Each step is one transaction of one database and may be repeated: what was done before is left as it is. A database
refuses a shard that is not its own, so that a step which is missing stops the log of that shard and harms nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic

import asyncpg

from apc_bus.concurrency import cancelled
from apc_bus.crash_points import crash_point
from apc_bus.database import first_line
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_log.errors import DatabasesUnjoinable
from apc_log.heads import AnyConnection
from apc_log.offline_verifier import PublicKey
from apc_persister.database.joined import join_databases
from apc_persister.errors import DatabaseMisnamed, MoveImpossible
from apc_persister.evidence.tree import load_tree
from apc_persister.follower import PROJECTIONS
from apc_persister.verification.verify import verify_shard

_NAME = "SELECT name FROM apc_guard.database_name"
_SET_NAME = "SELECT apc_guard.name_database($1)"
_PLACE = "SELECT apc_guard.place_shard($1, $2)"
_SWITCH = """
INSERT INTO apc_log.shard_places AS place (shard, database, moved_at, moved_by)
VALUES ($1, nullif($2, 'home'), clock_timestamp(), session_user)
ON CONFLICT (shard) DO UPDATE SET database = excluded.database, moving_to = NULL, moved_at = excluded.moved_at,
                                  moved_by = excluded.moved_by
"""
_PLACE_OF = "SELECT coalesce(database, 'home') AS database, moving_to FROM apc_log.shard_places WHERE shard = $1"
_AWAY = "SELECT shard FROM unnest($1::integer[]) AS shard WHERE apc_guard.state_of(shard) <> 'here'"
_HERE = "SELECT shard FROM apc_guard.shards_here WHERE state = 'here'"

log = get_logger(__name__)

Databases = Mapping[str, AnyConnection]
"""A connection of the owner to each database of the log, by its name; `home` is among them."""


async def read_name(connection: AnyConnection) -> str:
    """Return what a database with the schema of this release is called."""
    name: str = await connection.fetchval(_NAME)
    return name


async def check_name(connection: AnyConnection, name: str) -> None:
    """Raise DatabaseMisnamed unless a database has this name."""
    found = await read_name(connection)
    if found != name:
        raise DatabaseMisnamed(name, found)


async def read_away(connection: AnyConnection, shards: Collection[int]) -> set[int]:
    """Return those of these shards that a database does not have, or no more."""
    return {row[0] for row in await connection.fetch(_AWAY, sorted(shards))}


async def name_database(connection: AnyConnection, name: str) -> None:
    """Give a database its name, unless it has it.

    Raises:
        DatabaseMisnamed: it has another name, or holds another log.
    """
    found = await read_name(connection)
    if found == name:
        return
    try:
        await connection.execute(_SET_NAME, name)
    except asyncpg.ObjectNotInPrerequisiteStateError as error:
        raise DatabaseMisnamed(name, found) from error


async def read_place(home: AnyConnection, shard: int) -> tuple[str, str | None]:
    """Return the database that has a shard, and the one that it is moving to."""
    row = await home.fetchrow(_PLACE_OF, shard)
    return (HOME, None) if row is None else (row["database"], row["moving_to"])


async def place_shard(databases: Databases, shard: int, name: str, urls: Mapping[str, str] | None = None) -> str:
    """Place a shard without entries in a database; return the one that had it. `urls` as `after_switch`.

    Raises:
        MoveImpossible: it has entries, or is on its way to another database.
    """
    home = databases[HOME]
    before, moving_to = await read_place(home, shard)
    if moving_to is not None:
        raise MoveImpossible(f"shard {shard} is moving to {moving_to}: `apc shard move` ends that first")
    if shard == 0 and name != HOME:
        raise MoveImpossible("shard 0 stays at home: the registry is read from it")
    await _share_holds(databases, name)
    # The one that had it refuses it before the other takes it.
    for where in [one for one in databases if one != name] + [name]:
        try:
            await databases[where].execute(_PLACE, shard, where == name)
        except asyncpg.ObjectNotInPrerequisiteStateError as error:
            raise MoveImpossible(
                f"shard {shard} has entries in {where}: `apc shard move {shard} --database {name}` moves it with them"
            ) from error
    await switch_place(databases, shard, name)
    log.info("shard_placed", shard=shard, database=name, before=before)
    await after_switch(databases, urls or {})
    return before


_HOLDS = "SELECT to_jsonb(hold)::text FROM apc_guard.holds AS hold"
_ADOPT_HOLD = "SELECT apc_guard.adopt_hold($1::text::jsonb)"


async def _share_holds(databases: Databases, name: str) -> None:
    """Let a database know every hold before it has an entry of a shard. Raises MoveImpossible."""
    for other in databases:
        for row in await databases[other].fetch(_HOLDS) if other != name else ():
            try:
                await databases[name].execute(_ADOPT_HOLD, row[0])
            except asyncpg.ObjectNotInPrerequisiteStateError as error:
                raise MoveImpossible(f"{error}: somebody gave it the id of one of {other}; lift it there") from error


async def switch_place(databases: Databases, shard: int, name: str) -> None:
    """Say at home in which database a shard is now."""
    await databases[HOME].execute(_SWITCH, shard, name)


async def after_switch(databases: Databases, urls: Mapping[str, str]) -> None:
    """Let the readers of home see the shards where they are now: called after each change of a place and migration.

    Args:
        databases: connections of the owner.
        urls: name -> URL of each database beside home; none = readers read home alone.
    """
    try:
        await join_databases(databases[HOME], urls, await shards_away(databases) if urls else {})
    except (DatabasesUnjoinable, asyncpg.PostgresError) as error:
        hint = "the log goes on, and nobody reads it: mend that, then run `apc migrate`"
        log.warning("databases_not_joined", reason=first_line(error), hint=hint)


async def shards_away(databases: Databases) -> dict[int, str]:
    """Return the database of each shard that is not at home, as the guards say: log writers may write shard_places."""
    others = {name: connection for name, connection in databases.items() if name != HOME}
    return {row["shard"]: name for name, connection in others.items() for row in await connection.fetch(_HERE)}


# Move a shard with its log: close, copy, verify, open, switch. A move that was interrupted goes on when it is repeated.
# Messages of the shard wait in its log queue meanwhile, and are written behind the last entry in the database that has
# it then.

_LEAVE = """
INSERT INTO apc_log.shard_places AS place (shard, moving_to, moved_at, moved_by)
VALUES ($1, $2, clock_timestamp(), session_user)
ON CONFLICT (shard) DO UPDATE SET moving_to = excluded.moving_to
"""
_STAY = "UPDATE apc_log.shard_places SET moving_to = NULL WHERE shard = $1"
_HEAD_OF = "SELECT next_seq - 1 AS last, moved_to FROM apc_log.shards WHERE shard = $1"
_STATE_OF = "SELECT apc_guard.state_of($1)"
_CLOSE = "SELECT apc_guard.close_shard($1, $2)"
_EXPECT = "SELECT apc_guard.expect_shard($1)"
_OPEN = "SELECT apc_guard.open_shard($1)"
_FORGET = "SELECT apc_guard.forget_counts($1)"
_LEFT = "SELECT EXISTS (SELECT FROM apc_log.shards WHERE shard = $1 AND moved_to IS NOT NULL)"
# What must have taken the last entry in before the copy: the tree, the ranges of sessions, each projection.
_BEHIND = """
SELECT 'the tree' AS what FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
WHERE shard = $1 AND coalesce(tree_size, 0) < next_seq - 1
UNION ALL
SELECT 'the ranges of sessions' FROM apc_log.shards WHERE shard = $1 AND bounded_seq < next_seq - 1
UNION ALL
SELECT name FROM unnest($2::text[]) AS name WHERE NOT EXISTS (
    SELECT FROM apc_log.followed JOIN apc_log.shards USING (shard)
    WHERE projection = name AND shard = $1 AND seq >= next_seq - 1)
LIMIT 1
"""
_TABLES = """
SELECT name.relname AS table, array_agg(quote_ident(attname) ORDER BY attnum) AS columns
FROM pg_class AS name JOIN pg_attribute ON attrelid = name.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND EXISTS (SELECT FROM pg_attribute AS own WHERE own.attrelid = name.oid AND own.attname = 'shard')
  AND name.relname <> ALL ($1::text[])
GROUP BY name.relname ORDER BY name.relname
"""
_OTHERWISE = ("shards", "shard_places", "log_events", "unopened_sessions", "run_changes")
"""Tables of shards that are not copied as they are."""
_SEGMENTS = """
SELECT to_jsonb(segment)::text FROM apc_guard.segments AS segment WHERE shard = $1 ORDER BY first_seq
"""
_EVENTS = """
SELECT jsonb_agg(to_jsonb(event))::text AS events FROM apc_log.log_events AS event
WHERE shard = $1 GROUP BY seq / 1000 ORDER BY seq / 1000
"""
_ADOPT_SEGMENT = "SELECT apc_guard.adopt_segment($1::text::jsonb)"
_ADOPT_EVENTS = "SELECT apc_guard.adopt_events($1, $2::text::jsonb)"
# By way of a temporary table, because the database may have rows of the same names.
_MERGED = {
    "contracts": ("SELECT * FROM apc_log.contracts", "ON CONFLICT DO NOTHING"),
    "run_cards": (
        "SELECT * FROM apc_log.run_cards AS card WHERE EXISTS (SELECT FROM apc_log.sessions "
        "WHERE run_id = card.run_id AND shard = {shard})",
        "ON CONFLICT DO NOTHING",
    ),
    "unopened_sessions": (
        "SELECT * FROM apc_log.unopened_sessions WHERE shard = {shard}",
        "ON CONFLICT (session_id) DO UPDATE SET first_seq = 0",
    ),
    # Runs of the shard are summed again in the database that has it.
    "run_changes": (
        "SELECT run_id, shard, seq, judged_at, NULL::bigint AS summed_seq FROM apc_log.run_changes "
        "WHERE shard = {shard}",
        "",
    ),
    # Closed until the copy is verified.
    "shards": (
        "SELECT shard, epoch, holder, batch_no, next_seq, bounded_seq, 'arriving' AS moved_to FROM apc_log.shards "
        "WHERE shard = {shard}",
        "",
    ),
}
_ANALYZE = "ANALYZE apc_log.agent_packets, apc_log.packet_events, apc_log.packet_ids, apc_log.sessions"
_LOOK_S = 0.2
_PIECES = 8
"""Pieces of a COPY that are in memory between two databases."""

Drained = Callable[[], Awaitable[None]]
"""Waits until nobody serves the shard; raises what says that somebody still does."""


@dataclass(frozen=True, slots=True)
class Move:
    """What is moved where.

    Attributes:
        databases: connections of the owner to all databases.
        shard: the shard.
        target: the database that it goes to.
        keys: those that may have signed its checkpoints, the newest first.
        patience: seconds in which log writers take the last entry in.
        urls: as `after_switch`.
    """

    databases: Databases
    shard: int
    target: str
    keys: tuple[PublicKey, ...]
    patience: float = 60.0
    urls: Mapping[str, str] = field(default_factory=dict)

    async def run(self, drained: Drained) -> str:
        """Move it, or go on with a move that was interrupted; return the database that had it.

        Raises:
            MoveImpossible: it cannot go there, or the copy is not what was copied.
            TimeoutError: no log writer has taken the last entry in.
        """
        home = self.databases[HOME]
        source, moving_to = await read_place(home, self.shard)
        if source == self.target and moving_to is None:
            await self._finish()
            return source
        await self._check(source, moving_to)
        await _share_holds(self.databases, self.target)  # what is held from now on is held in every database
        await home.execute(_LEAVE, self.shard, self.target)
        crash_point("move.after_leave")
        if await self.databases[source].fetchval(_STATE_OF, self.shard) == "here":
            try:
                await drained()
            except BaseException:
                await home.execute(_STAY, self.shard)  # nothing is closed yet: it is served again
                raise
        await self._close(source)
        crash_point("move.after_close")
        await self._settled(source)
        await self._copy(source)
        crash_point("move.after_copy")
        await self._verify(source)
        await self.databases[self.target].execute(_OPEN, self.shard)
        crash_point("move.after_open")
        await switch_place(self.databases, self.shard, self.target)
        crash_point("move.after_switch")
        await self._finish()
        log.info("shard_moved", shard=self.shard, database=self.target, before=source)
        return source

    async def _check(self, source: str, moving_to: str | None) -> None:
        if self.shard == 0:
            raise MoveImpossible("shard 0 stays at home: the registry is read from it")
        if moving_to not in (None, self.target):
            raise MoveImpossible(
                f"shard {self.shard} is on its way to {moving_to}: end that move first, with --database {moving_to}"
            )
        if await self.databases[source].fetchrow(_HEAD_OF, self.shard) is None:
            raise MoveImpossible(f"shard {self.shard} has no entries: `apc shard place` gives it a database")
        state = await self.databases[self.target].fetchval(_STATE_OF, self.shard)
        if state == "away" and await self.databases[self.target].fetchrow(_HEAD_OF, self.shard) is not None:
            raise MoveImpossible(
                f"shard {self.shard} was in {self.target} before, whose entries of it cannot be deleted: give another"
            )

    async def _close(self, source: str) -> None:
        try:
            await self.databases[source].execute(_CLOSE, self.shard, self.target)
        except asyncpg.ObjectNotInPrerequisiteStateError as error:
            raise MoveImpossible(str(error)) from error

    async def _settled(self, source: str) -> None:
        """Wait until the log writer has signed the last entry, and every projection has it."""
        names = [projection.name for projection in PROJECTIONS]
        until = monotonic() + self.patience
        while (behind := await self.databases[source].fetchval(_BEHIND, self.shard, names)) is not None:
            if monotonic() > until:
                raise MoveImpossible(
                    f"{behind} of shard {self.shard} lacks the last entries: start a log writer that has {source} in "
                    "its settings, and repeat the command"
                )
            await asyncio.sleep(_LOOK_S)

    async def _copy(self, source: str) -> None:
        """Copy every row of the shard in one transaction, unless it was copied before."""
        old, new = self.databases[source], self.databases[self.target]
        await new.execute(_EXPECT, self.shard)
        if await new.fetchrow(_HEAD_OF, self.shard) is not None:
            return
        async with (
            old.transaction(isolation="repeatable_read", readonly=True),
            new.transaction(),
        ):
            for row in await old.fetch(_SEGMENTS, self.shard):
                await new.execute(_ADOPT_SEGMENT, row[0])
            for row in await old.fetch(_TABLES, list(_OTHERWISE)):
                query = f"SELECT {', '.join(row['columns'])} FROM apc_log.{row['table']} WHERE shard = {self.shard}"
                await _pipe(old, new, query, f"apc_log.{row['table']} ({', '.join(row['columns'])})")
            for row in await old.fetch(_EVENTS, self.shard):
                await new.execute(_ADOPT_EVENTS, self.shard, row["events"])
            for table, (query, otherwise) in _MERGED.items():
                await new.execute(
                    f"CREATE TEMPORARY TABLE arriving ON COMMIT DROP AS TABLE apc_log.{table} WITH NO DATA"
                )
                await _pipe(old, new, query.format(shard=self.shard), "pg_temp.arriving")
                await new.execute(f"INSERT INTO apc_log.{table} SELECT * FROM pg_temp.arriving {otherwise}")
                await new.execute("DROP TABLE pg_temp.arriving")
        await new.execute(_ANALYZE)

    async def _verify(self, source: str) -> None:
        """Recompute the tree of the copy from its rows, and compare it with that of the closed log."""
        wanted = await load_tree(self.databases[source], self.shard)
        report = await verify_shard(self.databases[self.target], self.shard, self.keys[0], older=self.keys[1:])
        found = report.first.message if report.first is not None else None
        if found is None and (report.size, report.root) != (wanted.size, wanted.root):
            found = f"its tree has {report.size} entries, that of {source} {wanted.size}, or another root"
        if found is not None:
            raise MoveImpossible(
                f"the copy of shard {self.shard} in {self.target} is not the log that {source} has: {found}. It stays "
                f"closed in both: verify {source} (`apc log verify`), and make {self.target} again, empty"
            )

    async def _finish(self) -> None:
        """Take the shard out of the counts of the databases that it has left."""
        for name, connection in self.databases.items():
            if name != self.target and await connection.fetchval(_LEFT, self.shard):
                await connection.execute(_FORGET, self.shard)
        await after_switch(self.databases, self.urls)


async def _pipe(old: AnyConnection, new: AnyConnection, query: str, target: str) -> None:
    """Copy the rows of a query into a table of another database, piece by piece."""
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)

    async def read() -> None:
        await old.copy_from_query(query, output=pieces.put, format="binary")
        await pieces.put(None)

    async def given() -> AsyncIterator[bytes]:
        while (piece := await pieces.get()) is not None:
            yield piece

    table, _, columns = target.partition(" ")
    schema, _, name = table.partition(".")
    names = [one.strip().strip('"') for one in columns.strip("()").split(",")] if columns else None
    reading = asyncio.create_task(read())
    writing = asyncio.create_task(
        new.copy_to_table(name, schema_name=schema, columns=names, source=given(), format="binary")
    )
    try:
        for done in asyncio.as_completed([reading, writing]):
            await done
    finally:
        await cancelled(reading, writing)
