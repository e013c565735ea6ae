"""What it means that the database is away, and what passes by itself."""

import asyncpg

from apc_bus.errors import PoolerUnsuitable, StatementTooSlow

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
