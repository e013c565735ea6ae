"""In which shard each session is, to its end, which orchestrator takes each shard, and which database has its log."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from apc_bus.database import DATABASE_AWAY, connect, first_line, open_pool
from apc_bus.errors import DatabaseUnavailable, ShardsDiffer
from apc_bus.settings.database import HOME
from apc_contracts.identity.ids import NUMBERS_OF_SHARDS, shard_of
from apc_contracts.text import numbered
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.errors import DatabaseUnknown

_UNTIL = " until every session has ended, for every process and with `apc topology apply`"
_OPEN = "SELECT session_id, shard FROM apc_log.sessions WHERE is_open AND NOT is_terminal ORDER BY session_id"
_PLACE = "SELECT shard FROM apc_log.sessions WHERE session_id = $1"
_IS_DIVIDED = "SELECT count(*) > 1 FROM apc_log.shards"
# One look into the index on (session_id, shard, seq) for each session: its first and its last packet.
_SPLIT = """
SELECT session_id, is_terminal, places.first, places.last
FROM apc_log.sessions AS session CROSS JOIN LATERAL (
    SELECT (SELECT shard FROM apc_log.agent_packets AS one WHERE one.session_id = session.session_id
            ORDER BY shard LIMIT 1) AS first,
           (SELECT shard FROM apc_log.agent_packets AS one WHERE one.session_id = session.session_id
            ORDER BY shard DESC LIMIT 1) AS last
) AS places
WHERE session_id <> $1 AND places.first <> places.last AND (
    SELECT count(DISTINCT shard) > 1 FROM apc_log.agent_packets AS one
    WHERE one.session_id = session.session_id AND verdict <> 'refused'
)
ORDER BY session_id
"""


@dataclass(frozen=True, slots=True)
class SplitSession:
    """A session with admitted packets in two shards."""

    session_id: str
    is_terminal: bool
    shards: tuple[int, int]


async def read_open_sessions(pool: asyncpg.Pool) -> dict[str, int]:
    """Return the sessions that have not ended, and the shard of each."""
    return {row["session_id"]: row["shard"] for row in await pool.fetch(_OPEN)}


async def read_shard(pool: asyncpg.Pool, session_id: str, shards: int) -> int:
    """Return the shard that judges what is for a session: the one that has it, else the one of its id.

    They differ when it was opened with another number of shards; one whose shard is no more has that of its id.
    """
    place: int | None = await pool.fetchval(_PLACE, session_id)
    return place if place is not None and place < shards else shard_of(session_id, shards)


async def split_sessions(pool: asyncpg.Pool) -> list[SplitSession]:
    """Return the sessions with admitted packets in two shards: the number of shards was changed while they ran."""
    if not await pool.fetchval(_IS_DIVIDED):
        return []
    rows = await pool.fetch(_SPLIT, PRESENCE_SESSION)
    return [SplitSession(row["session_id"], row["is_terminal"], (row["first"], row["last"])) for row in rows]


def misplaced(sessions: Mapping[str, int], shards: int) -> list[str]:
    """Return the sessions that another number of shards has put where they are."""
    return [session_id for session_id, shard in sessions.items() if shard_of(session_id, shards) != shard]


def number_of(sessions: Mapping[str, int]) -> int | None:
    """Return the smallest number of shards by which every session is where it is; None when there is none.

    Release 0.1.0 took numbers that are no power of two: those are none here.
    """
    needed = _needed(sessions)
    numbers = (number for number in NUMBERS_OF_SHARDS if number >= needed)
    places = list(sessions.items())
    return next((n for n in numbers if all(shard_of(session_id, n) == shard for session_id, shard in places)), None)


def check_places(sessions: Mapping[str, int], shards: int) -> list[str]:
    """Return the open sessions that are misplaced and can only be left to their deadlines: no number fits all of them.

    Raises:
        ShardsDiffer: another number fits all of them, or some are in shards that this number does not have.
    """
    wrong = misplaced(sessions, shards)
    if not wrong:
        return []
    fitting, needed = number_of(sessions), _needed(sessions)
    if fitting is not None:
        raise ShardsDiffer(
            f"APC_SHARDS is {shards}, and {_open(wrong)} in another shard of the log: they were opened with another "
            f"number, such as APC_SHARDS={fitting}. Set it back{_UNTIL}"
        )
    if shards < needed:
        lost = [session_id for session_id, shard in sessions.items() if shard >= shards]
        raise ShardsDiffer(
            f"APC_SHARDS is {shards}, and {_open(lost)} in shards that are then without a gate: they were opened with "
            f"other numbers. Set at least APC_SHARDS={needed}{_UNTIL}"
        )
    return wrong


def objection_to(sessions: Mapping[str, int], before: int, wanted: int) -> str | None:
    """Return why this number of shards may not be set while these sessions are open, and the way out; None if it may.

    Args:
        before: the shards that the broker has; 0 = none.
    """
    wrong = misplaced(sessions, wanted)
    if not wrong:
        return None
    fitting, needed = number_of(sessions), _needed(sessions)
    if before and before not in NUMBERS_OF_SHARDS:
        way_out = f"let every session end with the release before, whose APC_SHARDS is {before}"
        return f"{_open(wrong)} in another shard of the log than with APC_SHARDS={wanted}: {way_out}"
    is_served = before >= needed and (fitting is None or not misplaced(sessions, before))
    if is_served:
        way_out = "let every session end, or stop it (`apc session list --running`, `apc session stop`)"
    elif fitting is not None:
        way_out = f"set APC_SHARDS={fitting}{_UNTIL}"
    elif wanted < needed:
        way_out = f"set at least APC_SHARDS={needed}{_UNTIL}"
    else:
        return None
    return f"{_open(wrong)} in another shard of the log than with APC_SHARDS={wanted}: {way_out}"


def _needed(sessions: Mapping[str, int]) -> int:
    """Return the smallest number of shards with which each of these sessions is in one that has an orchestrator."""
    return 1 << max(sessions.values(), default=0).bit_length()


def _open(sessions: Sequence[str]) -> str:
    verb = "is" if len(sessions) == 1 else "are"
    return f"{numbered(len(sessions), 'open session')}, such as {sessions[0]}, {verb}"


# Which orchestrator takes each shard: table shard_places says it of those that were moved, the newest epoch who has it.

_MOVED = "SELECT shard, orchestrator FROM apc_log.shard_places WHERE orchestrator IS NOT NULL ORDER BY shard"
_PLACE_SHARD = "SELECT apc_log.place_shard($1, $2)"
_HELD = """
SELECT shard.shard, shard.epoch, given.orchestrator, given.opened_at, place.orchestrator AS moved_to,
       (SELECT count(*) FROM apc_log.sessions AS one
        WHERE one.shard = shard.shard AND one.is_open AND NOT one.is_terminal) AS open_sessions
