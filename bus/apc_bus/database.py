"""Postgres: pools and connections that follow the primary, and the check of its durability."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import asyncpg
from asyncpg.pool import PoolAcquireContext, PoolConnectionProxy

from apc_bus.concurrency import Backoff
from apc_bus.errors import DatabaseNotDurable, DatabasePartAway, DatabaseUnavailable, PoolerUnsuitable, StatementTooSlow
from apc_bus.telemetry import get_logger, quiet_libraries
from apc_bus.tls import tls_problem

# What it means that the database is away, and what passes by itself.

_AWAY = (
    OSError,  # TimeoutError too
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.ReadOnlySQLTransactionError,  # 25006: a standby, or a primary that was demoted
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,  # 53: full disk, no memory, too many connections
    asyncpg.OperatorInterventionError,  # 57: it shuts down, starts or recovers
    asyncpg.PostgresSystemError,  # 58: its disk fails
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that dies between two steps of a transaction (seen in a soak)
    PoolerUnsuitable,
    DatabasePartAway,
)
_WRONG = (ValueError, asyncpg.UnsupportedClientFeatureError)
"""What the library refuses by itself: an argument that does not fit, a feature that it does not have."""
_CANCELLED = (
    StatementTooSlow,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,
    asyncpg.exceptions.ConfigurationLimitExceededError,  # 53400: temp_file_limit
)
"""One statement or one transaction was given up, and the server works."""
_POOLED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""26000, 42P05: a prepared statement is gone, or another client's is there."""

DATABASE_AWAY = (*_AWAY, asyncpg.PostgresError)
"""The database is away, restarts, is full or not migrated: a service waits and tries again."""


def is_away(error: BaseException) -> bool:
    """Return whether the server is away, demoted, starting, stopping or full: waiting helps, no statement is wrong."""
    if isinstance(error, (*_WRONG, *_CANCELLED)):
        return False
    return isinstance(error, (*_AWAY, *_POOLED))


def is_passing(error: BaseException) -> bool:
    """Return whether the same transaction may succeed later: the server is away, or gave up this one."""
    return is_away(error) or isinstance(error, _CANCELLED)


def is_of_statement(error: BaseException) -> bool:
    """Return whether an error that passes may come again and again of one statement, while others succeed."""
    return is_passing(error) and (not is_away(error) or isinstance(error, asyncpg.OutOfMemoryError))


def in_clear_words(error: BaseException) -> BaseException:
    """Return the error, or PoolerUnsuitable where it shows that a pooler loses statements."""
    return PoolerUnsuitable(first_line(error)) if isinstance(error, _POOLED) else error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its name when it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]


_DURABILITY = ("fsync", "full_page_writes", "synchronous_commit")


async def check_durability(connection: asyncpg.Connection | PoolConnectionProxy) -> None:
    """Make sure that a returned COMMIT survives a crash of the server.

    Raises:
        DatabaseNotDurable: fsync, full_page_writes or synchronous_commit is off.
    """
    off = await undurable_settings(connection)
    if off:
        raise DatabaseNotDurable(
            f"Postgres runs with {', '.join(off)} off and may lose committed rows: switch it on, "
            "or set APC_ALLOW_UNDURABLE_DATABASE=true for a test"
        )


async def undurable_settings(connection: asyncpg.Connection | PoolConnectionProxy) -> list[str]:
    """Return the settings that are off and without which a returned COMMIT may be lost; empty = durable."""
    rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", _DURABILITY)
    return sorted(row["name"] for row in rows if row["setting"] == "off")


# Connections to the primary: one server after the other, none that only reads, no pooler that loses statements.

_CONNECT_TIMEOUT_SECONDS = 5.0
_BACKEND = "SELECT pg_backend_pid()"
_REFUSED_AS = """
SELECT CASE WHEN pg_is_in_recovery() THEN 'a standby'
    WHEN NOT $1 AND current_setting('default_transaction_read_only') = 'on' THEN 'read-only' END
"""
_READ_ONLY = (
    "the server is {what}: APC_DATABASE_URL must lead to the primary, or name all servers (HOST1,HOST2); "
    "target_session_attrs=any in it lets a command read here"
)

