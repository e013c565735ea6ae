"""The whole system in this process: PostgreSQL of the data folder, in-process bus, orchestrator, persister, agents.

The log is as durable as Postgres. Packets in flight are in memory: they end with the process, and the next start
continues from the log.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import ValidationError

from apc_agents.agent import Agent
from apc_agents.effects import PostgresEffectStore
from apc_agents.handling.state import PostgresStateStore
from apc_agents.running.worker import Worker
from apc_agents.scheduling import PostgresScheduleStore, Tick
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.chaos import disturb
from apc_bus.concurrency import cancelled, first_of, until_stopped
from apc_bus.database import DATABASE_AWAY, first_line, open_pool
from apc_bus.errors import DatabaseUnavailable
from apc_bus.folders import make_private_file, make_private_folder, refuse_of_another
from apc_bus.in_memory import InMemoryBroker
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus
from apc_bus.secrecy import hide_password
from apc_bus.settings import (
    BusSettings,
    DatabaseSettings,
    OrchestratorSettings,
    PersisterSettings,
    WebSettings,
    WorkerSettings,
)
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_bus.topology import gate_queue, log_queue
from apc_bus.trace_export import export_traces
from apc_client.local_acts import OPERATOR_USER, serve_acts
from apc_client.operator import person
from apc_client.registration import (
    RunClient,
    addition,
    inboxes_of,
    publish_changes,
    register_file,
    register_folder,
    register_operator,
    register_schemas,
    registered_client,
    topology_of,
    wait_until_recorded,
    with_keys,
)
from apc_client.sending import until
from apc_contracts.errors import ExtraMissing, InputUnusable, ServiceAway
from apc_contracts.identity.registry import Kind, Registration
from apc_log.registry import registered_agents
from apc_minds.memory import PostgresMemoryStore
from apc_minds.tasks.postgres import PostgresTaskStore
from apc_orchestrator.service import Orchestrator
from apc_persister.database.embedded import start_embedded
from apc_persister.evidence.checkpoint import ensure_key
from apc_persister.service import serve_persister

PATIENCE = timedelta(seconds=3)
"""How long to wait for a server that does not answer."""


async def migrate_url(url: str, others: Mapping[str, str] | None = None) -> None:
    """Upgrade the database at `url`, and the others of APC_DATABASES, by name.

    Raises:
        ServiceAway: one does not answer or refuses.
        DatabaseMisnamed: a URL leads to another database of a log.
    """
    from apc_persister.database.migrate import migrate_all

    try:
        for name, one in {HOME: url, **(others or {})}.items():
            # The pool waits for a server that is starting, and reports errors clearly; the migration does neither.
            try:
                pool = await open_pool(one, max_size=1, wait=PATIENCE)
            except DatabaseUnavailable as error:
                if name == HOME:
                    raise
                reason = first_line(error.__cause__ or error)
                raise DatabaseUnavailable(f"APC_DATABASES, {name!r}: Postgres does not answer ({reason})") from error
            await pool.close()
        await migrate_all(url, others or {})
    except DATABASE_AWAY as error:
        names = ", ".join(map(hide_password, (url, *(others or {}).values())))
        raise ServiceAway(f"cannot migrate the database {names}: {first_line(error)}") from error


OPERATOR = OPERATOR_USER
DRAIN_LIMIT = timedelta(seconds=10)
"""How long shutdown waits for what is on its way to the log."""
START_LIMIT = timedelta(seconds=20)
INBOXES = "in process"
"""The scope of inboxes: the next system over the data folder gets their open deliveries again from the log."""

_folders_in_use: set[Path] = set()
"""The data folders of the systems in this process."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Service:
    name: str
    task: asyncio.Task[None]
    stop: asyncio.Event