FROM apc_log.shards AS shard
LEFT JOIN apc_log.shard_epochs AS given ON given.shard = shard.shard AND given.epoch = shard.epoch
LEFT JOIN apc_log.shard_places AS place ON place.shard = shard.shard
WHERE shard.moved_to IS NULL
ORDER BY shard.shard
"""


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A shard that was ever held."""

    shard: int
    epoch: int
    orchestrator: str | None
    """Who took the epoch; None = an orchestrator of an older release."""
    opened_at: datetime | None
    moved_to: str | None
    """Whom it was given to by `apc shard move`; None = nobody."""
    open_sessions: int


async def read_moved_shards(pool: asyncpg.Pool) -> dict[int, str]:
    """Return the orchestrator of each shard that was moved."""
    return {row["shard"]: row["orchestrator"] for row in await pool.fetch(_MOVED)}


async def read_held_shards(pool: asyncpg.Pool) -> dict[int, HeldShard]:
    """Return who holds each shard by its newest epoch."""
    return {row["shard"]: HeldShard(**row) for row in await pool.fetch(_HELD)}


async def move_shard(pool: asyncpg.Pool, shard: int, orchestrator: str | None) -> None:
    """Give a shard to an orchestrator, which takes it as soon as it stands by; None = to the first that comes.

    Raises asyncpg.InsufficientPrivilegeError for a login that is no member of apc_mover.
    """
    await pool.execute(_PLACE_SHARD, shard, orchestrator)


# Which database has the log of each shard: `home`, or one of APC_DATABASES (ADR 27).

_DATABASES = """
SELECT shard, database, moving_to FROM apc_log.shard_places WHERE database IS NOT NULL OR moving_to IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Where the log of a shard is."""

    database: str = HOME
    moving_to: str | None = None
    """The database that it is on its way to: then no orchestrator takes the shard."""


async def read_database_places(home: asyncpg.Pool | asyncpg.Connection) -> dict[int, DatabasePlace]:
    """Return the place of each shard that is not at home, or about to leave it."""
    return {
        row["shard"]: DatabasePlace(row["database"] or HOME, row["moving_to"]) for row in await home.fetch(_DATABASES)
    }


