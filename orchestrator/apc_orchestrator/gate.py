"""The gate of one shard: stands by, acquires the shard, serves it until it is lost or told to stop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg

from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import Backoff, Health, cancelled, failure_of, reason_of, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError, BusUnavailable, PublishNotTaken, PublishRefused, PublishUnroutable
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus, Delivery, HeaderValue, Message, Publication, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_bus.topology import RECEIPTS, gate_queue
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.ids import SLOTS, new_packet_id
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_log.batch import LOG_BATCH_VERSION, EpochOpen
from apc_log.heads import read_given_epoch, read_head
from apc_log.placement import LogDatabases
from apc_log.protocol_evidence import HEADS, Evidence, News, Positions, read_evidence, read_ledger, read_shards
from apc_orchestrator.errors import ShardLost
from apc_orchestrator.judging.inputs import PROBE_BODY, TYPE_RECEIPTS
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease, Places, Questions
from apc_orchestrator.publications import epoch_open
from apc_orchestrator.shard.intake import ShardResources, UnjudgeableTimers
from apc_orchestrator.shard.shard_server import ShardServer
from apc_orchestrator.telemetry import ShardState
from apc_orchestrator.verification import Bounds, Verifier

# Acquire the lease of a shard: the persister grants a new epoch before anything is judged.

FIRST_LOOK_SECONDS = 0.005
LONGEST_LOOK_SECONDS = 0.25

Read = TypeVar("Read")

_log = get_logger("apc_orchestrator")


async def take_shard(
    inputs: Subscription, pool: asyncpg.Pool, shard: int, user: str, contract: bytes, name: str
) -> Lease:
    """Become the lease holder: everything confirmed earlier is in Postgres when this returns.

    Waits as long as the persister or the database is away. The opening is published on the channel that consumes the
    shard's inputs, so that only its active consumer can get it confirmed. It carries the contract file, which the log
    keeps for replays.

    Raises:
        ShardLost: another orchestrator has taken the shard meanwhile.
        BusError: the opening was not confirmed, or the inputs are gone.
    """
    holder = uuid4()
    await _when_available(lambda: read_head(pool, shard), shard)
    opening = epoch_open(EpochOpen(LOG_BATCH_VERSION, shard, holder, contract, name), user)
    while True:
        try:
            await inputs.publish(opening)
            break
        except PublishNotTaken:
            raise  # only another channel may find the leader of the log's queue
        except (PublishRefused, PublishUnroutable) as error:
            _log.warning("epoch_open_refused", shard=shard, reason=str(error))
            await asyncio.sleep(LONGEST_LOOK_SECONDS)
    backoff = Backoff(FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS)
    while (given := await _when_available(lambda: read_given_epoch(pool, shard, holder), shard)) is None:
        await backoff.wait()
    epoch = given.epoch
    if given.newest != epoch:
        raise ShardLost(f"epoch {epoch} was granted during the wait for the shard, and is over")
    _log.info("shard_taken", shard=shard, epoch=epoch, holder=str(holder))
    return Lease(shard, epoch, f"{given.mark_epoch}.{given.mark_batch_no}", user, holder)


async def _when_available(read: Callable[[], Awaitable[Read]], shard: int) -> Read:
    backoff = Backoff(FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS)
    while True:
        try:
            return await read()
        except DATABASE_AWAY as error:
            _log.warning("database_awaited", shard=shard, reason=str(error))
            await backoff.wait()


# What the shards of a process share, and the ledger of all protocols in the memory of each: read from the log when a
# shard is taken, then updated with each verdict; verdicts of other shards are read from the log in the background.


async def load_protocols(databases: LogDatabases, contract: Contract) -> tuple[ProtocolLedger, Positions]:
    """Return the ledger as the log of all shards left it.

    Shards of a database beside home that is away are read later, as verdicts of other shards are.
    Raises OSError or asyncpg's errors when home is away.
    """
    ledger = ProtocolLedger(contract.effectiveness)
    if not databases.has_others:
        return ledger, await read_ledger(databases.home, ledger)
    evidence = Evidence()
    for name, pool in databases.pools.items():
        try:
            await read_evidence(pool, evidence, databases.shards_elsewhere(name))
        except DATABASE_AWAY as error:
            if name == HOME:
                raise
            _log.warning("other_shards_unread", database=name, reason=str(error))
    return ledger, evidence.feed(ledger)


class OtherShards:
    """Follows the verdicts of all shards for the shards of this process: each entry is read once for all of them.

    A block in another shard applies as soon as it is read.
    """

    def __init__(self, databases: LogDatabases) -> None:
        self._databases = databases
        self._held: dict[int, tuple[ProtocolLedger, Positions]] = {}

    @contextmanager
    def followed(self, shard: int, ledger: ProtocolLedger, positions: Positions) -> Iterator[None]:
        """Feed the ledger of a shard, which has read as far as `positions`, while the context is open."""
        self._held[shard] = ledger, positions
        try:
            yield
        finally:
            del self._held[shard]

    async def follow(self, pause_seconds: float) -> None:
        """Read new verdicts repeatedly; when the database is away, try again later. Ends when cancelled."""
        while True:
            await asyncio.sleep(pause_seconds)
            for name in self._databases.pools if self._held else ():
                try:
                    await self.read(name)
                except DATABASE_AWAY as error:
                    _log.warning("other_shards_unread", database=name, reason=str(error))

    async def read(self, name: str = HOME) -> None:
        """Read new verdicts in a database. Raises OSError or asyncpg's errors when it is away."""
        behind: dict[tuple[int, int, int], list[tuple[ProtocolLedger, Positions]]] = {}
        async with self._databases.pools[name].acquire() as connection:
            # Entries up to a head never change: nothing has to be read at the same moment.
            for head in await connection.fetch(HEADS):
                shard, last = head["shard"], head["last"]
                if self._databases.place_of(shard).database != name:
                    continue
                for held, (ledger, positions) in self._held.items():
                    after = positions.get(shard, 0)
                    if held != shard and last > after:
                        behind.setdefault((shard, after, last), []).append((ledger, positions))
            if behind:
                news = [News(*place, [ledger for ledger, _ in group]) for place, group in behind.items()]
                await read_shards(connection, news)
                for (shard, _, last), group in behind.items():
                    for _, positions in group:
                        positions[shard] = last


