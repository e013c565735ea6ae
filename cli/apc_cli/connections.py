"""The connections of a one-shot command to database and broker: made within seconds, or a clear error.

What brings the whole system along (`apc_client`) is imported where it is used: a command that only reads starts without
it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import asyncpg

from apc_bus.database import DATABASE_AWAY, Parts, first_line, open_pool
from apc_bus.errors import DatabasePartAway, DatabaseUnavailable
from apc_bus.port import ActPublisher, Bus
from apc_bus.settings import ArchiveSettings, BusSettings, ConsoleSettings, DatabaseSettings
from apc_bus.settings.database import HOME
from apc_bus.topology import AgentQueues, Topology
from apc_cli.errors import InputUnusable, ServiceAway
from apc_log.errors import NOT_JOINED
from apc_log.heads import AnyConnection, find_elsewhere, holds_log
from apc_log.placement import Databases, objection_to, read_databases, read_open_sessions
from apc_log.registry import read_registry, registered_agents

if TYPE_CHECKING:
    from apc_bus.rabbit.connections import Timing

# The database of a command: the one of APC_DATABASE_URL, or the embedded one of the data folder.

LONGEST_STATEMENT = timedelta(hours=1)
"""Of who archives segments: the guard makes and swaps whole tables in one."""
PATIENCE = timedelta(seconds=3)
"""How long a one-shot command waits for a server that does not answer; in total it ends within 10 s."""


def holds_database(folder: Path) -> bool:
    """Return whether a data folder holds an embedded database. Raises InputUnusable when it may not be read."""
    try:
        return (folder / "postgres" / "PG_VERSION").is_file()
    except OSError as error:
        raise InputUnusable(
            f"the data folder {folder}: {error.strerror}: it belongs to another user, or set APC_DATA_DIR to yours"
        ) from error


@asynccontextmanager
async def database_url(bus: BusSettings, database: DatabaseSettings) -> AsyncIterator[str]:
    """Yield the URL of the log's database; start the embedded server of the data folder when it does not run.

    Raises:
        InputUnusable: no APC_DATABASE_URL, and the data folder holds no database, or may not be read.
    """
    if database.url is not None:
        yield database.url
        return
    if not holds_database(bus.data_dir):
        raise InputUnusable(
            f"there is no log in {bus.data_dir.absolute()}: change to the folder where `apc run`, `apc up`, "
            "`apc demo` or `apc automl run` ran, or set APC_DATA_DIR to its .apc, or APC_DATABASE_URL"
        )
    from apc_persister.database.embedded import start_embedded

    server = await start_embedded(bus.data_dir)
    try:
        yield server.url
    finally:
        await server.stop()


@asynccontextmanager
async def open_log(
    longest: timedelta = timedelta(seconds=60), *, is_home_alone: bool = False
) -> AsyncIterator[asyncpg.Pool]:
    """Yield a pool on the database of the log, for commands that read it; with APC_DATABASES on all of them.

    Args:
        longest: what a statement may take.
        is_home_alone: on the home database, for what writes there, or works on one shard.

    Raises InputUnusable, DatabaseUnavailable.
    """
    async with open_log_with_url(longest, is_home_alone=is_home_alone) as (pool, _):
        yield pool


@asynccontextmanager
async def open_shard(shard: int) -> AsyncIterator[asyncpg.Pool]:
    """Yield a pool on the database that has a shard: proofs and other work on one shard are not done over another one.

    Raises InputUnusable, DatabaseUnavailable; ServiceAway names a database that is away.
    """
    settings = DatabaseSettings()
    async with database_url(BusSettings(), settings) as home:
        databases = await find_databases(home)
        async with open_database(databases, databases.name_of(shard)) as (pool, _):
            yield pool


@asynccontextmanager
async def open_database(
    databases: Databases, name: str, longest: timedelta = timedelta(seconds=60)
) -> AsyncIterator[tuple[asyncpg.Pool, str]]:
    """Yield a pool on one database of the log, and its URL. Raises InputUnusable, ServiceAway."""
    shards = [shard for shard, at in sorted(databases.away.items()) if at == name]
    try:
        url = databases.url_of(shards[0]) if shards else {HOME: databases.home, **databases.others}[name]
    except LookupError as error:
        raise InputUnusable(str(error.args[0])) from error
    async with AsyncExitStack() as stack:
        with _named(name, shards):
            pool = await stack.enter_async_context(_log_at(url, longest=longest))
        yield pool, url


@contextmanager
def _named(name: str, shards: Sequence[int]) -> Iterator[None]:
    """Name the database that cannot be opened, unless it is home."""
    try:
        yield
    except InputUnusable as error:
        raise error if name == HOME else InputUnusable(f"APC_DATABASES, {name!r}: {error}") from error
    except (ServiceAway, DatabaseUnavailable) as error:
        reason = first_line(error.__cause__ or error)
        raise error if name == HOME else ServiceAway(str(DatabasePartAway([name], shards, reason))) from error


async def in_each_database(
    work: Callable[[str, asyncpg.Pool, str], Awaitable[None]], longest: timedelta = timedelta(seconds=60)
) -> ServiceAway | None:
    """Do work in every database of the log, home first: on its name, a pool and its URL.

    One that is away does not keep it from the others: returns what says so, of the first one. Home is needed.

    Raises as `open_shard`.
    """
    away: ServiceAway | None = None
    async with database_url(BusSettings(), DatabaseSettings()) as home:
        databases = await find_databases(home)
        for name in (HOME, *sorted(databases.others)):
            try:
                async with open_database(databases, name, longest) as (pool, url):
                    await work(name, pool, url)
            except ServiceAway as error:
                if name == HOME:
                    raise
                away = away or error
    return away


@asynccontextmanager
async def connect_databases(
    longest: timedelta = timedelta(seconds=60), shard: int | None = None
) -> AsyncIterator[Mapping[str, AnyConnection]]:
    """Yield a connection to every database of the log by its name, home first, or to the one that has a shard.

    Raises as `open_shard`.
    """
    async with database_url(BusSettings(), DatabaseSettings()) as home, AsyncExitStack() as stack:
        databases = await find_databases(home)
        found: dict[str, AnyConnection] = {}
        for name in (HOME, *sorted(databases.others)) if shard is None else [databases.name_of(shard)]:
            pool, _ = await stack.enter_async_context(open_database(databases, name, longest))
            found[name] = await stack.enter_async_context(pool.acquire())
        yield found


async def find_databases(url: str) -> Databases:
    """Return the databases of the log whose home this URL names. Raises DatabaseUnavailable when it is away."""
    return await read_databases(url, DatabaseSettings().other_urls)


async def require_agent(pool: asyncpg.Pool, agent_id: str | None) -> None:
    """Raise InputUnusable when the log knows no such agent; None is any."""
    if agent_id is not None and agent_id not in await read_registry(pool):
        raise InputUnusable(f"--agent: no agent {agent_id!r} was ever registered: `apc agent list` shows who was")


@asynccontextmanager
async def open_log_with_url(
    longest: timedelta = timedelta(seconds=60), *, is_home_alone: bool = True
) -> AsyncIterator[tuple[asyncpg.Pool, str]]:
    """Yield the pool of `open_log`, and the database URL for helper processes."""
    settings = DatabaseSettings()
    async with database_url(BusSettings(), settings) as url:
        parts = None if is_home_alone or not settings.other_urls else (await find_databases(url)).parts
        async with _log_at(url, parts, longest) as pool:
            if not settings.other_urls and not is_home_alone:
                await _require_all_here(pool)
            yield pool, url


async def _require_all_here(pool: asyncpg.Pool) -> None:
    """Raise InputUnusable when other databases have shards of the log, which would be left out."""
    if (place := await find_elsewhere(pool)) is not None:
        raise InputUnusable(f"shard {place[0]} of the log is in database {place[1]!r}: name it in APC_DATABASES")


@asynccontextmanager
async def _log_at(
    url: str, parts: Parts | None = None, longest: timedelta = timedelta(seconds=60)
) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(url, max_size=2, wait=PATIENCE, command_timeout=longest, parts=parts)
    try:
        if not await holds_log(pool):
            raise InputUnusable("this database holds no log: run `apc migrate`" if parts is None else NOT_JOINED)
        archive = ArchiveSettings()
        if archive.archive_url is not None:
            from apc_log.thawing import read_archive  # loads an object store

            read_archive(pool, archive)
        yield pool
    except DatabasePartAway as error:
        raise ServiceAway(str(error)) from error
    except DATABASE_AWAY as error:
        raise ServiceAway(f"the database failed: {first_line(error)}") from error
    finally:
        await asyncio.wait_for(pool.close(), PATIENCE.total_seconds())


CONNECT_PATIENCE = timedelta(seconds=3)
PATIENCE_SECONDS = 8.0
"""Seconds in total that a command waits for the broker."""


def broker_user(settings: BusSettings) -> str:
    """Return the user of APC_AMQP_URL. Raises InputUnusable when it is not set."""
    if not settings.amqp_nodes:
        raise InputUnusable("set APC_AMQP_URL: `apc up` without a broker registers its agents itself")
    return unquote(urlsplit(settings.amqp_nodes[0]).username or "guest")


@asynccontextmanager
async def open_bus(settings: BusSettings) -> AsyncIterator[Bus]:
    """Yield the bus of APC_AMQP_URL, connected. Raises InputUnusable, BusUnavailable, ShardsDiffer."""
    from apc_bus.rabbit import connect_rabbit

    broker_user(settings)
    quick = settings.model_copy(update={"connect_patience": CONNECT_PATIENCE, "connect_timeout": CONNECT_PATIENCE})
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            bus = await connect_rabbit(quick, purpose="apc", shards=settings.shards)
    except TimeoutError as error:
        raise ServiceAway("the broker does not answer: start RabbitMQ or check APC_AMQP_URL") from error
    try:
        yield bus
    finally:
        await bus.close()


async def planned_topology(expected: Sequence[AgentQueues] = ()) -> Topology:
    """Return the topology of APC_SHARDS, with an inbox for each registered agent when APC_DATABASE_URL is set.

    Args:
        expected: agents that get an inbox even if they are not registered yet.
    """
    from apc_client.registration import inboxes_of, topology_of

    settings = BusSettings()
    agents = {agent.agent_id: agent for agent in expected}
    if DatabaseSettings().database_url is not None:
        async with open_log() as pool:
            agents |= {one.agent_id: one for one in inboxes_of(await registered_agents(pool))}
    return topology_of(settings, list(agents.values()))


def topology_url(settings: BusSettings) -> str:
    """Return the AMQP URLs of the deploy-time user, who may declare, with commas; needs APC_AMQP_URL or the other."""
    given = ConsoleSettings().topology_url
    urls = [one.strip() for one in given.get_secret_value().split(",")] if given else []
    return ",".join(map(settings.with_certificates, urls)) or ",".join(settings.amqp_nodes)


async def apply(topology: Topology, new: Collection[str] = ()) -> None:
    """Declare a topology as the user of APC_TOPOLOGY_URL; the queues in `new` never were.

    Another number of shards only if every open session stays in its shard, or if the number before serves them worse.

    Raises TopologyConflict, BusUnavailable.
    """
    from apc_bus.rabbit import apply_rabbit

    settings = BusSettings()
    broker_user(settings)
    objection = partial(_objection, topology.shards)
    await apply_rabbit(topology_url(settings), topology, new=new, objection=objection, timing=_timing())


def _timing() -> "Timing":
    from apc_bus.rabbit.connections import Timing

    seconds = CONNECT_PATIENCE.total_seconds()
    return Timing(connect=seconds, patience=seconds)


async def delete_own_queues(agent_id: str) -> None:
    """Delete the queues of an agent that runs on a host now, as the user of APC_TOPOLOGY_URL. Raises BusUnavailable."""
    from apc_bus.rabbit import delete_inbox

    await delete_inbox(topology_url(BusSettings()), agent_id, timing=_timing())


async def _objection(wanted: int, before: int) -> str | None:
    """Return why the number of shards may not be this one, by the log; without a log the first number is free."""
    if DatabaseSettings().database_url is None:
        missing = "only the log knows whether sessions are open, and which inboxes there are: set APC_DATABASE_URL"
        return missing if before else None
    async with open_log() as pool:
        return objection_to(await read_open_sessions(pool), before, wanted)


# The way of an operator's acts to the orchestrator: the broker, or the socket of an in-process system.


@dataclass(frozen=True, slots=True)
class Door:
    """Where acts go in.

    Args:
        user: the broker user in whose name they come.
        shards: of the system.
        open: connects; raises InputUnusable, BusUnavailable, ServiceAway.
        is_socket: whether it is that of a system of this machine, which may have ended.
    """

    user: str
    shards: int
    open: Callable[[], AbstractAsyncContextManager[ActPublisher]]
    is_socket: bool = False

    async def check(self) -> None:
        """Raise InputUnusable or ServiceAway when the system behind the socket has ended; a broker is not asked."""
        if self.is_socket:
            async with self.open():
                pass


NO_SESSIONS = (
    "a system without a broker takes no sessions from other processes. Without one, `apc run TEAM --input FILE` runs a "
    "session with its system, and `apc up --a2a TEAM` takes them over HTTP"
)
ONE_PROCESS = "a system without a broker is one process, which has every shard"


def require_broker(settings: BusSettings, why: str) -> None:
    """Raise InputUnusable, which says why, when no broker is configured."""
    if not settings.amqp_nodes:
        raise InputUnusable(f"set APC_AMQP_URL: {why}")


def find_door(settings: BusSettings) -> Door:
    """Return the door of the system that the settings name. Raises InputUnusable when it has none."""
    if not settings.amqp_nodes:
        from apc_client.local_acts import OPERATOR_USER, open_acts, socket_problem

        folder, problem = settings.data_dir, socket_problem(settings.data_dir)
        if problem is not None:
            raise InputUnusable(problem)
        return Door(OPERATOR_USER, settings.shards, lambda: open_acts(folder), is_socket=True)
    return Door(broker_user(settings), settings.shards, lambda: open_bus(settings))
