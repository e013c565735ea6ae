"""The databases of a log: their names, and the shards that are placed in them (ADR 27).

Each step is one transaction of one database and may be repeated: what was done before is left as it is. A database
refuses a shard that is not its own, so that a step which is missing stops the log of that shard and harms nothing.
"""

from collections.abc import Mapping

import asyncpg

from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_log.heads import AnyConnection
from apc_persister.errors import DatabaseMisnamed, MoveImpossible

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


async def place_shard(databases: Databases, shard: int, name: str) -> str:
    """Place a shard without entries in a database; return the one that had it.

    Raises:
        MoveImpossible: it has entries, or is on its way to another database.
    """
    home = databases[HOME]
    before, moving_to = await read_place(home, shard)
    if moving_to is not None:
        raise MoveImpossible(f"shard {shard} is moving to {moving_to}: `apc shard move` ends that first")
    if shard == 0 and name != HOME:
        raise MoveImpossible("shard 0 stays at home: the registry is read from it")
    # The one that had it refuses it before the other takes it.
    for where in [one for one in databases if one != name] + [name]:
        try:
            await databases[where].execute(_PLACE, shard, where == name)
        except asyncpg.ObjectNotInPrerequisiteStateError as error:
            raise MoveImpossible(
                f"shard {shard} has entries in {where}: `apc shard move {shard} --database {name}` moves it with them"
            ) from error
    await home.execute(_SWITCH, shard, name)
    log.info("shard_placed", shard=shard, database=name, before=before)
    await after_switch(databases)
    return before


async def after_switch(databases: Databases) -> None:
    """Let the readers of home see the shards where they are now: called after each change of a place."""
    log.debug("shards_away", shards=await shards_away(databases))


async def shards_away(databases: Databases) -> dict[int, str]:
    """Return the database of each shard that is not at home, as the guards say: log writers may write shard_places."""
    others = {name: connection for name, connection in databases.items() if name != HOME}
    return {row["shard"]: name for name, connection in others.items() for row in await connection.fetch(_HERE)}