class LogDatabases:
    """A pool of each database of the log. With home alone nothing is asked, and every shard is there.

    Where a shard is may change at any time: a database refuses a shard that it does not have, and who is refused asks
    again.
    """

    def __init__(self, home: asyncpg.Pool, others: Mapping[str, asyncpg.Pool] | None = None) -> None:
        """Take the pool of home, and those of the others by their names."""
        self.home = home
        self.pools: Mapping[str, asyncpg.Pool] = {HOME: home, **(others or {})}
        self._places: dict[int, DatabasePlace] | None = None

    @property
    def has_others(self) -> bool:
        """Whether there is a database beside home."""
        return len(self.pools) > 1

    @property
    def known_pools(self) -> Sequence[asyncpg.Pool]:
        """The pools of all databases, home first."""
        return tuple(self.pools.values())

    def place_of(self, shard: int) -> DatabasePlace:
        """Return where a shard was at the last look."""
        return (self._places or {}).get(shard, DatabasePlace())

    def shards_elsewhere(self, name: str, shards: int = 256) -> list[int]:
        """Return the shards that a database did not have at the last look: what it holds of them is out of date."""
        return [shard for shard in range(shards) if self.place_of(shard).database != name]

    async def look(self) -> None:
        """Read where the shards are. Raises OSError or asyncpg's errors when home is away."""
        if self.has_others:
            self._places = await read_database_places(self.home)

    async def find(self, shard: int) -> asyncpg.Pool:
        """Return the pool of the database that has a shard; while home is away, by the last look.

        Raises:
            DatabaseUnknown: APC_DATABASES does not name it.
            OSError, asyncpg.PostgresError: home is away, and was never looked into.
        """
        try:
            await self.look()
        except DATABASE_AWAY:
            if self._places is None:
                raise
        name = self.place_of(shard).database
        if name not in self.pools:
            raise DatabaseUnknown(shard, name)
        return self.pools[name]


@asynccontextmanager
async def open_databases(home: asyncpg.Pool, urls: Mapping[str, str], **options: Any) -> AsyncIterator[LogDatabases]:
    """Yield home and the databases of these URLs, whose pools connect when they are used: one may be away.

    Args:
        home: the pool of APC_DATABASE_URL.
        urls: name -> URL, as `DatabaseSettings.other_urls`.
        options: of `open_pool`.
    """
    async with AsyncExitStack() as stack:
        others = {}
        for name, url in urls.items():
            others[name] = await open_pool(url, min_size=0, **options)
            stack.push_async_callback(others[name].close)
        yield LogDatabases(home, others)


@dataclass(frozen=True, slots=True)
class Databases:
    """The databases of a log.

    Args:
        home: the URL of the home database.
        others: name -> URL of each other one.
        away: shard -> name of the database that has it; the home database has the others.
    """

    home: str
    others: Mapping[str, str] = field(default_factory=dict)
    away: Mapping[int, str] = field(default_factory=dict)

    @property
    def parts(self) -> Mapping[str, Sequence[int]] | None:
        """The other databases with their shards, as `open_pool` takes them; None when home is the only one."""
        if not self.others:
            return None
        return {name: [shard for shard, at in sorted(self.away.items()) if at == name] for name in sorted(self.others)}

    def name_of(self, shard: int) -> str:
        """Return the name of the database that has a shard."""
        return self.away.get(shard, HOME)

    def url_of(self, shard: int) -> str:
        """Return the URL of the database that has a shard, for what proves, archives or writes it.

        Raises LookupError when the shard is in a database that APC_DATABASES does not name.
        """
        name = self.name_of(shard)
        if name != HOME and name not in self.others:
            raise LookupError(f"shard {shard} is in database {name!r}: name it in APC_DATABASES")
        return self.home if name == HOME else self.others[name]


async def read_databases(home: str, others: Mapping[str, str]) -> Databases:
    """Return the databases of a log; the home one is asked where the shards are, if there are others.

    Raises DatabaseUnavailable when the home database is away.
    """
    if not others:
        return Databases(home)
    try:
        connection = await connect(home, is_reader=True)
        try:
            places = await read_database_places(connection)
        finally:
            await connection.close()
    except DATABASE_AWAY as error:
        raise DatabaseUnavailable(f"Postgres does not answer ({first_line(error)})") from error
    away = {shard: place.database for shard, place in places.items() if place.database != HOME}
    return Databases(home, others, away)
