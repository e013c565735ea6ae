"""An effect store in one SQLite file: for tools without a bus, in as many threads and processes as open the file."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import Any, Final, TypeVar
from uuid import UUID

import orjson
from pydantic import JsonValue

from apc_agents.effects import (
    MAX_LISTED,
    EffectClaim,
    EffectId,
    EffectRecord,
    EffectState,
    check_unsettled,
)
from apc_agents.errors import AgentError, StateUnavailable
from apc_bus.folders import make_private_file, make_private_folder

ResultT = TypeVar("ResultT")

BUSY: Final = timedelta(seconds=30)
"""How long a statement waits for another process that writes."""
_APPLICATION: Final = 0x61706345
"""What marks a file as one of effects: `apcE`."""
_VERSION: Final = 1

_SCHEMA = f"""
CREATE TABLE effects (
    scope_id TEXT NOT NULL, agent_id TEXT NOT NULL, key TEXT NOT NULL, claim_id TEXT NOT NULL,
    session_id TEXT NOT NULL, worker TEXT NOT NULL, claimed_at INTEGER NOT NULL, lease_until INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, made_at INTEGER, result TEXT, problem TEXT, settled_by TEXT,
    UNIQUE (scope_id, agent_id, key)
);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""
_COLUMNS = (
    "scope_id, agent_id, key, claim_id, session_id, worker, claimed_at, lease_until, made_at, result, problem, "
    "settled_by"
)
_PLACE = "scope_id = :scope AND agent_id = :agent AND key = :key"
_HELD = f"{_PLACE} AND claim_id = :claim AND made_at IS NULL"
_STATE = """
CASE WHEN made_at IS NOT NULL THEN CASE WHEN problem IS NULL THEN 'MADE' ELSE 'RESULT_LOST' END
     WHEN lease_until > :now THEN 'RUNNING' ELSE 'UNKNOWN' END
"""
_CLAIM = """
INSERT INTO effects (scope_id, agent_id, key, claim_id, session_id, worker, claimed_at, lease_until, expires_at)
VALUES (:scope, :agent, :key, :claim, :session, :worker, :now, :until, :expires)
ON CONFLICT (scope_id, agent_id, key) DO NOTHING
"""
_GET = f"SELECT {_COLUMNS}, {_STATE} FROM effects WHERE {_PLACE}"
_RENEW = f"UPDATE effects SET lease_until = :until WHERE {_HELD}"
_RECORD = f"UPDATE effects SET made_at = :now, result = :result, problem = :problem WHERE {_HELD}"
_INTERRUPT = f"UPDATE effects SET lease_until = :now, problem = :problem WHERE {_HELD}"
_WITHDRAW = f"DELETE FROM effects WHERE {_HELD}"
_SETTLE = f"""
UPDATE effects SET made_at = coalesce(made_at, :now), result = :result, problem = NULL, settled_by = :by
WHERE {_PLACE}
"""
_RELEASE = f"DELETE FROM effects WHERE {_PLACE}"
_LIST = f"""
SELECT {_COLUMNS}, {_STATE} AS state FROM effects
WHERE (:agent IS NULL OR agent_id = :agent) AND (:scope IS NULL OR scope_id = :scope)
  AND (:states IS NULL OR instr(:states, '|' || {_STATE} || '|'))
ORDER BY claimed_at DESC, rowid DESC LIMIT :limit
"""
_PURGE = "DELETE FROM effects WHERE agent_id = :agent AND made_at IS NOT NULL AND expires_at < :before"


def _now() -> int:
    return time.time_ns() // 1_000


