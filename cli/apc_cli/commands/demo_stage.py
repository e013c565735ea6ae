"""Where `apc demo` plays: in one process without a broker, or over RabbitMQ with a process for each agent.

Both run the product's own commands in a new folder, with none of the caller's settings. `APC_CRASH_AT` kills a process
with SIGKILL at the moment at which the effect is recorded and the fixer has not gone on: in one process that is `apc
run` with everything in it, over RabbitMQ the worker of the fixer.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import orjson

from apc_bus.concurrency import cancelled
from apc_bus.database import open_pool
from apc_bus.errors import QueueMissing
from apc_bus.folders import make_private_folder
from apc_bus.port import Bus
from apc_bus.settings import BusSettings
from apc_bus.topology import gate_queue, log_queue
from apc_cli.commands.demo_room import PLACE, room, team
from apc_cli.connections import open_bus
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.system.running import end_process
from apc_client import Client
from apc_client.in_process import PATIENCE, START_LIMIT, migrate_url
from apc_client.local_acts import open_acts
from apc_client.operator import person
from apc_client.registration import addition, publish_changes, registered_client, wait_until_recorded
from apc_client.sending import AnswerForm, answer_over, until
from apc_contracts.identity.ids import keyed_id
from apc_contracts.identity.registry import CLIENT
from apc_contracts.payloads.by_type import AnswerOutcome

LEAD = "lead"
"""The role whose approval the rules of the room demand."""
CRASH = {"APC_CRASH_AT": "worker.after_effect_record"}
BROKER = "amqp://guest:guest@127.0.0.1:5672/"
"""Of `--rabbitmq` without APC_AMQP_URL."""
_OUTPUT = "output.log"
_READY = "apc up: ready"
_SAID = "apc: "
_MOST_STARTS = 3
_READY_LIMIT = timedelta(minutes=2)
_END = timedelta(seconds=40)
"""From SIGTERM to SIGKILL: `apc up` drains its agents."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A process was killed; `place` says which, with its id."""

    place: str


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question is answered, and in whose name."""

    approved: bool
    person: str
    note: str | None


class Stage(Protocol):
    """A system in which the room works."""

    @property
    def session_id(self) -> str:
        """The session of the alert; its run has the same id."""

    async def answer(self, question: UUID, answer: Answer) -> None:
        """Answer an open question. Raises InputUnusable, ServiceAway."""


Tell = Callable[[Killed], None]


# The folder of one run, and the environment of its processes.


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is: `data` holds its log, `folder` what its processes print and do."""

    data: Path
    folder: Path

    @property
    def done(self) -> list[str]:
        """What was done to the services, a line each."""
        file = self.folder / room.DONE
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    @property
    def output(self) -> Path:
        """The file with what the processes print."""
        return self.folder / _OUTPUT


def leave_settings(*, over_rabbit: bool) -> Place:
    """Make the folder of a run, change to it, and keep of the caller's settings the data folder and the broker alone.

    So no run writes into a database that was set for something else.

    Raises:
        InputUnusable: the data folder cannot be used.
    """
    settings = BusSettings()
    data = settings.data_dir.absolute() / ("demo-rabbitmq" if over_rabbit else "")
    try:
        make_private_folder(data / "demo")
        folder = Path(mkdtemp(prefix="run-", dir=data / "demo"))
        os.chdir(folder)  # no .env is read there, and no module of the caller's found
    except OSError as error:
        raise InputUnusable(f"the data folder {data}: {error.strerror}: set APC_DATA_DIR to one of yours") from error
    for name in [name for name in os.environ if name.startswith("APC_")]:
        del os.environ[name]
    os.environ["APC_DATA_DIR"] = str(data)
    if over_rabbit:
        os.environ["APC_AMQP_URL"] = ",".join(settings.amqp_nodes) or BROKER
    return Place(data, folder)


@asynccontextmanager
async def open_database(place: Place) -> AsyncIterator[asyncpg.Pool]:
    """Run the embedded PostgreSQL of the data folder, migrated, and yield a pool for reading.

    Raises EmbeddedUnavailable, ServiceAway.
    """
    from apc_persister.database.embedded import start_embedded

    server = await start_embedded(place.data)
    try:
        await migrate_url(server.url)
        if "APC_AMQP_URL" in os.environ:
            os.environ["APC_DATABASE_URL"] = server.url
        pool = await open_pool(server.url, max_size=3, wait=PATIENCE)
        try:
            yield pool
        finally:
            pool.terminate()
    finally:
        for name in ("APC_DATABASE_URL", "APC_AMQP_URL"):  # what comes later reads the data folder
            os.environ.pop(name, None)
        await server.stop()


async def _start(place: Place, *arguments: str, given: Mapping[str, str] | None = None) -> Process:
    with place.output.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "apc_cli",
            *arguments,
            env=os.environ | dict(given or {}),
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
        )


def _last_words(place: Place) -> str:
    lines = place.output.read_text(encoding="utf-8", errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith(_SAID)), None)
    return f"see {place.output}" if said is None else said.removeprefix(_SAID)


async def run_command(*arguments: str) -> tuple[int, Any]:
    """Run an `apc` command that prints JSON to its end; return its exit code and what it printed, None for no JSON."""
    command = (sys.executable, "-m", "apc_cli", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=pipe, stderr=DEVNULL)
    out, _ = await process.communicate()
    try:
        return process.returncode or 0, orjson.loads(out)
    except orjson.JSONDecodeError:
        return process.returncode or 0, None


# One process: `apc run` under a key, begun again when it was killed.


@dataclass(frozen=True, slots=True)
class _OneProcess:
    pool: asyncpg.Pool
    place: Place
    session_id: str

    async def answer(self, question: UUID, answer: Answer) -> None:
        async with open_acts(self.place.data) as sender:
            await answer_over(sender, self.pool, BusSettings().shards, _form(question, answer))