_SETTINGS: Mapping[str, str] = {"jit": "off"}
"""Of every connection: to compile a plan takes longer than any of our statements does without it."""

_log = get_logger("apc_bus")


async def connect(
    url: str,
    *,
    patience: float = _CONNECT_TIMEOUT_SECONDS,
    is_reader: bool = False,
    server_settings: Mapping[str, str] | None = None,
    **options: Any,
) -> asyncpg.Connection:
    """Connect to the primary among the servers of the URL; one after the other is tried, each for `patience` seconds.

    With `target_session_attrs` in the URL that decides which of them may be used.

    Args:
        is_reader: it only reads, so that a primary which was told to refuse changes is taken.
        server_settings: as `open_pool`; set by SQL, because poolers refuse most of them at the start.

    Raises:
        asyncpg.ReadOnlySQLTransactionError: the server is read-only.
        OSError, asyncpg.PostgresError, asyncpg.InterfaceError: as asyncpg; the error of the last server.
    """
    servers = [url] if _names_target(url) else _servers(url)
    for server in servers[:-1]:
        try:
            return await _connect(server, url, is_reader, server_settings, patience, **options)
        except DATABASE_AWAY as error:
            if not is_away(error):
                raise
            _log.debug("database_server_passed_over", reason=first_line(error))
    return await _connect(servers[-1], url, is_reader, server_settings, patience, **options)


async def _connect(
    server: str, url: str, is_reader: bool, settings: Mapping[str, str] | None, patience: float, **options: Any
) -> asyncpg.Connection:
    try:
        connection: asyncpg.Connection = await asyncpg.connect(server, timeout=patience, **options)
    except asyncpg.ObjectNotInPrerequisiteStateError as error:  # "not currently accepting connections"
        raise asyncpg.CannotConnectNowError(str(error)) from error
    try:
        async with asyncio.timeout(patience):  # a pooler takes clients whose server is away
            if not _names_target(url) and (what := await connection.fetchval(_REFUSED_AS, is_reader)) is not None:
                raise asyncpg.ReadOnlySQLTransactionError(_READ_ONLY.format(what=what))
            await connection.execute(settings_sql({**_SETTINGS, **(settings or {})}))
    except BaseException as error:
        connection.terminate()
        if (clear := in_clear_words(error)) is error:
            raise
        raise clear from error
    return connection


async def check_pooler(connection: asyncpg.Connection, url: str) -> None:
    """Raise PoolerUnsuitable when two clients share one process of the server: a pooler lends it by transactions.

    A second client that gets no connection in time shows nothing, and the pooler is taken: one that lends by
    transactions would have lent the connection of the first client, which is idle.
    """
    backend = await connection.fetchval(_BACKEND, timeout=_CONNECT_TIMEOUT_SECONDS)
    if backend == connection.get_server_pid():
        return  # no pooler is between
    with suppress(OSError, asyncpg.PostgresError):
        other = await asyncpg.connect(url, timeout=_CONNECT_TIMEOUT_SECONDS, statement_cache_size=0)
        try:
            if await other.fetchval(_BACKEND, timeout=_CONNECT_TIMEOUT_SECONDS) == backend:
                raise PoolerUnsuitable
        finally:
            other.terminate()


def settings_sql(settings: Mapping[str, str]) -> str:
    """Return the statements that set Postgres parameters."""
    quoted = ((name, value.replace("'", "''")) for name, value in settings.items())
    return "".join(f"SET {name} = '{value}';" for name, value in quoted)


def _names_target(url: str) -> bool:
    return "target_session_attrs" in parse_qs(urlsplit(url).query)