class SQLiteEffectStore:
    """An EffectStore in a file, in WAL mode: durable when a call returns, also over a power cut.

    The first claim of a key stands, whichever thread or process makes it. The clock is that of the machine. The file
    and what SQLite lays beside it are readable by their owner alone (mode 0600), for results may be confidential. It
    must lie on a local disk: SQLite's locks do not hold over a network.

    ```python
    import tempfile

    store = SQLiteEffectStore(f"{tempfile.mkdtemp()}/effects.db")
    paid = []


    @once(store, scope="run-17")
    def pay(order: str) -> str:
        paid.append(order)
        return f"receipt of {order}"


    assert [pay("o-7"), pay("o-7")] == ["receipt of o-7"] * 2
    assert paid == ["o-7"]
    (effect,) = await store.list()
    assert (effect.session_id, effect.result) == ("run-17", "receipt of o-7")
    store.close()
    ```

    Args:
        path: the file; made with its folder when there is none.

    Raises:
        AgentError: the file is no store of effects, of a later version, another user's, or no regular file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._do(lambda connection: None)

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Make this `claim` for a `lease`, unless another one stands; return the one that stands."""
        given = {
            **_place(claim.effect_id),
            "claim": str(claim.claim_id),
            "session": claim.session_id,
            "worker": claim.worker,
            "expires": _written(claim.expires_at),
        }

        def claimed(connection: sqlite3.Connection) -> EffectRecord:
            now = _now()
            connection.execute(_CLAIM, {**given, "now": now, "until": now + _micros(lease)})
            kept = _get(connection, claim.effect_id)
            assert kept is not None, "it was claimed in this transaction, or before"
            return kept

        return await self._write(claimed)

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Let the claim `claim_id` of `effect_id` stand for another `lease`."""
        await self._held(_RENEW, effect_id, claim_id, until=_now() + _micros(lease))

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the holder of `claim_id` made `effect_id`: with this `result`, or the `problem` with it."""
        return await self._held(_RECORD, effect_id, claim_id, result=_json(result), problem=problem)

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the holder of `claim_id` began `effect_id`, and knows no more: the `problem` says why."""
        await self._held(_INTERRUPT, effect_id, claim_id, problem=problem)

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete the claim `claim_id`: its holder says that `effect_id` has not happened."""
        await self._held(_WITHDRAW, effect_id, claim_id)

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Record that an unknown effect has happened; return it.

        Args:
            effect_id: the effect, as EffectUnknown and `list` name it.
            result: JSON; what the tool returns from now on.
            by: who found that out.

        Raises:
            EffectSettled: it is not unknown.
        """

        def settled(connection: sqlite3.Connection) -> EffectRecord:
            check_unsettled(effect_id, _get(connection, effect_id))
            connection.execute(_SETTLE, {**_place(effect_id), "now": _now(), "result": _json(result), "by": by})
            kept = _get(connection, effect_id)
            assert kept is not None, "nobody else writes in this transaction"
            return kept

        return await self._write(settled)

    async def release(self, effect_id: EffectId) -> None:
        """Record that the unknown effect `effect_id` has not happened: the next call makes it. Raises EffectSettled."""

        def released(connection: sqlite3.Connection) -> None:
            check_unsettled(effect_id, _get(connection, effect_id), may_be_made=False)
            connection.execute(_RELEASE, _place(effect_id))

        await self._write(released)

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect `effect_id`; None when nobody has claimed it."""
        return await asyncio.to_thread(self._do, lambda connection: _get(connection, effect_id))

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects, newest first.

        Args:
            agent_id: whose; those of tools without a bus are of `tools`. Default all.
            packet_id: of which scope; default all.
            states: in which states; default all.
            limit: how many, at most 1,000.
        """
        given = {
            "agent": agent_id,
            "scope": None if packet_id is None else str(packet_id),
            "states": None if states is None else "".join(f"|{state.value}|" for state in states),
            "limit": min(limit, MAX_LISTED),
        }

        def listed(connection: sqlite3.Connection) -> Sequence[EffectRecord]:
            rows = connection.execute(_LIST, {**given, "now": _now()})
            return [_record(row) for row in rows]

        return await asyncio.to_thread(self._do, listed)

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what `agent_id` made, when its scope expired a `retention` ago; return how many. Unknown ones stay."""
        given = {"agent": agent_id, "before": _now() - _micros(retention)}
        return await self._write(lambda connection: connection.execute(_PURGE, given).rowcount)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    async def _held(self, statement: str, effect_id: EffectId, claim_id: UUID, **given: Any) -> EffectRecord | None:
        """Change what its holder still holds; return what is kept."""

        def changed(connection: sqlite3.Connection) -> EffectRecord | None:
            named = {**_place(effect_id), "claim": str(claim_id), "now": _now(), **given}
            connection.execute(statement, named)
            return _get(connection, effect_id)

        return await self._write(changed)

    async def _write(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Do this in a transaction that nobody else writes beside."""

        def written(connection: sqlite3.Connection) -> ResultT:
            with _transaction(connection):
                return work(connection)

        return await asyncio.to_thread(self._do, written)

    def _do(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        with self._lock:
            try:
                return work(self._opened())
            except sqlite3.OperationalError as error:
                raise StateUnavailable(f"the effect store {self._path} does not answer: {error}") from error
            except sqlite3.DatabaseError as error:
                raise AgentError(f"{self._path} is no effect store: {error}. Name another file") from error

    def _opened(self) -> sqlite3.Connection:
        """Return the connection of this process: one that was made before a fork is not used."""
        if self._connection is None or self._process != os.getpid():
            self._connection, self._process = _connect(self._path), os.getpid()
        return self._connection


def _connect(path: Path) -> sqlite3.Connection:
    try:
        make_private_folder(path.parent)
        make_private_file(path)
        _check_owned(path)
    except OSError as error:
        raise AgentError(f"the effect store {path} cannot be made: {error.strerror}: name another file") from error
    connection = sqlite3.connect(
        path, timeout=BUSY.total_seconds(), isolation_level=None, check_same_thread=False, cached_statements=32
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owned(path: Path) -> None:
    state = path.lstat()
    if not S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise AgentError(f"the effect store {path} must be a regular file of this user, readable by nobody else")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table in a new file. Raises AgentError for a file that is something else."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")
    with _transaction(connection):
        marks = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        if marks == (0, 0) and is_empty:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
        elif marks != (_APPLICATION, _VERSION):
            what = f"of version {marks[1]}, and this is {_VERSION}" if marks[0] == _APPLICATION else "something else"
            raise AgentError(f"{path} is no effect store: it is {what}. Name another file")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _get(connection: sqlite3.Connection, effect_id: EffectId) -> EffectRecord | None:
    row = connection.execute(_GET, {**_place(effect_id), "now": _now()}).fetchone()
    return None if row is None else _record(row)


def _place(effect_id: EffectId) -> dict[str, Any]:
    return {"scope": str(effect_id.packet_id), "agent": effect_id.agent_id, "key": effect_id.key}


def _record(row: tuple[Any, ...]) -> EffectRecord:
    scope, agent, key, claim, session, worker, claimed, _, made, result, problem, settled_by, state = row
    return EffectRecord(
        effect_id=EffectId(UUID(scope), agent, key),
        claim_id=UUID(claim),
        session_id=session,
        worker=worker,
        state=EffectState(state),
        claimed_at=_read(claimed),
        made_at=None if made is None else _read(made),
        result=None if result is None else orjson.loads(result),
        problem=problem,
        settled_by=settled_by,
    )


def _json(value: JsonValue) -> str:
    return orjson.dumps(value).decode()


def _micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _written(moment: datetime) -> int:
    return _micros(moment - _EPOCH)


def _read(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
