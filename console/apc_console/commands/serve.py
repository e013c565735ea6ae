"""`apc serve`: run a service as a process. It waits for broker and database as long as they are away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, TypeVar

import asyncpg
import structlog
import typer

from apc_bus.artifacts import open_artifacts
from apc_bus.concurrency import Backoff
from apc_bus.database import open_pool
from apc_bus.errors import BusUnavailable, DatabaseUnavailable
from apc_bus.port import Bus
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, OrchestratorSettings, PersisterSettings
from apc_bus.trace_export import export_traces
from apc_console.commands.group import Commands
from apc_console.commands.run import AgentOption, ListenOption, ReadOnlyOption
from apc_console.errors import InputUnusable
from apc_console.health import serve_health
from apc_console.system.running import configure, end_with_supervisor, run_service, stop_on_signals

FIRST_PAUSE = timedelta(seconds=0.2)
LONGEST_PAUSE = timedelta(seconds=5)
Opened = TypeVar("Opened")

log = structlog.get_logger(__name__)


async def run_orchestrator() -> None:
    """Run the gate until SIGTERM. Raises InputUnusable without a broker or a database, ContractInvalid."""
    from apc_orchestrator.service import Orchestrator

    async with _prepared("orchestrator") as (stop, bus, pool):
        if bus is not None and pool is not None:
            settings = BusSettings()
            artifacts = open_artifacts(settings)
            orchestrator = Orchestrator(OrchestratorSettings(), bus, pool, artifacts)
            console = ConsoleSettings()
            with serve_health(console.health_host, console.health_port, lambda: orchestrator.problems):
                await orchestrator.run(stop)


async def run_persister() -> None:
    """Run the log writer until SIGTERM. Raises InputUnusable, and errors that the persister cannot handle itself."""
    from apc_persister.service import Persister

    async with _prepared("persister") as (stop, bus, pool):
        if bus is not None and pool is not None:
            persister = Persister(PersisterSettings(), bus, pool)
            console = ConsoleSettings()
            with serve_health(console.health_host, console.health_port, lambda: persister.problems):
                await persister.run(stop)


@asynccontextmanager
async def _prepared(name: str) -> AsyncIterator[tuple[asyncio.Event, Bus | None, asyncpg.Pool | None]]:
    """Yield the connections of a service; both None when it was told to stop before they were made."""
    console = ConsoleSettings()
    configure(console.log_level)
    if console.supervised:
        end_with_supervisor()
    export_traces(f"apc-{name}")
    settings, database = BusSettings(), DatabaseSettings()
    url = database.url
    if not settings.amqp_nodes or url is None:
        raise InputUnusable(f"`apc serve {name}` needs APC_AMQP_URL and APC_DATABASE_URL; `apc up` needs neither")
    stop = stop_on_signals()
    bus = pool = None
    try:
        pool = await _until_there(lambda: open_pool(url, max_size=database.database_pool), stop)
        bus = await _until_there(lambda: connect_rabbit(settings, purpose=name, shards=settings.shards), stop)
        yield stop, bus, pool
    finally:
        if bus is not None:
            await bus.close()
        if pool is not None:
            await pool.close()


async def _until_there(connect: Callable[[], Awaitable[Opened]], stop: asyncio.Event) -> Opened | None:
    """Connect, retrying with back-off; None once told to stop."""
    backoff = Backoff(FIRST_PAUSE.total_seconds(), LONGEST_PAUSE.total_seconds(), stop)
    while not stop.is_set():
        try:
            return await connect()
        except (BusUnavailable, DatabaseUnavailable) as error:
            log.warning("service_waits", reason=str(error), pause_s=backoff.pause)
        await backoff.wait()
    return None


# `apc serve`: the services, one per process.

app = Commands(help="Run a service.")

Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="The address to listen on.")]


@app.command()
def orchestrator() -> None:
    """Run the gate: judge inputs, log them, deliver them. Several processes are hot standbys of each other."""
    run_service("orchestrator", run_orchestrator())


@app.command()
def persister() -> None:
    """Run the log writer: apply log batches to Postgres, one transaction each."""
    run_service("persister", run_persister())


@app.command()
def tiles(listen: Listen = "127.0.0.1:8081") -> None:
    """Serve checkpoints and tiles of the log for monitors and witnesses: /checkpoint and /tile/ of C2SP tlog-tiles."""
    from apc_console.commands.log_tiles import serve_tiles

    configure(ConsoleSettings().log_level)
    run_service("server of tiles", serve_tiles(listen))


@app.command()
def artifacts(listen: Listen = "127.0.0.1:8082") -> None:
    """Accept artifacts from agents that may only read the store: each once, under the hash of its bytes."""
    from apc_console.commands.artifact_uploads import serve_artifacts

    configure(ConsoleSettings().log_level)
    run_service("server of artifacts", serve_artifacts(listen))


@app.command()
def chat(agent: AgentOption = None, listen: Listen = "127.0.0.1:8080") -> None:
    """Serve the frontend contract as JSON: what a web page needs to talk to an agent (docs/how-to/chat.md)."""
    from apc_console.api import ChatServiceForm, serve_chat

    configure(ConsoleSettings().log_level)
    run_service("server of chats", serve_chat(ChatServiceForm(agent, listen)))


@app.command()
def web(listen: ListenOption = "127.0.0.1:8083", read_only: ReadOnlyOption = False) -> None:
    """Serve the web console: the HTTP API and its page (docs/how-to/web-console.md)."""
    from apc_console.commands.ui import WebForm, serve_web

    configure(ConsoleSettings().log_level)
    run_service("web console", serve_web(WebForm(None, listen, read_only, opens_browser=False, is_service=True)))
