"""Keep a set of `apc` processes alive: restart what dies, with back-off, and drain all of them at the end."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import asyncpg

from apc_agents.team import load_agent
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.concurrency import Backoff, first_of
from apc_bus.database import open_pool
from apc_bus.errors import BusError, TaskEnded
from apc_bus.folders import make_private_folder
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, PersisterSettings
from apc_bus.telemetry import get_logger
from apc_bus.topology import agent_queue, gate_queue, log_queue
from apc_cli.commands.topology import shared_users
from apc_cli.connections import PATIENCE, apply, broker_user, open_bus
from apc_cli.errors import ServiceAway
from apc_client.in_process import migrate_url, only_system_of
from apc_client.registration import (
    addition,
    inboxes_of,
    publish_changes,
    queues_of,
    topology_of,
    wait_until_recorded,
    with_keys,
)
from apc_client.sending import until
from apc_contracts.identity.registry import Registration
from apc_contracts.text import one_line
from apc_log.heads import read_epochs
from apc_log.registry import registered_agents
from apc_persister.evidence.checkpoint import ensure_key

log = get_logger(__name__)

FIRST_PAUSE = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(seconds=10)
HEALTHY_AFTER = timedelta(seconds=20)
"""A process that lived this long restarts its back-off."""
SAID = "apc: "
"""The beginning of the last line of a command that failed."""
LONGEST_WORDS = 65_536
"""Bytes at the end of a log in which that line is looked for."""
DRAIN_LIMIT = timedelta(seconds=25)
"""From SIGTERM to SIGKILL; longer than a worker waits for its handlers."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: a name for the logs, the arguments of `apc`, and additions to its environment.

    Processes of the highest `stage` are drained first, all of one stage at once.
    """

    name: str
    arguments: tuple[str, ...]
    stage: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Keeper:
    stage: int
    task: asyncio.Task[None]
    stop: asyncio.Event


class Supervisor:
    """Owns the processes; `async with` starts and drains them. They end by themselves when this process is killed.

    They are drained by stage, so that the persister, in the lowest one, writes what the others leave behind.
    """

    def __init__(self, specs: Sequence[ProcessSpec], logs: Path | None = None, first_port: int | None = None) -> None:
        """Prepare the processes.

        Args:
            logs: a folder for the output of each process; None = it goes to ours.
            first_port: the port of the first process's health pages, the next one for the second; None = no pages.
        """
        self._first_port = first_port
        self._specs = specs
        self._logs = logs
        self._keepers: list[_Keeper] = []
        self._deaths: Counter[str] = Counter()
        self._lifeline = (-1, -1)
        """A pipe that nobody writes to: its readers see its end when this process dies, however it dies."""

    async def __aenter__(self) -> "Supervisor":
        self._lifeline = os.pipe()
        for spec in self._specs:
            self.add(spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.drain()
        finally:
            for end in self._lifeline:
                os.close(end)

    async def drain(self, down_to: int = 0) -> None:
        """Stop all processes, or those of this stage and above, the highest stage first; idempotent."""
        for stage in sorted({keeper.stage for keeper in self._keepers if keeper.stage >= down_to}, reverse=True):
            leaving = [keeper for keeper in self._keepers if keeper.stage == stage]
            for keeper in leaving:
                keeper.stop.set()
            await asyncio.gather(*(keeper.task for keeper in leaving))

    def add(self, spec: ProcessSpec) -> None:
        """Start one more process and keep it alive."""
        stop = asyncio.Event()
        if self._first_port is not None:
            # Two processes cannot share a port: ports are assigned in the order of addition, from APC_HEALTH_PORT on.
            port = {"APC_HEALTH_PORT": str(self._first_port + len(self._keepers))}
            spec = replace(spec, environment=port | dict(spec.environment))
        task = asyncio.create_task(self._keep(spec, stop), name=spec.name)
        self._keepers.append(_Keeper(spec.stage, task, stop))

    async def _keep(self, spec: ProcessSpec, stop: asyncio.Event) -> None:
        backoff = Backoff(FIRST_PAUSE.total_seconds(), LONGEST_PAUSE.total_seconds(), stop)
        while not stop.is_set():
            began = time.monotonic()
            try:
                process = await self._start(spec)
            except OSError as error:  # the machine has no memory, process or file left for it now
                log.error("process_not_started", process=spec.name, reason=str(error), next_attempt_in_s=backoff.pause)
                await backoff.wait()
                continue
            if await _exits_before(process, stop):
                lived = timedelta(seconds=time.monotonic() - began)
                self._deaths[spec.name] += 1
                if lived > HEALTHY_AFTER:
                    backoff.reset()
                log.error(
                    "process_died",
                    process=spec.name,
                    code=process.returncode,
                    reason=self.last_words(spec.name),
                    restart_in_s=backoff.pause,
                )
                await backoff.wait()
            else:
                await _drain(spec.name, process)

    async def _start(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        output = self._open_log(spec.name)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "apc_cli",
                *spec.arguments,
                env=os.environ | {"APC_SUPERVISED": "true"} | dict(spec.environment),
                stdin=self._lifeline[0],
                stdout=output,
                stderr=output,
                # Ctrl-C at the terminal reaches only us: we drain the others in order.
                start_new_session=True,
            )
        finally:
            if output is not None:
                os.close(output)
        log.info("process_started", process=spec.name, pid=process.pid)
        return process

    @property
    def keepers(self) -> list[asyncio.Task[None]]:
        """What keeps the processes running, one task each; a task ends when its process was drained."""
        return [keeper.task for keeper in self._keepers]

    def deaths(self, name: str) -> int:
        """Return how often a process has ended without being told to."""
        return self._deaths[name]

    def last_words(self, name: str) -> str:
        """Return why a process ended, in its own words, or where to find them."""
        if self._logs is None:
            return "its output above says why"
        file = self._log_file(self._logs, name)
        try:
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - LONGEST_WORDS))
                lines = opened.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        said = next((line for line in reversed(lines) if line.startswith(SAID)), None)
        return f"see {file}" if said is None else one_line(said.removeprefix(SAID))

    @staticmethod
    def _log_file(folder: Path, name: str) -> Path:
        return folder / f"{name}.log"

    def _open_log(self, name: str) -> int | None:
        if self._logs is None:
            return None
        make_private_folder(self._logs)
        return os.open(self._log_file(self._logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


async def _exits_before(process: asyncio.subprocess.Process, stop: asyncio.Event) -> bool:
    exit_, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({exit_, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in (exit_, stopped):
        task.cancel()
    return process.returncode is not None


async def _drain(name: str, process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), DRAIN_LIMIT.total_seconds())
    except TimeoutError:
        log.warning("process_killed", process=name, after_s=DRAIN_LIMIT.total_seconds())
        process.kill()
        await process.wait()
    log.info("process_stopped", process=name, code=process.returncode)


# The whole system over RabbitMQ and a given Postgres: one process per service and agent, restarted when it dies.

START_LIMIT = timedelta(seconds=30)
"""How long a new orchestrator may take to acquire its shards, and then to log the registrations."""
DEATHS_AT_START = 3
"""How often a service may die at start before it is given up."""
SYSTEM_DRAIN_LIMIT = timedelta(seconds=10)
"""How long shutdown waits for what is on its way to the orchestrator, and then to the persister."""
GATE_STAGE = 1
AGENT_STAGE = 2
"""The highest stage is drained first: what agents leave behind is still judged, and that is still logged."""
SERVICES = (
    ProcessSpec("persister", ("serve", "persister"), stage=0),
    ProcessSpec("orchestrator", ("serve", "orchestrator"), stage=GATE_STAGE),
)


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """An agent as a process: `module:agent`, and additions to its environment."""

    module: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupervisedSystem:
    """A running system; created by `run_supervised`."""

    pool: asyncpg.Pool
    artifacts: ArtifactStore
    supervisor: Supervisor
    settings: BusSettings

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set; processes that die meanwhile are restarted.

        Raises:
            TaskEnded, Exception: what restarts them has ended.
        """
        await first_of(stop.wait(), *self.supervisor.keepers)
        if not stop.is_set():
            raise TaskEnded("a process is not kept running any more: its supervisor has ended")

    async def drain(self) -> None:
        """Stop all processes: agents, orchestrator, persister, each after its backlog is drained; idempotent."""
        shards = range(self.settings.shards)
        await self.supervisor.drain(AGENT_STAGE)
        await _until_empty(self.settings, [gate_queue(shard) for shard in shards])
        await self.supervisor.drain(GATE_STAGE)
        await _until_empty(self.settings, [log_queue(shard) for shard in shards])
        await self.supervisor.drain()