@asynccontextmanager
async def in_one_process(
    pool: asyncpg.Pool, place: Place, alert: Any, people: tuple[str, ...], tell: Tell
) -> AsyncIterator[Stage]:
    """Run the room without a broker until its session has ended; a process that was killed is told and begun again.

    Leaving the context ends it. What ends it before cancels the block and is raised.

    Raises:
        ServiceAway: it does not run; in its own words.
    """
    key = place.folder.name
    (place.folder / "alert.json").write_text(alert.model_dump_json(), encoding="utf-8")
    arguments = ("run", PLACE, "--input", "alert.json", "--key", key)
    named = [option for one in people for option in ("--person", f"{one}:{LEAD}")]
    session_id = str(keyed_id(CLIENT, team.name, key, "session"))  # that of `apc run` under this key
    async with _beside(_keep(place, (*arguments, *named), tell)):
        yield _OneProcess(pool, place, session_id)


async def _keep(place: Place, arguments: tuple[str, ...], tell: Tell) -> None:
    for _ in range(_MOST_STARTS):
        process = await _start(place, *arguments, given=CRASH)
        try:
            code = await process.wait()
        finally:
            await end_process(process, _END)
        if code == 0:
            return
        if code != -signal.SIGKILL:
            break
        tell(Killed(f"the process of gate, bus, log writer and agents (pid {process.pid})"))
    raise ServiceAway(f"the incident room has ended: {_last_words(place)}")


@asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """Run work beside a block: its error cancels the block and is raised. At the end it may finish by itself."""
    block = asyncio.current_task()
    assert block is not None, "a block is run by a task"
    cancels, task = block.cancelling(), asyncio.create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception() is None or block.cancel())
    try:
        yield
        await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and block.uncancel() <= cancels:
            task.result()
        raise
    finally:
        await cancelled(task)


# Over RabbitMQ: `apc up`, which runs and restarts a process for each service and agent.


@dataclass(frozen=True, slots=True)
class _Processes:
    pool: asyncpg.Pool
    bus: Bus
    session_id: str

    async def answer(self, question: UUID, answer: Answer) -> None:
        await answer_over(self.bus, self.pool, BusSettings().shards, _form(question, answer))


@asynccontextmanager
async def over_rabbitmq(
    pool: asyncpg.Pool, place: Place, alert: Any, people: tuple[str, ...], tell: Tell
) -> AsyncIterator[Stage]:
    """Run the room over RabbitMQ, a process for each service and agent; leaving the context drains it.

    Raises:
        BusUnavailable: no broker answers.
        InputUnusable: another system uses its virtual host.
        ServiceAway: it does not start; in its own words.
    """
    settings = BusSettings()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(open_bus(settings))
        await _refuse_another_system(bus, settings)
        process = await _start(place, "up", "--agent", PLACE, given=CRASH)
        await stack.enter_async_context(_beside(_watch(place, process, tell)))
        stack.push_async_callback(end_process, process, _END)
        await _until_ready(place)
        changes = [addition(person(one, LEAD, bus.user)) for one in people]
        await publish_changes(bus, changes, settings.shards)
        await wait_until_recorded(pool, changes, settings.shards, START_LIMIT)
        own = await stack.enter_async_context(registered_client(bus, pool, settings.shards))
        client = Client(bus, pool, own.registration, settings.shards, key=own.key, owner=CLIENT)
        session = await client.start(team, alert)
        yield _Processes(pool, bus, session.session_id)


async def _refuse_another_system(bus: Bus, settings: BusSettings) -> None:
    for shard in range(settings.shards):
        for queue in (gate_queue(shard), log_queue(shard)):
            with suppress(QueueMissing):
                depth = await bus.depth(queue)
                if depth.consumers or depth.messages:
                    raise InputUnusable(
                        "another system uses this virtual host of RabbitMQ: make one for the demo (`rabbitmqctl "
                        "add_vhost apc-demo`, and the rights to it), and set APC_AMQP_URL to it"
                    )


async def _until_ready(place: Place) -> None:
    try:
        await until(lambda: _is_ready(place), _READY_LIMIT)
    except TimeoutError as error:
        limit = f"{_READY_LIMIT.total_seconds():g} s"
        raise ServiceAway(f"the incident room did not start within {limit}: {_last_words(place)}") from error


async def _is_ready(place: Place) -> bool:
    return any(line.startswith(_READY) for line in place.output.read_text(errors="replace").splitlines())


async def _watch(place: Place, process: Process, tell: Tell) -> None:
    """Tell of each process that the supervisor has lost, until it ends itself."""
    told, pids = 0, dict[str, int]()
    while process.returncode is None:
        lines = place.output.read_text(errors="replace").splitlines(keepends=True)
        for line in [one for one in lines[told:] if one.endswith("\n")]:
            told += 1
            event = _event_of(line)
            if event.get("event") == "process_started":
                pids[event["process"]] = event["pid"]
            if event.get("event") == "process_died" and event.get("code") == -signal.SIGKILL:
                name = event["process"]
                tell(Killed(f"the worker of {name} (pid {pids.get(name, '?')})"))
        await asyncio.sleep(0.05)
    if process.returncode not in (0, -signal.SIGTERM):
        raise ServiceAway(f"the incident room has ended: {_last_words(place)}")


def _event_of(line: str) -> dict[str, Any]:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _form(question: UUID, answer: Answer) -> AnswerForm:
    outcome = AnswerOutcome.APPROVED if answer.approved else AnswerOutcome.DENIED
    return AnswerForm(question, outcome, answer.note, answer.person)
