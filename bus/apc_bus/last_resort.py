"""The last resort against a message that ends its consumer, however it does it (docs/decisions/0020-last-resort.md).

A consumer that began with redelivered messages, and ended without explanation before it was through with them, is
recorded in a file. The next one takes what is redelivered one message at a time, and records which one it works on. A
message that ends the consumer ATTEMPTS times in a row while it is alone is set aside: handed over with `set_aside`,
never read or handled again. An end beside others blames nobody; it makes the next processes wait longer for one that is
slow, and let the others go first. Nothing is recorded for a message otherwise.
"""

import asyncio
import fcntl
import os
import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import UUID, uuid4

from prometheus_client import Counter

from apc_bus.folders import make_private_file, make_private_folder, refuse_of_another
from apc_bus.telemetry import get_logger
from apc_contracts.errors import ApcError

_held: set[str] = set()
_descriptors: dict[Path, int] = {}
"""Never closed: to close any descriptor of a file ends all locks that the process has on it."""


# Names that a process holds as long as it lives: the kernel takes them away however it ends.
#
# A name is a byte of a file, and its holder has locked the byte. Unlike a process id that means the same in each
# container that shares the file, and it passes to no child process.


def claim(file: Path | None) -> str:
    """Return a new name that this process holds; without a file no other process can see that. Raises OSError."""
    name = uuid4().hex
    if file is not None:
        fcntl.lockf(_descriptor(file), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
    _held.add(name)
    return name


def release(file: Path | None, name: str) -> None:
    """Hold a name no longer. Raises OSError."""
    if name in _held:
        _held.remove(name)
        if file is not None:
            fcntl.lockf(_descriptor(file), fcntl.LOCK_UN, 1, _place(name))


def is_held(file: Path | None, name: str) -> bool:
    """Return whether a living process holds the name. Raises OSError."""
    if name in _held or file is None:
        return name in _held
    descriptor, place = _descriptor(file), _place(name)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # which one is up to the system
        return True
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)
    return False


def _descriptor(file: Path) -> int:
    if file not in _descriptors:
        _descriptors[file] = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    return _descriptors[file]


def _place(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:5])


ATTEMPTS = 3
"""How often a message must end the consumer while alone: one kill by an operator, or by the machine, proves nothing,
and two at the same message may be a drain of two nodes. In a crash loop three come within seconds."""
REMEMBERED_SECONDS = 3600.0
"""How long an end counts: longer than a supervisor's longest pause between restarts, several times over."""
PATIENCE_SECONDS = 10.0
"""How long one message may keep those of other queues of the process waiting at first. After that they are not alone,
and an end of the process counts against none of them."""
PATIENCE_FACTOR = 4
"""How many times longer they wait after each such end: a slow message shields a deadly one only a few times."""
MOST_ENDS_BESIDE = 4
"""After so many such ends they wait no longer: 10 s, 40 s, 160 s, 11 min, 43 min."""
FILE = "last-resort.sqlite"
_CLAIMS = "last-resort.lock"
_BUSY_SECONDS = 5.0
"""How long the file may be locked while others make it."""

_EXPLAINED = (ApcError, OSError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)