@asynccontextmanager
async def run_supervised(
    settings: BusSettings,
    database: DatabaseSettings,
    agents: Sequence[AgentProcess],
    *,
    logs: Path | None = None,
) -> AsyncIterator[SupervisedSystem]:
    """Migrate, declare, register, and run everything; leaving the context drains it: agents, orchestrator, persister.

    Raises:
        InputUnusable: another system uses the data folder, or it cannot be used.
        BusUnavailable, DatabaseUnavailable, TopologyConflict, AgentNotFound, LogKeyUnusable, AgentKeyUnusable: nothing
            was started.
        ServiceAway: a service refuses to start, which says why, or did not take the registrations in time.
    """
    url = database.url
    assert url is not None, "has_broker has checked it"
    async with AsyncExitStack() as stack:
        stack.enter_context(only_system_of(settings.data_dir))
        ensure_key(PersisterSettings(data_dir=settings.data_dir))
        described = [load_agent(agent.module).registration(broker_user(settings)) for agent in agents]
        await migrate_url(url)
        pool = await open_pool(url, max_size=database.database_pool, wait=PATIENCE)
        stack.push_async_callback(pool.close)
        registrations = await with_keys(pool, described)
        await _declare(settings, pool, registrations)
        epochs = await read_epochs(pool)
        supervisor = await stack.enter_async_context(Supervisor(SERVICES, logs, ConsoleSettings().health_port))
        await _until_held(settings, pool, epochs, supervisor)
        await _register(settings, pool, registrations)
        for agent, registration in zip(agents, registrations, strict=True):
            arguments = ("worker", agent.module)
            supervisor.add(ProcessSpec(registration.agent_id, arguments, AGENT_STAGE, agent.environment))
        await _until_consumed(settings, registrations)
        system = SupervisedSystem(pool, open_artifacts(settings), supervisor, settings)
        stack.push_async_callback(system.drain)
        yield system


