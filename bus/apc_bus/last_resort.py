"""The last resort against a message that ends its consumer, however it does it (docs/decisions/0020-last-resort.md).

A consumer that began with redelivered messages, and ended without explanation before it was through with them, is
recorded in a file. The next one takes what is redelivered one message at a time, and records which one it works on. A
message that ends the consumer ATTEMPTS times in a row while it is alone is set aside: handed over with `set_aside`,
never read or handled again. Nothing is recorded for a message otherwise.
"""

import asyncio
import sqlite3
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from pathlib import Path
from time import time
from typing import Any, Protocol
from uuid import uuid4

import structlog
from prometheus_client import Counter

from apc_bus.folders import make_private_folder
from apc_contracts.errors import ApcError

ATTEMPTS = 3
"""How often a message must end the consumer while alone: one kill by an operator, or by the machine, proves nothing,
and two at the same message may be a drain of two nodes. In a crash loop three come within seconds."""
REMEMBERED_SECONDS = 3600.0
"""How long an end counts: longer than a supervisor's longest pause between restarts, several times over."""
PATIENCE_SECONDS = 10.0
"""How long one message may keep those of other queues of the process waiting. After that they are not alone, and no end
counts against any of them."""
FILE = "last-resort.sqlite"

_SET_ASIDE = Counter(
    "apc_bus_messages_set_aside", "Messages that ended their consumer while they were alone in it.", ["queue"]
)
_log = structlog.get_logger("apc_bus")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (queue TEXT, run TEXT, at REAL, PRIMARY KEY (queue, run));
CREATE TABLE IF NOT EXISTS ends (queue TEXT, message BLOB, times INTEGER, at REAL, PRIMARY KEY (queue, message));
"""


class Scoped(Protocol):
    """A bus, as far as the last resort knows it."""

    @property
    def scope(self) -> str | None:
        """The broker and the virtual host; None = they end with this process."""
        ...


class Risky(Protocol):
    """A delivery, as far as the last resort knows it."""

    @property
    def risk(self) -> "Risk | None":
        """What is recorded while it is handled; None = nothing is."""
        ...


class EndRecords:
    """What outlives a process: its runs that ended without explanation, and the messages it was alone with.

    Without a file, or with one that cannot be used, they end with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._database: sqlite3.Connection | None = None

    def unproven_runs(self, queue: str) -> int:
        """Return how many consumers of the queue are not known to have come through."""
        if not self._exists():
            return 0
        self._run("DELETE FROM runs WHERE at < ?", time() - REMEMBERED_SECONDS)
        return self._number("SELECT count(*) FROM runs WHERE queue = ?", queue)

    def add_run(self, queue: str, run: str) -> None:
        """Record a run; it stands until it is forgotten."""
        self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", queue, run, time())

    def forget_run(self, queue: str, run: str) -> None:
        """Forget one run."""
        self._run("DELETE FROM runs WHERE queue = ? AND run = ?", queue, run)

    def forget_runs(self, queue: str) -> None:
        """Forget all runs of the queue."""
        self._run("DELETE FROM runs WHERE queue = ?", queue)

    def ends(self, queue: str, message: bytes) -> int:
        """Return how often the message has ended a consumer."""
        if not self._exists():
            return 0
        self._run("DELETE FROM ends WHERE at < ?", time() - REMEMBERED_SECONDS)
        return self._number("SELECT max(times) FROM ends WHERE queue = ? AND message = ?", queue, message)

    def count(self, queue: str, message: bytes, ends: int) -> None:
        """Add to the ends of a message, or take some off if it is not forgotten."""
        if ends < 0:
            change = "UPDATE ends SET times = times + ? WHERE queue = ? AND message = ?"
            self._run(change, ends, queue, message)
            return
        change = """INSERT INTO ends VALUES (?, ?, ?, ?)
            ON CONFLICT (queue, message) DO UPDATE SET times = times + excluded.times, at = excluded.at"""
        self._run(change, queue, message, ends, time())

    def clear(self, queue: str, message: bytes) -> None:
        """Forget a message: it has come through."""
        self._run("DELETE FROM ends WHERE queue = ? AND message = ?", queue, message)

    def _exists(self) -> bool:
        return self._database is not None or (self._folder is not None and (self._folder / FILE).exists())

    def _number(self, statement: str, *values: Any) -> int:
        row = self._run(statement, *values)
        return row[0] or 0 if row else 0

    def _run(self, statement: str, *values: Any) -> Any:
        try:
            return self._open().execute(statement, values).fetchone()
        except (sqlite3.Error, OSError) as error:
            if self._folder is None:
                raise
            reason = f"{self._folder / FILE}: {error}; a message that kills this process is not recognised by the next"
            _log.warning("ends_not_kept", reason=reason)
            self._folder = self._database = None
            return self._run(statement, *values)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            if self._folder is not None:
                make_private_folder(self._folder)
            place = ":memory:" if self._folder is None else self._folder / FILE
            database = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
            # It outlives the process, not a power cut: no fsync, so that a record costs 50 µs.
            database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_SCHEMA}")
            weakref.finalize(self, database.close)
            self._database = database
        return self._database


