"""Which shards a process takes, and one lease of a shard: its epoch, and when it is in doubt."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Literal, Self
from uuid import UUID

from apc_bus.concurrency import Health, cancelled, run_until_success, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError
from apc_bus.port import Bus
from apc_bus.settings import OrchestratorSettings
from apc_bus.telemetry import get_logger
from apc_bus.topology import gate_queue
from apc_log.placement import LogDatabases, read_moved_shards
from apc_orchestrator.telemetry import ShardState


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to serve a shard, granted by the persister. It ends when a later epoch is granted."""

    shard: int
    epoch: int
    committed: str
    """`<epoch>.<batch_no>` of the last batch committed before this epoch: the fencing token of every delivery."""
    user: str
    """The broker user of the orchestrator."""
    holder: UUID


# Self-fencing: how long a broker may be silent before its orchestrator leaves the shard.
#
# Source: docs/specification/architecture.md section 2.

_log = get_logger("apc_orchestrator")

QUESTIONS_A_HEARTBEAT = 4


@dataclass(frozen=True, slots=True)
class Fence:
    """The longest silence allowed, and the interval between questions that keep a living broker from being silent.

    A broker may send its own heartbeats almost one heartbeat interval apart, and drops a connection after two.
    """

    silence_seconds: float
    question_seconds: float

    @classmethod
    def of(cls, heartbeat: timedelta) -> Self:
        """Return the fence of a connection with this heartbeat."""
        seconds = heartbeat.total_seconds()
        return cls(silence_seconds=seconds, question_seconds=seconds / QUESTIONS_A_HEARTBEAT)


class Questions:
    """Asks the broker repeatedly, once for all shards of a process: without other traffic the answers end the silence.

    All shards consume over one connection, and silence is that of the connection. A question without an answer is the
    last one until another shard is stood by for: a new connection would answer for the lost one, and an orchestrator
    that was frozen would go on.
    """

    def __init__(self, bus: Bus, fence: Fence, health: Health) -> None:
        self._bus = bus
        self._fence = fence
        self._health = health
        self._hearing: list[str] = []
        self._asking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def asked(self, queue: str) -> AsyncIterator[None]:
        """Ask while the context is open, about one of the queues that are open."""
        self._hearing.append(queue)
        if self._asking is None or self._asking.done():
            asked = run_until_success(self._ask, name="question", task="questions", awaits=(), health=self._health)
            self._asking = asyncio.create_task(asked)
        try:
            yield
        finally:
            self._hearing.remove(queue)
            if not self._hearing:
                ended, self._asking = self._asking, None  # who comes meanwhile asks again
                await cancelled(ended)

    async def _ask(self) -> None:
        queue = ""
        try:
            while True:
                await asyncio.sleep(self._fence.question_seconds)
                queue = self._hearing[0]
                with unasked_cancel_fails():
                    await self._bus.depth(queue)
        except BusError as error:
            _log.warning("question_unanswered", queue=queue, reason=str(error))


# Which shards this process stands by for: those of its name and those of nobody; others only while nobody serves them.

LOOK_SECONDS = 0.5
"""Between two looks at the consumers of shards of others."""
LOOKS_A_READ = 2
"""So many looks have one look at the table of places."""


@dataclass(slots=True)
class _Turn:
    """One shard, as this process stands to it."""

    may_take: asyncio.Event = field(default_factory=asyncio.Event)
    is_elsewhere: bool = False
    """It is another's, and was served at the last look."""
    state: ShardState | None = None
    """While this process holds it or stands by for it."""
    database: str | None = None
    """Which database has the log of the shard, as this process found when it took it."""
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    def look(self, consumers: int | None) -> None:
        """Take what the broker says about a shard of another; None = it did not say."""
        if self.state is None:
            self.is_elsewhere = consumers != 0
            if consumers == 0:
                self.may_take.set()
        elif self.state.is_standing_by:
            self.leave.set()


class Places:
    """Decides which shards this process takes, by one look at table and broker for all of them.

    A shard of another orchestrator is taken when its queue has no active consumer. It is left when its own orchestrator
    stands by, which the probes of that one say: the broker counts no consumer that waits. A shard whose log moves to
    another database is nobody's meanwhile, and is left when it is somewhere else than where it was taken.
    """

    def __init__(self, settings: OrchestratorSettings, bus: Bus, databases: LogDatabases) -> None:
        self._name = settings.orchestrator_name
        self._bus = bus
        self._databases = databases
        self._moved: dict[int, str] = {}
        self._turns = {shard: _Turn() for shard in settings.own_shards}
        self._named = {shard: settings.orchestrator_of(shard) for shard in settings.own_shards}

    def is_elsewhere(self, shard: int) -> bool:
        """Return whether another orchestrator, whose shard it is, was there at the last look; from any thread."""
        return self._turns[shard].is_elsewhere

    def orchestrator_of(self, shard: int) -> str | None:
        """Return whose shard it is; None = of the first that comes."""
        return self._moved.get(shard) or self._named[shard]

    def note_standby(self, shard: int, name: str) -> None:
        """Note that an orchestrator stands by for a shard that this process serves."""
        if self._is_anothers(shard) and name == self.orchestrator_of(shard):
            self._turns[shard].leave.set()

    def note_database(self, shard: int) -> None:
        """Note that this process takes the shard where it was at the last look at the databases."""
        self._turns[shard].database = self._databases.place_of(shard).database

    async def wait(self, shard: int) -> Literal[True]:
        """Return when this process may stand by for the shard."""
        return await self._turns[shard].may_take.wait()

    @contextmanager
    def taken(self, state: ShardState) -> Iterator[asyncio.Event]:
        """Yield what is set when the shard is to be left to another; while it is open the shard counts as taken."""
        turn = self._turns[state.shard]
        turn.state, turn.is_elsewhere, turn.database = state, False, None
        turn.leave.clear()
        try:
            yield turn.leave
        finally:
            turn.state = None
            if self._is_anothers(state.shard) or self._is_moving(state.shard):
                turn.may_take.clear()

    async def follow(self) -> None:
        """Look repeatedly; without the database, what was read last holds. Ends when cancelled."""
        for look in count():
            try:
                if look % LOOKS_A_READ == 0:
                    self._moved = await read_moved_shards(self._databases.home)
                    await self._databases.look()
            except DATABASE_AWAY as error:
                _log.warning("places_unread", reason=str(error))
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        others = {}
        for shard, turn in self._turns.items():
            if self._is_moving(shard):
                turn.is_elsewhere = True
                turn.may_take.clear()
                turn.leave.set()
            elif self._is_anothers(shard):
                others[gate_queue(shard)] = turn
            else:
                turn.is_elsewhere = False
                turn.may_take.set()
            if turn.database not in (None, self._databases.place_of(shard).database):
                turn.leave.set()
        if others:
            for queue, consumers in (await self._bus.consumers(list(others))).items():
                others[queue].look(consumers)

    def _is_moving(self, shard: int) -> bool:
        return self._databases.place_of(shard).moving_to is not None

    def _is_anothers(self, shard: int) -> bool:
        return self.orchestrator_of(shard) not in (None, self._name)