async def _until_empty(settings: BusSettings, queues: Sequence[str]) -> None:
    """Wait, up to a limit, until what agents left behind is judged, and what the orchestrator has judged is logged."""
    try:
        async with open_bus(settings) as bus:

            async def are_empty() -> bool:
                return not any([(await bus.depth(queue)).messages for queue in queues])

            await until(are_empty, SYSTEM_DRAIN_LIMIT)
    except (TimeoutError, BusError) as error:
        log.warning("drain_incomplete", queues=queues, reason=str(error))


async def _declare(settings: BusSettings, pool: asyncpg.Pool, registrations: Sequence[Registration]) -> None:
    known = {one.agent_id: one for one in (*await registered_agents(pool), *registrations)}
    await apply(topology_of(settings, inboxes_of(known.values())))


async def _until_held(
    settings: BusSettings, pool: asyncpg.Pool, before: Mapping[int, int], supervisor: Supervisor
) -> None:
    """Wait until our orchestrator holds every shard: each then has a new epoch."""

    async def are_held() -> bool:
        for service in SERVICES:
            if supervisor.deaths(service.name) >= DEATHS_AT_START:
                raise ServiceAway(f"the {service.name} does not start: {supervisor.last_words(service.name)}")
        epochs = await read_epochs(pool)
        return all(epochs.get(shard, 0) > before.get(shard, 0) for shard in range(settings.shards))

    try:
        await until(are_held, START_LIMIT)
    except TimeoutError as error:
        raise ServiceAway(
            f"the gate did not take its shards within {START_LIMIT.total_seconds():g} s: another one may hold "
            "them, or its log says why"
        ) from error


async def _until_consumed(settings: BusSettings, registrations: Sequence[Registration]) -> None:
    """Wait until every agent's process consumes; one that cannot start is reported, and does not stop the others."""
    waiting = [registration.agent_id for registration in registrations]
    async with open_bus(settings) as bus:

        async def are_consumed() -> bool:
            for agent_id in list(waiting):
                if (await bus.depth(agent_queue(agent_id, urgent=False))).consumers:
                    waiting.remove(agent_id)
            return not waiting

        try:
            await until(are_consumed, START_LIMIT)
        except TimeoutError:
            log.error("agents_not_ready", agents=waiting, after_s=START_LIMIT.total_seconds())


async def _register(settings: BusSettings, pool: asyncpg.Pool, registrations: Sequence[Registration]) -> None:
    changes = [addition(registration) for registration in registrations]
    for sentence in shared_users(topology_of(settings, list(map(queues_of, registrations)))):
        log.warning("broker_user_shared", reason=sentence)
    async with open_bus(settings) as bus:
        await publish_changes(bus, changes, settings.shards)
    await wait_until_recorded(pool, changes, settings.shards, START_LIMIT)