class LastResort:
    """That of one process: which of its messages is alone in it.

    Args:
        folder: keeps the records (`data_dir`).
        explained: errors beside those of apc-bus and of the operating system that explain the end of a consumer.
    """

    def __init__(self, folder: Path | None, explained: tuple[type[BaseException], ...] = ()) -> None:
        self.records = EndRecords(folder)
        self._local = EndRecords(None)
        self._explained: tuple[type[BaseException], ...] = (ApcError, OSError, *explained)
        self._at_risk: list[tuple[EndRecords, str, bytes]] = []
        self._turn = asyncio.Lock()

    def watch(self, bus: Scoped, queue: str, *, one_at_a_time: bool = True) -> "RedeliveryWatch":
        """Return the watch of one subscription; `one_at_a_time`: the next waits until the former is settled."""
        records = self._local if bus.scope is None else self.records
        return RedeliveryWatch(self, records, queue, f"{bus.scope or ''} {queue}", one_at_a_time)

    def explains(self, error: BaseException | None) -> bool:
        """Return whether a consumer ends in this way without being at fault."""
        return error is None or isinstance(error, self._explained) or not isinstance(error, Exception)

    @contextmanager
    def at_risk(self, records: EndRecords, queue: str, message: bytes) -> Iterator[None]:
        """Record, if nothing else is at risk, that the end of the process would be this message's doing."""
        entry = (records, queue, message)
        self._count_single(-1)
        self._at_risk.append(entry)
        self._count_single(1)
        is_blamed = False
        try:
            yield
        except BaseException as error:
            is_blamed = not self.explains(error)
            raise
        finally:
            if not is_blamed:
                self._count_single(-1)
            self._at_risk.remove(entry)
            self._count_single(1)

    @asynccontextmanager
    async def alone(self, records: EndRecords, queue: str, message: bytes) -> AsyncIterator[None]:
        """Let no other message of this process be at risk meanwhile, if they can wait so long."""
        has_turn = False
        try:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    has_turn = await self._turn.acquire()
            except TimeoutError:
                pass
            with self.at_risk(records, queue, message):
                yield
        finally:
            if has_turn:
                self._turn.release()

    def _count_single(self, ends: int) -> None:
        if len(self._at_risk) == 1:
            records, queue, message = self._at_risk[0]
            records.count(queue, message, ends)


class RedeliveryWatch:
    """What one subscription has to take care of, because consumers before it may have ended without explanation."""

    def __init__(
        self, resort: LastResort, records: EndRecords, queue: str, scoped_queue: str, one_at_a_time: bool
    ) -> None:
        self._resort = resort
        self._records = records
        self._name = queue
        self._queue = scoped_queue
        self._run = uuid4().hex
        self.is_careful = records.unproven_runs(scoped_queue) > 0
        """Whether messages are handed over one at a time, each with its `risk`."""
        self.is_calm = False
        """Whether everything that was redelivered is through: nothing is recorded any more."""
        self.relaxed = asyncio.Event()
        """Set when it is calm and nothing is unsettled."""
        self.waits = one_at_a_time
        self._has_begun = False
        self._is_through = False

    def arrive(self, is_redelivered: bool) -> None:
        """Take note of a message that is read next."""
        if self.is_calm:
            return
        if self._has_begun:
            self._is_through |= not is_redelivered
        elif is_redelivered:
            self._has_begun = True
            self._records.add_run(self._queue, self._run)
            if self.is_careful:
                _log.warning("messages_taken_one_at_a_time", queue=self._name)
        else:
            self.is_calm, self.is_careful = True, False

    def note_settled(self, next_is_redelivered: bool | None) -> None:
        """Take note that all messages that were handed over are settled; None = no next message is here."""
        if not self.is_calm and self._has_begun:
            is_through = self._is_through or next_is_redelivered is False
            if is_through or (not self.is_careful and next_is_redelivered is None):
                self._calm_down()
        if self.is_calm:
            self.relaxed.set()

    def _calm_down(self) -> None:
        self.is_calm = True
        if self.is_careful:
            self.is_careful = False
            self._records.forget_runs(self._queue)
            _log.info("messages_taken_together_again", queue=self._name)
        else:
            self._records.forget_run(self._queue, self._run)

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Record how the subscription ends."""
        try:
            yield
        except BaseException as error:
            if not self._resort.explains(error):
                self._records.add_run(self._queue, self._run)
                raise
            self._forget()
            raise
        self._forget()

    def _forget(self) -> None:
        if self._has_begun and not self.is_calm:
            self._records.forget_run(self._queue, self._run)

    def risk(self, message: bytes) -> "Risk":
        """Return the risk of handling a message, by its fingerprint."""
        return Risk(self._resort, self._records, self._name, self._queue, message)


class Risk:
    """That a message ends the process."""

    def __init__(self, resort: LastResort, records: EndRecords, name: str, queue: str, message: bytes) -> None:
        self._resort = resort
        self._records = records
        self._name = name
        self._queue = queue
        self._message = message

    def is_too_high(self) -> bool:
        """Return whether the message is to be set aside; say so."""
        ends = self._records.ends(self._queue, self._message)
        if ends < ATTEMPTS:
            return False
        fingerprint = self._message.hex()
        _log.error("message_set_aside", queue=self._name, fingerprint=fingerprint, ended_its_consumer=ends)
        _SET_ASIDE.labels(self._name).inc()
        return True

    def taken(self) -> AbstractAsyncContextManager[None]:
        """Handle the message alone in this process."""
        return self._resort.alone(self._records, self._queue, self._message)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Read the message, or do something else with it that does not wait."""
        with self._resort.at_risk(self._records, self._queue, self._message):
            yield

    def end(self) -> None:
        """Note that the message is settled."""
        self._records.clear(self._queue, self._message)


def taken_alone(deliveries: Sequence[Risky]) -> AbstractAsyncContextManager[None]:
    """Return the context in which these deliveries are handled: the one of a careful subscription alone."""
    risk = deliveries[0].risk if deliveries else None
    return nullcontext() if risk is None else risk.taken()


def read_alone(delivery: Risky) -> AbstractContextManager[None]:
    """Return the context in which something is done with a delivery that does not wait."""
    return nullcontext() if delivery.risk is None else delivery.risk.at_once()