def _servers(url: str) -> list[str]:
    """Return a URL for each server that the URL names, in its order."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(query)
    places, ports = given.get("host", "").split(","), given.get("port", "").split(",")
    if len(places) == 1 or len(ports) not in (1, len(places)):
        return [url]
    ports = ports if len(ports) > 1 else ports * len(places)
    others = [(name, value) for name, value in query if name not in ("host", "port")]
    return [
        parts._replace(query=urlencode([*others, ("host", host), *([("port", port)] if port else [])])).geturl()
        for host, port in zip(places, ports, strict=True)
    ]


# Reading the log of several databases as one: schema apc_joined of the home database stands for the log's own.

Parts = Mapping[str, Sequence[int]]
"""Name of each other database of the log -> the shards that it has."""
_OF_LOG = re.compile(r"\bapc_(?:log|keys)\.(?!place_shard\b)")  # which shards are where is written at home
_SERVER = re.compile(r'could not connect to server "apc_away_(\w+)"')
_FROM_AWAY = "remote SQL command: "


class JoinedConnection(asyncpg.Connection):
    """A connection whose statements about the log are about all databases of it (persister: database/joined.py)."""

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        """Execute as asyncpg does."""
        return str(await super().execute(joined(query), *args, **options))

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        """Fetch as asyncpg does."""
        return await super().fetch(joined(query), *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        """Fetch a row as asyncpg does."""
        return await super().fetchrow(joined(query), *args, **options)

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        """Fetch a value as asyncpg does."""
        return await super().fetchval(joined(query), *args, **options)

    async def prepare(self, query: str, **options: Any) -> Any:
        """Prepare as asyncpg does."""
        return await super().prepare(joined(query), **options)

    def cursor(self, query: str, *args: Any, **options: Any) -> Any:
        """Return a cursor as asyncpg does."""
        return super().cursor(joined(query), *args, **options)


def joined(statement: str) -> str:
    """Return a statement about the log of one database as one about the log of all.

    >>> joined("SELECT apc_log.end_of('refund-7')")
    "SELECT apc_joined.end_of('refund-7')"
    """
    return _OF_LOG.sub("apc_joined.", statement)


def part_away(error: BaseException, parts: Parts) -> DatabasePartAway | None:
    """Return the error of another database that is away; None for every other error of the home database."""
    if not isinstance(error, asyncpg.PostgresError) or not is_away(error):
        return None
    named = _SERVER.search(str(error))
    if named is not None:
        names = [named[1]]
    elif str(getattr(error, "context", None) or "").startswith(_FROM_AWAY):
        names = sorted(parts)  # which of them it was is not told
    else:
        return None
    shards = sorted(shard for name in names for shard in parts.get(name, ()))
    detail = getattr(error, "detail", None)
    return DatabasePartAway(names, shards, first_line(error) if detail is None else str(detail).splitlines()[0])


# Pools of connections to Postgres: JSON as text, and how they behave while the database is away.

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_QUIET_SECONDS = 2.5
"""A server without resources counts as away until no statement has failed for so long: longer than any repeat waits."""
_ANSWER_SECONDS = 5.0
"""How long a server may take to cancel a statement that was too slow, and to answer."""

_CLOSE_SECONDS = 3.0
"""How long connections may take to say goodbye: a frozen server never answers."""


class PostgresPool(asyncpg.Pool):
    """A pool that leaves a server which is away or demoted with all its connections, and knows when it is back.

    What a statement, a transaction or an attempt to connect fails with is noted when the connection is given back.
    """

    def __init__(
        self,
        url: str,
        *,
        min_size: int,
        max_size: int,
        command_timeout: float,
        server_settings: Mapping[str, str],
        parts: Parts | None = None,
    ) -> None:
        """Prepare the pool; awaiting it connects. The `server_settings` hold for every connection; `parts` as
        `open_pool`."""
        self._url = url
        self._parts = parts or {}
        self._settings = settings_sql({**_SETTINGS, **server_settings})
        self._problem: str | None = None
        self._is_full = False
        self._failures = 0
        self._failed_at = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._is_pooler_known = False
        super().__init__(
            url,
            connect=self._open,
            reset=self._reset_settings,
            max_queries=50_000,
            max_inactive_connection_lifetime=300.0,
            connection_class=asyncpg.Connection if parts is None else JoinedConnection,
            record_class=asyncpg.Record,
            loop=asyncio.get_running_loop(),
            command_timeout=command_timeout,
            min_size=min_size,
            max_size=max_size,
        )

    @property
    def problems(self) -> list[str]:
        """Return why the database cannot be used, at most one sentence; from any thread."""
        problem = self._problem
        return [] if problem is None else [f"the database is away: {problem}"]

    def acquire(self, *, timeout: float | None = None) -> "_Acquired":
        """Lend a connection; the errors of the context are noted."""
        return _Acquired(self, timeout)

    async def note(self, error: BaseException) -> BaseException:
        """Leave the server if the error says that it is away; return the error, in clear words where it has none."""
        part = part_away(error, self._parts) if self._parts else None
        if part is not None:
            return part  # the home database has answered
        clear = in_clear_words(error)
        if not is_away(clear) or self.is_closing():
            return clear
        self._failures += 1
        self._failed_at = asyncio.get_running_loop().time()
        self._is_full = isinstance(clear, (asyncpg.InsufficientResourcesError, PoolerUnsuitable))
        if not self._is_full:
            await self.expire_connections()
        if self._problem is None:
            _log.warning("database_away", reason=first_line(clear), error=type(error).__name__)
        self._problem = first_line(clear)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return clear

    def note_success(self, failures: int) -> None:
        """Believe that the server is back: a connection that was lent after all the `failures` has worked."""
        if self._problem is not None and failures == self._failures and not self._is_full:
            self._recover()

    @property
    def failures(self) -> int:
        """Return how often the server was away."""
        return self._failures

    async def release(self, connection: PoolConnectionProxy, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take a connection back; it is cut if the server does not answer in time, as a frozen one never does."""
        await super().release(connection, timeout=_ANSWER_SECONDS if timeout is None else timeout)

    async def close(self) -> None:
        """Close all connections once they are given back; cut those that a server does not let go in time."""
        self._stop_watching()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await super().close()
        except TimeoutError:  # asyncpg has cut them
            _log.warning("database_connections_cut", after_seconds=_CLOSE_SECONDS)

    def terminate(self) -> None:
        """Cut all connections."""
        self._stop_watching()
        super().terminate()

    async def _open(self, dsn: str | None = None, **options: Any) -> asyncpg.Connection:
        connection = await connect(self._url, is_reader=self._is_reader, **options)
        try:
            if not self._is_pooler_known:
                await check_pooler(connection, self._url)
                self._is_pooler_known = True
            await _set_codecs(connection)
            await connection.execute(self._settings)
        except BaseException as error:
            connection.terminate()
            raise in_clear_words(error) from error
        return connection

    @property
    def _is_reader(self) -> bool:
        return "default_transaction_read_only" in self._settings

    async def _reset_settings(self, connection: asyncpg.Connection) -> None:
        await connection.execute(f"{connection.get_reset_query()}\n{self._settings}")

    async def _watch(self) -> None:
        """Connect again and again until the server takes it; then the database is back."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while self._problem is not None:
            await backoff.wait()
            failures = self._failures
            try:
                connection = await connect(self._url, is_reader=self._is_reader)
            except DATABASE_AWAY as error:
                self._problem = first_line(error)
                continue
            connection.terminate()
            if self._is_full:
                is_over = asyncio.get_running_loop().time() - self._failed_at > _QUIET_SECONDS
            else:
                is_over = failures == self._failures
            if is_over:
                self._recover()

    def _recover(self) -> None:
        if self._problem is not None:
            self._problem = None
            _log.info("database_back")

    def _stop_watching(self) -> None:
        self._problem = None
        if self._watching is not None:
            self._watching.cancel()


class _Acquired(PoolAcquireContext):
    """A lent connection, as asyncpg's; the pool learns how its use ends."""

    __slots__ = ("_failures", "_pool")

    def __init__(self, pool: PostgresPool, timeout: float | None) -> None:
        super().__init__(pool, timeout)
        self._pool = pool
        self._failures = pool.failures

    async def __aenter__(self) -> PoolConnectionProxy:
        try:
            return await super().__aenter__()
        except Exception as error:
            if (clear := await self._pool.note(error)) is not error:
                raise clear from error
            raise

    async def __aexit__(self, *exc: object) -> None:
        connection, error = self.connection, exc[1] if exc else None
        if not isinstance(error, BaseException) or connection is None:
            try:
                await super().__aexit__(*exc)
            except Exception as failure:
                if (clear := await self._pool.note(failure)) is not failure:
                    raise clear from failure
                raise
            self._pool.note_success(self._failures)
            return
        clear = error
        try:
            clear = await self._judged(connection, error)
        finally:
            await super().__aexit__(*exc)
        if clear is not error:
            raise clear from error

    async def _judged(self, connection: PoolConnectionProxy, error: BaseException) -> BaseException:
        """Return the error in clear words; the pool is told, and the connection cut, if it is the server's."""
        if isinstance(error, TimeoutError):
            if await _answers(connection):
                return error if isinstance(error, StatementTooSlow) else StatementTooSlow("a statement was too slow")
        elif isinstance(error, OSError) and not _is_over(connection):
            return error  # of the work that was done with the connection, such as a file's
        clear = await self._pool.note(error)
        if is_away(error) and not isinstance(clear, DatabasePartAway):
            with suppress(asyncpg.InterfaceError):  # it is gone
                connection.terminate()  # a server that is frozen would never answer to a goodbye
        return clear

    def __await__(self) -> Generator[Any, Any, PoolConnectionProxy]:
        return self._lent().__await__()

    async def _lent(self) -> PoolConnectionProxy:
        try:
            connection: PoolConnectionProxy = await PoolAcquireContext(self._pool, self.timeout)
        except Exception as error:
            if (clear := await self._pool.note(error)) is not error:
                raise clear from error
            raise
        return connection