class EmbeddedSystem:
    """A running system; created by `run_embedded`."""

    def __init__(
        self,
        url: str,
        settings: BusSettings,
        pool: asyncpg.Pool,
        artifacts: ArtifactStore,
        contract: Path | None = None,
    ) -> None:
        self.database_url = url
        self.artifacts = artifacts
        self.pool = pool
        """For reading the log and keeping agents' state; each service has a separate pool."""
        self._settings = settings if contract is None else settings.model_copy(update={"contract": str(contract)})
        self._broker = InMemoryBroker(topology_of(self._settings))
        self._last_resort = LastResort(settings.data_dir)
        """Of all workers: what ends one of them ends the others with it."""
        self._operator = self.connect(OPERATOR)
        self._services: list[_Service] = []
        self._one_has_ended = asyncio.Event()
        self._workers: dict[str, Worker] = {}

    @property
    def contract(self) -> str | None:
        """Path of the contract file; None = the packaged one."""
        return self._settings.contract

    def connect(self, user: str) -> Bus:
        """Return a bus as one broker user."""
        return self._broker.connect(user)

    def connect_operator(self) -> Bus:
        """Return a bus as the broker user that may change the registry."""
        return self._broker.connect(OPERATOR)

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises what a service or an agent raised, or TaskEnded, if one ends before."""
        await first_of(stop.wait(), self._one_has_ended.wait())
        for service in self._services:
            if service.task.done():
                service.task.result()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Run a block, which a service or an agent that ends before it cancels. Raises as `run`."""
        block = asyncio.current_task()
        assert block is not None, "a block is run by a task"
        cancels, done = block.cancelling(), asyncio.Event()
        watching = asyncio.create_task(self.run(done))
        watching.add_done_callback(lambda _: done.is_set() or block.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if watching.done() and block.uncancel() <= cancels:
                watching.result()
            raise
        finally:
            done.set()
            await asyncio.gather(watching, return_exceptions=True)

    async def until_ready(self, orchestrator: Orchestrator) -> None:
        """Wait until the orchestrator holds every shard.

        Raises:
            ServiceAway: not in time; and what a service raised.
        """

        async def is_held() -> bool:
            return all(shard.is_active for shard in orchestrator.shards)

        try:
            await self._unless_failed(until(is_held, START_LIMIT))
        except TimeoutError as error:
            raise ServiceAway(f"the gate did not start within {START_LIMIT.total_seconds():g} s") from error

    async def restore(self) -> None:
        """Declare the inboxes of agents in the registry, so that open deliveries find them."""
        self._declare(await registered_agents(self.pool))

    def start_service(self, name: str, work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """Run a service until its `stop` is set; services stop in reverse order of start."""
        task = asyncio.create_task(until_stopped(stop, {name: work}), name=name)
        task.add_done_callback(lambda _: self._one_has_ended.set())
        self._services.append(_Service(name, task, stop))

    async def register_schemas(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Register JSON Schemas by their id, such as finding/1, and wait until every shard has logged them.

        Raises:
            InputUnusable: one is unsafe, or its version is registered with other content.
        """
        work = register_schemas(self._operator, self.pool, self._settings.shards, documents)
        await self._unless_failed(work)

    async def register_contract(self, file: Path | str) -> None:
        """Register the contract in a file. Raises as `registration.register_file`."""
        await self._unless_failed(register_file(self._operator, self.pool, self._settings.shards, file))

    async def register_folder(self) -> None:
        """Register the contracts of the folder that the settings name. Raises as `contracts.register_folder`."""
        if self._settings.contracts is not None:
            work = register_folder(self._operator, self.pool, self._settings.shards, self._settings.contracts)
            await self._unless_failed(work)

    async def register_operator(self) -> None:
        """Register the person in whose name acts from other processes are done, unless the name was ever registered."""
        await register_operator(self._operator, self.pool, self._settings.shards, WebSettings().web_operator, None)

    async def register_people(self, people: Mapping[str, str]) -> None:
        """Register the people for whom this process speaks, by id with their roles; an `operator` may operate.

        Raises InputUnusable for an id or a role that cannot be used, and as `register`.
        """
        try:
            await self.register([person(name, role, OPERATOR) for name, role in people.items()])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InputUnusable(f"people: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    async def start_agents(self, agents: Sequence[Agent]) -> None:
        """Register agents as they describe themselves and start a worker for each, in order. Raises as `register`."""
        for agent, registration in zip(
            agents, await self.register([agent.registration() for agent in agents]), strict=True
        ):
            await self._start_worker(agent, registration.broker_user)

    async def fire(self, agent_id: str, tick: Tick) -> str:
        """Fire a schedule of an agent that runs here; return the id of its session. Raises as `Worker.fire`."""
        return await self._workers[agent_id].fire(tick)

    def registered_client(self) -> AbstractAsyncContextManager[RunClient]:
        """Register a client of this system as the operator; leaving the context revokes it. Raises ServiceAway."""
        return registered_client(self._operator, self.pool, self._settings.shards, unless_failed=self._unless_failed)

    async def register(self, described: Sequence[Registration]) -> list[Registration]:
        """Register agents and people, declare the agents' inboxes, and wait until the log has them.

        Raises:
            ServiceAway: the registry did not accept them in time.
        """
        registrations = await with_keys(self.pool, described)
        self._declare([one for one in registrations if one.kind is Kind.AGENT])
        changes = [addition(registration) for registration in registrations]
        await publish_changes(self._operator, changes, self._settings.shards)
        await self._unless_failed(wait_until_recorded(self.pool, changes, self._settings.shards, START_LIMIT))
        return registrations

    async def drain(self) -> None:
        """Stop agents, orchestrator and persister in this order, each after its backlog is drained."""
        queues = {"orchestrator": gate_queue, "persister": log_queue}
        while self._services:
            service = self._services.pop()
            if service.name in queues and not service.task.done():
                await self._until_empty([queues[service.name](n) for n in range(self._settings.shards)])
            service.stop.set()
            await asyncio.gather(service.task, return_exceptions=True)

    async def _start_worker(self, agent: Agent, user: str) -> None:
        stop = asyncio.Event()
        bus = disturb(self._broker.connect(user, INBOXES), agent.agent_id, self._settings)
        worker = Worker(
            agent,
            bus,
            settings=WorkerSettings(shards=self._settings.shards, contract=self.contract),
            states=PostgresStateStore(self.pool),
            tasks=PostgresTaskStore(self.pool, agent.agent_id),
            effects=PostgresEffectStore(self.pool),
            memory=PostgresMemoryStore(self.pool, is_patient=True, sees_others=False),
            schedules=PostgresScheduleStore(self.pool),
            artifacts=self.artifacts,
            database=self.pool,
            last_resort=self._last_resort,
        )
        self._workers[agent.agent_id] = worker
        self.start_service(agent.agent_id, _work(worker, bus, stop), stop)
        await self._unless_failed(worker.ready.wait())

    async def _unless_failed(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for the work; if a service fails meanwhile, raise its error."""
        done = asyncio.Event()
        watching = asyncio.create_task(self.run(done))
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await watching
            await task
        finally:
            done.set()
            await cancelled(task)
            await asyncio.gather(watching, return_exceptions=True)

    def _declare(self, registrations: Sequence[Registration]) -> None:
        self._broker.apply(topology_of(self._settings, inboxes_of(registrations)))

    async def _until_empty(self, queues: Sequence[str]) -> None:
        async def are_empty() -> bool:
            return not any([(await self._operator.depth(queue)).messages for queue in queues])

        try:
            await until(are_empty, DRAIN_LIMIT)
        except TimeoutError:
            log.warning("drain_incomplete", queues=queues)


async def _work(worker: Worker, bus: Bus, stop: asyncio.Event) -> None:
    try:
        await worker.run(stop)
    finally:
        await bus.close()


@asynccontextmanager
async def run_embedded(
    settings: BusSettings, database: DatabaseSettings, contract: Path | None = None
) -> AsyncIterator[EmbeddedSystem]:
    """Start everything except agents; leaving the context drains it.

    `contract` is the contract file of orchestrator and agents; by default the one that the settings name.

    Raises:
        InputUnusable: another system uses the data folder, or it cannot be used.
        EmbeddedUnavailable, DatabaseUnavailable, ServiceAway: no database; says what to do.
        ContractInvalid, InputUnusable, ShardsUnconfirmed: a file of APC_CONTRACTS cannot be registered.
        TracingUnavailable: traces are to be exported, and no exporter is installed.
    """
    export_traces("apc")
    async with AsyncExitStack() as stack:
        stack.enter_context(only_system_of(settings.data_dir))
        url = await _database(stack, settings, database)
        await migrate_url(url)
        pools = [await _pool(stack, url, database) for _ in range(3)]
        artifacts = open_artifacts(settings)
        system = EmbeddedSystem(url, settings, pools[0], artifacts, contract)
        await system.restore()
        stack.push_async_callback(system.drain)
        _start_persister(system, settings, pools[1])
        await system.until_ready(_start_orchestrator(system, settings, pools[2]))
        await system.register_folder()
        await stack.enter_async_context(serve_acts(settings.data_dir, system.connect(OPERATOR), settings.shards))
        await system.register_operator()
        yield system


def _start_persister(system: EmbeddedSystem, settings: BusSettings, pool: asyncpg.Pool) -> None:
    stop = asyncio.Event()
    own = PersisterSettings(shards=settings.shards, serve_shards=None, data_dir=settings.data_dir)
    ensure_key(own)
    system.start_service("persister", serve_persister(own, system.connect("persister"), pool, stop), stop)


def _start_orchestrator(system: EmbeddedSystem, settings: BusSettings, pool: asyncpg.Pool) -> Orchestrator:
    stop = asyncio.Event()
    own = OrchestratorSettings(
        shards=settings.shards,
        serve_shards=None,
        orchestrators=1,
        operator_user=OPERATOR,
        contract=system.contract,
    )
    orchestrator = Orchestrator(own, system.connect("orchestrator"), pool, system.artifacts)
    system.start_service("orchestrator", orchestrator.run(stop), stop)
    return orchestrator


@contextmanager
def only_system_of(folder: Path) -> Iterator[None]:
    """Allow one system per data folder: two would take the log's shards from each other.

    Raises InputUnusable, which names the process of the other system, or for a folder that cannot be used.
    """
    try:
        from fasteners import InterProcessLock
    except ModuleNotFoundError as error:
        raise ExtraMissing(error) from error

    try:
        make_private_folder(folder)
        refuse_of_another(folder)
        place, file = folder.resolve(), folder / "system.lock"
        make_private_file(file)
        lock = InterProcessLock(file)
        # The lock is one of processes: this one would get it twice.
        is_ours = place not in _folders_in_use and lock.acquire(blocking=False)
        if is_ours:
            lock.lockfile.truncate(0)  # through the file of the lock: closing another one would end the lock
            lock.lockfile.write(f"{os.getpid()}\n")
            lock.lockfile.flush()
    except OSError as error:
        raise InputUnusable(
            f"the data folder {folder}: {error.strerror}: set APC_DATA_DIR to a folder that you may write, or that can "
            "be made"
        ) from error
    if not is_ours:
        if lock.lockfile is not None:
            lock.lockfile.close()
        owner = str(os.getpid()) if place in _folders_in_use else _owner(file)
        raise InputUnusable(
            f"another system uses {folder}, process {owner} (`apc up`, `apc run`, `apc automl run` or a client): wait "
            "for it, or set APC_DATA_DIR"
        )
    _folders_in_use.add(place)
    try:
        yield
    finally:
        _folders_in_use.discard(place)
        lock.release()


def _owner(file: Path) -> str:
    """Return the id of the process that holds a lock, as the file has it."""
    try:
        written = file.read_text().strip()
    except (OSError, ValueError):
        written = ""
    return written if written.isdecimal() and written.isascii() else "unknown"


async def _database(stack: AsyncExitStack, settings: BusSettings, database: DatabaseSettings) -> str:
    if database.url is not None:
        return database.url
    server = await start_embedded(settings.data_dir)
    stack.push_async_callback(server.stop)
    return server.url


async def _pool(stack: AsyncExitStack, url: str, database: DatabaseSettings) -> asyncpg.Pool:
    pool = await open_pool(url, max_size=database.database_pool, wait=database.database_wait)
    stack.push_async_callback(pool.close)
    return pool
