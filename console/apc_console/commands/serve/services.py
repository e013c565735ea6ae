"""`apc serve`: run a service as a process. It waits for broker and database as long as they are away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import asyncpg
import structlog

from apc_bus.artifacts import open_artifacts
from apc_bus.backoff import Backoff
from apc_bus.database import open_pool
from apc_bus.errors import BusUnavailable, DatabaseUnavailable
from apc_bus.port import Bus
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings
from apc_bus.trace_export import export_traces
from apc_console.errors import InputUnusable
from apc_console.http.health import serve_health
from apc_console.system.logs import configure
from apc_console.system.running import end_with_supervisor, stop_on_signals

FIRST_PAUSE = timedelta(seconds=0.2)
LONGEST_PAUSE = timedelta(seconds=5)
Opened = TypeVar("Opened")

log = structlog.get_logger(__name__)


async def run_orchestrator() -> None:
    """Run the gate until SIGTERM. Raises InputUnusable without a broker or a database, ContractInvalid."""
    from apc_bus.settings import OrchestratorSettings
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
    from apc_bus.settings import PersisterSettings
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