async def _answers(connection: PoolConnectionProxy) -> bool:
    """Return whether the server still answers over a connection; a statement of it that is over is cancelled first."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await connection.execute("")
    except Exception as error:
        return not is_away(error)
    return True


def _is_over(connection: PoolConnectionProxy) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool took it away when the server closed it
        return True


_NOT_OPENED = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    ValueError,
    asyncpg.InternalClientError,
)
"""What opening a pool raises; ValueError is of a URL that cannot be read."""


async def open_pool(
    url: str,
    *,
    min_size: int = 1,
    max_size: int = 10,
    wait: timedelta = timedelta(seconds=10),
    command_timeout: timedelta = timedelta(seconds=60),
    server_settings: Mapping[str, str] | None = None,
    parts: Parts | None = None,
) -> asyncpg.Pool:
    """Return a pool whose connections read and write json and jsonb as text; retries with back-off for `wait`.

    Args:
        server_settings: Postgres parameters of every connection, such as `role` and `statement_timeout`.
        parts: the other databases of the log, which is then read over all of them; None = of this database alone.

    Raises:
        DatabaseUnavailable: no answer in time, a read-only server, a pooler that loses statements, or the server
            refuses user, password or database, or TLS fails.
    """
    quiet_libraries()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait.total_seconds()
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return await PostgresPool(
                url,
                min_size=min_size,
                max_size=max_size,
                server_settings=server_settings or {},
                command_timeout=command_timeout.total_seconds(),
                parts=parts,
            )
        except DatabaseUnavailable:
            raise
        except _NOT_OPENED as error:
            if problem := _tls_problem(error):  # waiting does not mend it
                raise DatabaseUnavailable(f"Postgres cannot be reached with TLS: {problem}") from error
            if not is_away(error) or isinstance(error, asyncpg.ProtocolViolationError):  # a pooler's word for most
                raise DatabaseUnavailable(
                    f"Postgres refuses the connection: {first_line(error)}; check APC_DATABASE_URL"
                ) from error
            if loop.time() + backoff.pause > deadline:
                raise DatabaseUnavailable(_unanswered(error)) from error
            if backoff.is_fresh:
                _log.warning("database_awaited", reason=first_line(error))
        await backoff.wait()


def problems_of(pool: asyncpg.Pool) -> list[str]:
    """Return why the database of a pool cannot be used, a sentence each; none for a pool of `asyncpg.create_pool`."""
    return pool.problems if isinstance(pool, PostgresPool) else []


async def note_failure(pool: asyncpg.Pool, error: BaseException) -> BaseException:
    """Tell a pool what happened to a connection that was taken out of it; return the error in clear words."""
    return await pool.note(error) if isinstance(pool, PostgresPool) else error


async def _set_codecs(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


def _unanswered(error: BaseException) -> str:
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return f"Postgres cannot be written to: {first_line(error)}"
    return f"Postgres does not answer ({first_line(error)}); start it, or set APC_DATABASE_URL"


def _tls_problem(error: BaseException) -> str | None:
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return "the server does not speak TLS: switch `ssl` on there, or drop APC_DATABASE_CA_FILE and sslmode"
    return tls_problem(error, "APC_DATABASE")