T = TypeVar("T")
_SET_ASIDE = Counter(
    "apc_bus_messages_set_aside", "Messages that ended their consumer while they were alone in it.", ["queue"]
)
_log = get_logger("apc_bus")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (queue TEXT, run TEXT, at REAL, PRIMARY KEY (queue, run));
CREATE TABLE IF NOT EXISTS ends (queue TEXT, message BLOB, times INTEGER, at REAL, PRIMARY KEY (queue, message));
CREATE TABLE IF NOT EXISTS ends_beside (queue TEXT, message BLOB, times INTEGER, at REAL, PRIMARY KEY (queue, message));
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

    def ended_runs(self, queue: str) -> list[str]:
        """Return the runs of consumers that have ended, and are not known to have come through."""
        if not self._exists():
            return []
        rows = self._run("SELECT run FROM runs WHERE queue = ? AND at >= ?", queue, time() - REMEMBERED_SECONDS)
        return self._guarded(lambda: [run for (run,) in rows if not is_held(self._claims, run)])

    def begin_run(self, queue: str) -> str:
        """Record a run that ends with this process; it stands until it is forgotten."""
        self._run("DELETE FROM runs WHERE at < ?", time() - REMEMBERED_SECONDS)
        run = self._guarded(lambda: claim(self._claims))
        self._run("INSERT INTO runs VALUES (?, ?, ?)", queue, run, time())
        return run

    def end_run(self, run: str) -> None:
        """Note that the consumer of a run has ended without being through, though its process lives."""
        self._guarded(lambda: release(self._claims, run))

    def forget_runs(self, queue: str, runs: Iterable[str]) -> None:
        """Forget runs: what they stood for is through."""
        for run in runs:
            self._run("DELETE FROM runs WHERE queue = ? AND run = ?", queue, run)
            self.end_run(run)

    def ends(self, queue: str, message: bytes) -> int:
        """Return how often the message has ended a consumer."""
        if not self._exists():
            return 0
        self._forget_old("ends")
        return self._number("SELECT max(times) FROM ends WHERE queue = ? AND message = ?", queue, message)

    def ends_beside(self, queue: str, message: bytes) -> tuple[int, int]:
        """Return how often a process ended while several messages were at risk: this one before the others, and any."""
        self._forget_old("ends_beside")
        first = self._number("SELECT max(times) FROM ends_beside WHERE queue = ? AND message = ?", queue, message)
        return first, self._number("SELECT sum(times) FROM ends_beside")

    def count(self, queue: str, message: bytes, ends: int, *, is_alone: bool = True) -> None:
        """Add to the ends of a message, alone or as the first of several, or take some off if it is not forgotten."""
        table = "ends" if is_alone else "ends_beside"
        if ends < 0:
            change = f"UPDATE {table} SET times = times + ? WHERE queue = ? AND message = ?"
            self._run(change, ends, queue, message)
            return
        change = f"""INSERT INTO {table} VALUES (?, ?, ?, ?)
            ON CONFLICT (queue, message) DO UPDATE SET times = times + excluded.times, at = excluded.at"""
        self._run(change, queue, message, ends, time())

    def clear(self, queue: str, message: bytes) -> None:
        """Forget a message: it has come through."""
        for table in ("ends", "ends_beside"):
            self._run(f"DELETE FROM {table} WHERE queue = ? AND message = ?", queue, message)

    def _forget_old(self, table: str) -> None:
        self._run(f"DELETE FROM {table} WHERE at < ?", time() - REMEMBERED_SECONDS)

    @property
    def _claims(self) -> Path | None:
        return None if self._folder is None else self._folder / _CLAIMS

    def _exists(self) -> bool:
        return self._database is not None or self._guarded(
            lambda: self._folder is not None and (self._folder / FILE).exists()
        )

    def _number(self, statement: str, *values: Any) -> int:
        ((number,),) = self._run(statement, *values)
        return number or 0

    def _run(self, statement: str, *values: Any) -> list[Any]:
        return self._guarded(lambda: self._open().execute(statement, values).fetchall())

    def _guarded(self, act: Callable[[], T]) -> T:
        """Do something with the files; without them if they cannot be used."""
        try:
            return act()
        except (sqlite3.Error, OSError) as error:
            if self._folder is None:
                raise
            reason = f"{self._folder / FILE}: {error}; a message that kills this process is not recognised by the next"
            _log.warning("ends_not_kept", reason=reason)
            self._folder = self._database = None
            return act()

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            if self._folder is not None:
                make_private_folder(self._folder)
                refuse_of_another(self._folder)
                make_private_file(self._folder / FILE)
            self._database = _opened(":memory:" if self._folder is None else self._folder / FILE)
            weakref.finalize(self, self._database.close)
        return self._database


def _opened(place: str | Path) -> sqlite3.Connection:
    """Open the records; while others do so too, SQLite may refuse at once and not wait."""
    give_up_at = monotonic() + _BUSY_SECONDS
    while True:
        database = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        try:
            # It outlives the process, not a power cut: no fsync, so that a record costs 50 µs.
            database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_SCHEMA}")
        except sqlite3.Error as error:
            database.close()
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > give_up_at:
                raise
            sleep(0.01)
        else:
            return database