@dataclass(frozen=True, slots=True)
class SharedByShards:
    """What the shards of a process have in common."""

    health: Health
    last_resort: LastResort
    questions: Questions
    others: OtherShards
    places: Places
    databases: LogDatabases


FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
PROBES_BEHIND_BACKLOG = 4
"""Of so many turns a standby sends a probe in one, although inputs wait."""

Result = TypeVar("Result")

_LOST = (ShardLost, BusError, *DATABASE_AWAY)


class Gate:
    """One candidate for one shard; the broker lets one of all candidates consume (single active consumer)."""

    def __init__(
        self,
        settings: OrchestratorSettings,
        contracts: Contracts,
        bus: Bus,
        artifacts: ArtifactStore,
        shard: int,
        shared: SharedByShards,
    ) -> None:
        self._settings = settings
        self._contracts = contracts
        self._bus = bus
        self._databases = shared.databases
        self._artifacts = artifacts
        self._shard = shard
        self._health = shared.health
        self._shared = shared
        self.state = ShardState(shard)
        self._unjudgeable = UnjudgeableTimers()

    async def run(self, stop: asyncio.Event) -> None:
        """Hold the shard whenever the broker allows it, until `stop`. Losing it is normal; it is acquired again.

        However it was lost: the process may hold other shards and would go on without this one.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, stop)
        task = f"the gate of shard {self._shard}"
        while not stop.is_set():
            began = loop.time()
            try:
                with unasked_cancel_fails():
                    await self._take_turn(stop)
                if stop.is_set():
                    return
                backoff.reset()
                continue
            except _LOST as error:
                if backoff.is_fresh or not isinstance(error, BusUnavailable):  # that is told once, of the connection
                    _log.warning("shard_left", shard=self._shard, reason=reason_of(error))
            except Exception as error:
                # A fault of ours: the next lease holder starts again from the log.
                _log.exception("gate_failed", shard=self._shard)
                self._health.fail(task, reason_of(error))
                if self.state.server is not None and self.state.server.batches:
                    backoff.reset()  # inputs came through meanwhile: this is the next problem
            finally:
                self.state.leave()
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                backoff.reset()  # it went well for a while: this is a new problem
            await backoff.wait()
            self._health.resume(task)

    async def _take_turn(self, stop: asyncio.Event) -> None:
        """Hold the shard from when this process may until `stop`, or until it is left to whose it is.

        Raises:
            ShardLost, BusError: it was lost.
        """
        places = self._shared.places
        if await _unless(stop, places.wait(self._shard)) is None:
            return
        with places.taken(self.state) as leave:
            async with _either(stop, leave) as ending:
                await self._hold(ending)
                if not ending.is_set():
                    raise ShardLost("serving it has ended without having been told to stop")
        if not stop.is_set():
            _log.info("shard_handed_over", shard=self._shard, orchestrator=places.orchestrator_of(self._shard))

    async def _hold(self, stop: asyncio.Event) -> None:
        queue = gate_queue(self._shard)
        watch = self._shared.last_resort.watch(self._bus, queue)
        async with (
            self._bus.subscribe(queue, prefetch=self._settings.gate_prefetch, watch=watch) as inputs,
            self._shared.questions.asked(queue),
        ):
            _log.info("gate_stands_by", shard=self._shard)
            since = monotonic()
            first = await self._stand_by(inputs, stop)
            if first is None:
                return
            pool = await self._databases.find(self._shard)
            self._shared.places.note_database(self._shard)
            lease = await _unless(stop, self._acquire(inputs, pool))
            if lease is None:
                return
            resources, positions = await self._load(lease, inputs, pool, since)
            server = ShardServer(resources, stop)
            self.state.take(server)
            beside = [resources.verifier.run(), server.presence.run()]
            with self._shared.others.followed(self._shard, resources.protocols, positions):
                await self._serve(server.serve(first), beside)

    async def _load(
        self, lease: Lease, inputs: Subscription, pool: asyncpg.Pool, since: float
    ) -> tuple[ShardResources, Positions]:
        """Load what a lease works with: everything confirmed before it is in the database by now."""
        home = self._databases.home
        registry = await Registry.load(home, self._bus.user, self._shard, self._contracts, own=pool)
        for user, agents in registry.shared_users().items():
            _log.warning("broker_user_shared", user=user, agents=agents, reason="each can speak as the others")
        protocols, positions = await load_protocols(self._databases, self._contracts.default)
        verifier = Verifier(
            self._bus,
            self._artifacts,
            self._shard,
            registry.by_id,
            self._contracts.default,
            self._health,
            Bounds.of(self._settings),
        )
        resources = ShardResources(
            settings=self._settings,
            contracts=registry.contracts,
            bus=self._bus,
            pool=pool,
            home=home,
            inputs=inputs,
            lease=lease,
            registry=registry,
            protocols=protocols,
            verifier=verifier,
            unjudgeable_timers=self._unjudgeable,
            note_standby=partial(self._shared.places.note_standby, self._shard),
            listening_since=since,
        )
        return resources, positions

    async def _serve(self, serve: Coroutine[Any, Any, None], beside: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Serve the shard while its background tasks run.

        When one of them fails the shard is left, and the next lease holder starts again from the log.
        """
        serving = asyncio.create_task(serve)
        tasks = [serving, *(asyncio.create_task(work) for work in beside)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if serving not in ended:
                error = failure_of(next(iter(ended)))
                _log.error("task_beside_the_gate_ended", shard=self._shard, exc_info=error)
                raise ShardLost("a background task of the gate has ended") from error
            await serving
        finally:
            await cancelled(*tasks)

    async def _acquire(self, inputs: Subscription, pool: asyncpg.Pool) -> Lease:
        contract, name = self._contracts.default.body, self._settings.orchestrator_name
        return await take_shard(inputs, pool, self._shard, self._bus.user, contract, name)

    async def _stand_by(self, inputs: Subscription, stop: asyncio.Event) -> list[Delivery] | None:
        """Wait to become the active consumer: the one that receives a message.

        A probe arrives even when nobody publishes; one at a time, so that none pile up while nobody is active. It also
        tells the active one who stands by: behind a backlog, which never empties the queue, it goes out less often.
        """
        turns = 0
        receiving = asyncio.ensure_future(inputs.receive(self._settings.batch_packets, self._settings.batch_bytes))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not receiving.done() and not stop.is_set():
                turns += 1
                is_empty = (await self._bus.depth(gate_queue(self._shard))).messages == 0
                if is_empty or turns % PROBES_BEHIND_BACKLOG == 0:
                    await self._bus.publish(self._probe())
                await asyncio.wait(
                    {receiving, stopping},
                    timeout=self._settings.probe_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                # A probe that did not come went to another process, which holds the shard.
                self.state.is_standing_by = not receiving.done()
            return await receiving if receiving.done() else None
        finally:
            self.state.is_standing_by = False
            await cancelled(receiving, stopping)

    def _probe(self) -> Publication:
        user = self._bus.user
        said: dict[str, HeaderValue] = {headers.STANDBY: self._settings.orchestrator_name}
        message = Message(PROBE_BODY, str(new_packet_id()), type=TYPE_RECEIPTS, user_id=user, headers=said)
        # By its last slot, which only a topology with slots has: else the orchestrator would miss what agents send.
        last = SLOTS - self._settings.shards + self._shard
        return Publication(RECEIPTS, str(last), message)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of `work`; once told to stop, cancel it and return None."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        await cancelled(working, stopping)


@asynccontextmanager
async def _either(*events: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set as soon as one of these is, and when the context ends."""
    either = asyncio.Event()
    tasks = [asyncio.create_task(event.wait()) for event in events]
    for task in tasks:
        task.add_done_callback(lambda _: either.set())
    try:
        yield either
    finally:
        await cancelled(*tasks)