class LastResort:
    """That of one process: which of its messages is alone in it.

    Args:
        folder: keeps the records (`data_dir`).
        explained: errors beside those of apc-bus and of the operating system that explain the end of a consumer.
        notes_each_run: whether a consumer is recorded that had no redelivered messages, too: what comes again after
            its first unexplained end is then taken one at a time.
    """

    torn_down: ClassVar[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()
    """Event loops that end though nobody told them to, as by sys.exit in a task that a handler began: what is cancelled
    then has no explanation. `apc_cli.system.running.run` notes it."""
    in_hand: ClassVar[set[tuple[str, UUID]]] = set()
    """The agents of this process that handle a packet just now, and which."""

    def __init__(
        self, folder: Path | None, explained: tuple[type[BaseException], ...] = (), *, notes_each_run: bool = False
    ) -> None:
        self.notes_each_run = notes_each_run
        self.records = EndRecords(folder)
        self._local = EndRecords(None)
        self._explained: tuple[type[BaseException], ...] = (*_EXPLAINED, *explained)
        self._at_risk: list[tuple[EndRecords, str, bytes]] = []
        self._turn = asyncio.Lock()

    def watch(self, bus: Scoped, queue: str, *, one_at_a_time: bool = True) -> "RedeliveryWatch":
        """Return the watch of one subscription; `one_at_a_time`: the next waits until the former is settled."""
        records = self._local if bus.scope is None else self.records
        return RedeliveryWatch(self, records, queue, f"{bus.scope or ''} {queue}", one_at_a_time)

    def explains(self, error: BaseException | None) -> bool:
        """Return whether a consumer ends in this way without being at fault."""
        return error is None or (isinstance(error, self._explained) and not _is_torn_down())

    @contextmanager
    def at_risk(self, records: EndRecords, queue: str, message: bytes) -> Iterator[None]:
        """Record that the end of the process would be this message's doing, or that of several if it is not alone."""
        entry = (records, queue, message)
        self._count(-1)
        self._at_risk.append(entry)
        self._count(1)
        is_blamed = False
        try:
            yield
        except BaseException as error:
            is_blamed = not self.explains(error)
            raise
        finally:
            if not is_blamed:
                self._count(-1)
            self._at_risk.remove(entry)
            self._count(1)

    @asynccontextmanager
    async def alone(self, records: EndRecords, queue: str, message: bytes) -> AsyncIterator[None]:
        """Let no other message of this process be at risk meanwhile, if they can wait so long."""
        first, beside = records.ends_beside(queue, message)
        if first:  # the end may have been the doing of one that waited for it: that one goes first this time
            await asyncio.sleep(min(first, MOST_ENDS_BESIDE) * PATIENCE_SECONDS)
        patience = PATIENCE_SECONDS * PATIENCE_FACTOR ** min(beside, MOST_ENDS_BESIDE)
        turn = _Turn(self._turn, patience, lambda: self.at_risk(records, queue, message))
        before = _turn_of_handler.set(turn)
        try:
            await turn.take()
            yield
        except BaseException as error:
            turn.leave(error)
            raise
        else:
            turn.leave()
        finally:
            _turn_of_handler.reset(before)

    def _count(self, ends: int) -> None:
        if self._at_risk:
            records, queue, message = self._at_risk[0]
            records.count(queue, message, ends, is_alone=len(self._at_risk) == 1)


def _is_torn_down() -> bool:
    try:
        return asyncio.get_running_loop() in LastResort.torn_down
    except RuntimeError:  # no loop is left
        return False


class _Turn:
    """The turn of one message; only the task that takes it may give it up meanwhile."""

    def __init__(
        self, lock: asyncio.Lock, patience: float, at_risk: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.task = asyncio.current_task()
        self._lock, self._patience, self._at_risk = lock, patience, at_risk
        self._risk: AbstractContextManager[None] | None = None
        self._has_lock = False

    async def take(self) -> None:
        """Wait for the turn as long as patience lasts; from then on the message is at risk."""
        try:
            async with asyncio.timeout(self._patience):
                self._has_lock = await self._lock.acquire()
        except TimeoutError:
            pass
        self.go_on()

    def go_on(self) -> None:
        """Put the message at risk, whether it has the turn or not."""
        self._risk = self._at_risk()
        self._risk.__enter__()

    def leave(self, error: BaseException | None = None) -> None:
        """Give the turn up; `error` is how the message's handling ended, None at its end or while it waits."""
        if self._risk is not None:
            risk, self._risk = self._risk, None
            if error is None:
                risk.__exit__(None, None, None)
            else:
                risk.__exit__(type(error), error, error.__traceback__)
        if self._has_lock:
            self._has_lock = False
            self._lock.release()


_turn_of_handler: ContextVar[_Turn | None] = ContextVar("apc_turn", default=None)


@asynccontextmanager
async def others_go_on() -> AsyncIterator[None]:
    """Give up the turn of the message that this task handles while it waits for others, and take it again.

    Does nothing in a task beside the handler: the handler itself may be at work.
    """
    turn = _turn_of_handler.get()
    if turn is None or turn.task is not asyncio.current_task():
        yield
        return
    turn.leave()
    try:
        yield
    except Exception:
        await turn.take()
        raise
    except BaseException:  # a time limit of the handler is over: it goes on at once
        turn.go_on()
        raise
    await turn.take()


class RedeliveryWatch:
    """What one subscription has to take care of, because consumers before it may have ended without explanation."""

    def __init__(
        self, resort: LastResort, records: EndRecords, queue: str, scoped_queue: str, one_at_a_time: bool
    ) -> None:
        self._resort = resort
        self._records = records
        self._name = queue
        self._queue = scoped_queue
        self.is_careful = bool(records.ended_runs(scoped_queue))
        """Whether redelivered messages are handed over one at a time, each with its `risk`."""
        self.is_calm = False
        """Whether everything that was redelivered is through: nothing is recorded until something is redelivered."""
        self.relaxed = asyncio.Event()
        """Set when it is calm and nothing is unsettled."""
        self.waits = one_at_a_time
        self.in_hand: dict[int, Risk | None] = {}
        """What was redelivered and is not settled, by its tag, with its risk if it is taken carefully."""
        self._run: str | None = None
        """Of what was redelivered; None = nothing was, or all of it is through."""
        self._former_runs: list[str] = []
        """Because of which it is careful."""
        self._is_through = False
        """Whether the last message that came is new: of those that came before none may be on its way."""

    def arrive(self, is_redelivered: bool) -> None:
        """Take note of a message that is read next. Nothing changes for a new one when it is calm."""
        if is_redelivered:
            self._begin()
        elif self._run is None:
            self.is_calm, self.is_careful = True, False
        elif not self.in_hand:
            self._calm_down(self._run)
        self._is_through = not is_redelivered

    def _begin(self) -> None:
        if self._run is None:
            self.is_calm = self.is_careful = False
            self.relaxed.clear()
            self._run = self._records.begin_run(self._queue)
        # Another consumer may have ended meanwhile, and this may be what it ended of.
        if not self.is_careful and (former := self._records.ended_runs(self._queue)):
            self.is_careful, self._former_runs = True, former
            _log.warning("messages_taken_one_at_a_time", queue=self._name)

    def settled(self, unsettled: Container[int], only: int | None = None) -> list[int]:
        """Return the tags in hand that are settled by now; `only`: the one tag that can have changed, None = any."""
        if only is not None:
            return [only] if only in self.in_hand and only not in unsettled else []
        return [tag for tag in self.in_hand if tag not in unsettled]

    def note_settled(self, tags: Iterable[int], next_is_redelivered: bool | None, *, is_idle: bool) -> None:
        """Take note of messages that were in hand; None = no next message is here; `is_idle`: nothing is unsettled."""
        for tag in tags:
            risk = self.in_hand.pop(tag, None)
            if risk is not None:
                risk.end()
        if self._run is not None and not self.in_hand:
            is_through = self._is_through or next_is_redelivered is False
            if is_through or (not self.is_careful and next_is_redelivered is None):
                self._calm_down(self._run)
        if self.is_calm and is_idle:
            self.relaxed.set()

    def _calm_down(self, run: str) -> None:
        self._records.forget_runs(self._queue, (run, *self._former_runs))
        if self.is_careful:
            _log.info("messages_taken_together_again", queue=self._name)
        self._run, self._former_runs = None, []
        self.is_calm, self.is_careful = True, False

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Record how the subscription ends."""
        noted = self._records.begin_run(self._queue) if self._resort.notes_each_run else None
        try:
            yield
        except BaseException as error:
            if self._resort.explains(error):
                self._forget(noted)
            else:
                self._records.end_run(noted or self._run or self._records.begin_run(self._queue))
            raise
        self._forget(noted)

    def _forget(self, noted: str | None) -> None:
        self._records.forget_runs(self._queue, [run for run in (self._run, noted) if run is not None])

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

    def is_too_high(self, message_id: str | None = None) -> bool:
        """Return whether the message is to be set aside; say so, with its id if its properties can be read."""
        ends = self._records.ends(self._queue, self._message)
        if ends < ATTEMPTS:
            return False
        _log.error(
            "message_set_aside",
            queue=self._name,
            message_id=message_id,
            fingerprint=self._message.hex(),
            ended_its_consumer=ends,
        )
        _SET_ASIDE.labels(self._name).inc()
        return True

    @property
    def ends(self) -> int:
        """How often the message has ended a process that was alone with it."""
        return self._records.ends(self._queue, self._message)

    def count_end(self) -> None:
        """Note that the message has ended a process that handled nothing else."""
        self._records.count(self._queue, self._message, 1)

    def may_be_read(self) -> bool:
        """Return whether a message that is set aside may be read once, to tell its sender: no process ended at that."""
        return self._records.ends(self._queue, self._message) == ATTEMPTS

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
