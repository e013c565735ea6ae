"""`apc serve`: run a service as a process. It waits for broker and database as long as they are away."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import asyncpg
import typer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from apc_bus.artifacts import open_artifacts
from apc_bus.concurrency import Backoff
from apc_bus.database import DATABASE_AWAY, open_pool
from apc_bus.errors import BusUnavailable, DatabaseUnavailable
from apc_bus.port import Bus
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import (
    ArchiveSettings,
    BusSettings,
    ConsoleSettings,
    DatabaseSettings,
    OrchestratorSettings,
    PersisterSettings,
)
from apc_bus.telemetry import agent_labels, get_logger
from apc_bus.trace_export import export_traces
from apc_cli.commands.group import Commands
from apc_cli.commands.run import AgentOption, ListenOption, ReadOnlyOption
from apc_cli.connections import LONGEST_STATEMENT, open_log
from apc_cli.errors import InputUnusable
from apc_cli.health import serve_health
from apc_cli.system.running import configure, end_with_supervisor, run_service, stop_on_signals
from apc_contracts.vocabulary import HOST_PATTERN
from apc_log.merkle import TILE_WIDTH
from apc_log.placement import LogDatabases, open_databases
from apc_persister.errors import TreeBroken
from apc_persister.evidence.documents import last_checkpoint
from apc_persister.evidence.tree import Tiles
from apc_web.access import AccountRole
from apc_web.http import listen_address, make_server, open_listeners

# Checkpoints and tiles of the log over HTTP (C2SP tlog-tiles), for monitors and witnesses.
#
# `/<shard>/checkpoint` and `/<shard>/tile/<level>/<index>[.p/<width>]`; without a shard it is shard 0. Only hashes and
# tree heads: entries and bodies are for readers of the database and for holders of a proof.

_INDEX = re.compile(r"(?P<thousands>(?:x\d{3}/)*)(?P<last>\d{3})(?:\.p/(?P<width>[1-9]\d{0,2}))?")
_LEVELS = 7
"""No shard has 256 to the power of this many entries."""
_LONGEST_INDEX = 24
"""Characters: an index is below 2^53."""
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_NEVER = {"Cache-Control": "no-store"}
_NOT_THERE = PlainTextResponse("there is no such thing\n", 404, _NEVER)
_AWAY = (*DATABASE_AWAY, TreeBroken)


def make_app(pool: asyncpg.Pool) -> Starlette:
    """Return the application, over the database of the pool; it only reads."""
    routes = _TileRoutes(pool)
    paths = [("/checkpoint", routes.checkpoint), ("/tile/{level}/{index:path}", routes.tile)]
    return Starlette(
        routes=[Route(prefix + path, endpoint) for prefix in ("", "/{shard}") for path, endpoint in paths],
        exception_handlers=dict.fromkeys(_AWAY, _say_away),
    )


class _TileRoutes:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def checkpoint(self, request: Request) -> Response:
        """Return the newest signed checkpoint."""
        shard = _shard(request)
        if shard is None:
            return _NOT_THERE
        async with self._pool.acquire() as connection:
            note = await last_checkpoint(connection, shard)
        return _NOT_THERE if note is None else PlainTextResponse(note, headers=_NEVER)

    async def tile(self, request: Request) -> Response:
        """Return the hashes of a tile, concatenated; a partial tile as soon as it has this width."""
        shard, level = _shard(request), _number(request.path_params["level"])
        place = _place(request.path_params["index"])
        if shard is None or level is None or level >= _LEVELS or place is None:
            return _NOT_THERE
        async with self._pool.acquire() as connection:
            tiles = await Tiles.open(connection, shard)
            index, width = place
            if (tiles.tree.size >> 8 * level) < index * TILE_WIDTH + width:
                return _NOT_THERE
            hashes = await tiles.hashes(level, index, width)
        return Response(hashes, media_type="application/octet-stream", headers=_FOREVER)


def _shard(request: Request) -> int | None:
    """Return the shard in the path; None when it is no shard number."""
    shard = _number(request.path_params.get("shard", "0"))
    return shard if shard is not None and shard < 1 << 31 else None


def _number(text: str) -> int | None:
    """Return a number of at most ten digits: of thousands Python raises an error, which would be one of ours."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None


def _place(text: str) -> tuple[int, int] | None:
    """Return index and width of `x001/x234/067.p/8`; None when the path is not in the form of tlog-tiles."""
    match = _INDEX.fullmatch(text) if len(text.partition(".")[0]) <= _LONGEST_INDEX else None
    if match is None or match["thousands"].startswith("x000"):
        return None
    index = int(match["thousands"].replace("x", "").replace("/", "") + match["last"])
    width = int(match["width"] or TILE_WIDTH)
    return (index, width) if width < TILE_WIDTH or not match["width"] else None


async def _say_away(request: Request, error: Exception) -> Response:
    what = str(error) if isinstance(error, TreeBroken) else "the database does not answer"
    return PlainTextResponse(f"{what}\n", 503, _NEVER)


async def serve_tiles(listen: str) -> None:
    """Serve at HOST:PORT until SIGTERM or SIGINT. Raises InputUnusable, DatabaseUnavailable."""
    host, port = listen_address(listen)
    async with open_log() as pool:
        with open_listeners(host, port) as listeners:
            await make_server(make_app(pool), host, port).serve(listeners)


FIRST_PAUSE = timedelta(seconds=0.2)
LONGEST_PAUSE = timedelta(seconds=5)
Opened = TypeVar("Opened")

log = get_logger(__name__)


@dataclass(slots=True)
class _Service:
    """A service, whose health pages answer before its connections are there."""

    stop: asyncio.Event
    connections: tuple[Bus, asyncpg.Pool] | None = None
    """None when it was told to stop before they were made."""
    waits_for: str = "broker and database are not reached yet"
    problems: Callable[[], list[str]] | None = None
    """Those of what runs over the connections."""

    def unready(self) -> list[str]:
        """Return why the process is not ready, one sentence each."""
        return [self.waits_for] if self.problems is None else self.problems()

    async def connect(self, connect: Callable[[], Awaitable[Opened]]) -> Opened | None:
        """Connect, retrying with back-off; None once told to stop."""
        backoff = Backoff(FIRST_PAUSE.total_seconds(), LONGEST_PAUSE.total_seconds(), self.stop)
        while not self.stop.is_set():
            try:
                return await connect()
            except (BusUnavailable, DatabaseUnavailable) as error:
                if self.waits_for != str(error):
                    log.warning("service_waits", reason=str(error))
                self.waits_for = str(error)
            await backoff.wait()
        return None


async def run_orchestrator() -> None:
    """Run the orchestrator until SIGTERM. Raises InputUnusable without a broker or a database, ContractInvalid."""
    from apc_orchestrator.service import Orchestrator

    async with _prepared("orchestrator") as service:
        if service.connections is not None:
            settings = BusSettings()
            artifacts = open_artifacts(settings)
            bus, pool = service.connections
            async with _databases(pool) as databases:
                orchestrator = Orchestrator(OrchestratorSettings(), bus, pool, artifacts, databases=databases)
                service.problems = lambda: orchestrator.problems
                await orchestrator.run(service.stop)


async def run_persister() -> None:
    """Run the persister until SIGTERM. Raises InputUnusable, and errors that it cannot handle itself."""
    from apc_persister.service import Persister

    async with _prepared("persister") as service:
        if service.connections is not None:
            capacity = ArchiveSettings().database_capacity
            bus, pool = service.connections
            async with _databases(pool) as databases:
                persister = Persister(PersisterSettings(), bus, pool, databases=databases, capacity=capacity)
                service.problems = lambda: persister.problems
                await persister.run(service.stop)


async def run_archiver() -> None:
    """Run the archiver until SIGTERM. Raises InputUnusable without an archive or a database; PolicyUnusable."""
    from apc_persister.ageing import Archiver, load_policy  # loads an object store

    settings = ArchiveSettings()
    if settings.archive_url is None or DatabaseSettings().url is None:
        raise InputUnusable("`apc serve archiver` needs APC_ARCHIVE_URL and APC_DATABASE_URL")
    policy = load_policy(settings.archive_policy, timedelta(days=settings.hot_days))
    async with _answering("archiver") as service:
        service.waits_for = "the database is not reached yet"
        pool = await service.connect(partial(_open_pool, LONGEST_STATEMENT))
        if pool is None:
            return
        try:
            async with _databases(pool, LONGEST_STATEMENT) as databases:
                archiver = Archiver(databases, settings, policy)
                service.problems = lambda: archiver.problems
                await archiver.run(service.stop)
        finally:
            await pool.close()


# Each attempt reads the settings again: a password that was wrong may be mended in its file meanwhile.


async def _open_pool(command_timeout: timedelta = timedelta(seconds=60)) -> asyncpg.Pool:
    database = DatabaseSettings()
    if database.url is None:
        raise DatabaseUnavailable("APC_DATABASE_URL is empty: give the URL of the database")
    return await open_pool(database.url, max_size=database.database_pool, command_timeout=command_timeout)


def _databases(
    home: asyncpg.Pool, command_timeout: timedelta = timedelta(seconds=60)
) -> AbstractAsyncContextManager[LogDatabases]:
    database = DatabaseSettings()
    return open_databases(home, database.other_urls, max_size=database.database_pool, command_timeout=command_timeout)


async def _connect_bus(name: str) -> Bus:
    settings = BusSettings()
    return await connect_rabbit(settings, purpose=name, shards=settings.shards)


def _need_servers(name: str) -> None:
    if not BusSettings().amqp_nodes or DatabaseSettings().url is None:
        raise InputUnusable(f"`apc serve {name}` needs APC_AMQP_URL and APC_DATABASE_URL; `apc up` needs neither")


@asynccontextmanager
async def _answering(name: str) -> AsyncIterator[_Service]:
    """Yield a service whose health pages answer, before it has any connection."""
    console = ConsoleSettings()
    configure(console.log_level)
    if console.supervised:
        end_with_supervisor()
    export_traces(f"apc-{name}")
    service = _Service(stop_on_signals())
    with serve_health(console.health_host, console.health_port, service.unready):
        yield service


@asynccontextmanager
async def _prepared(name: str) -> AsyncIterator[_Service]:
    """Yield a service with its connections, and serve its health pages; liveness does not wait for the connections."""
    agent_labels.most = ConsoleSettings().agent_metrics
    _need_servers(name)
    bus = pool = None
    async with _answering(name) as service:
        try:
            pool = await service.connect(_open_pool)
            bus = await service.connect(partial(_connect_bus, name))
            if bus is not None and pool is not None:
                service.connections = bus, pool
            yield service
        finally:
            if bus is not None:
                await bus.close()
            if pool is not None:
                await pool.close()


async def run_a2a(team: str) -> None:
    """Serve a team over A2A until SIGTERM. Raises InputUnusable: the team, a file or a setting cannot be used."""
    from apc_cli.system.a2a import ready_door

    _need_servers("a2a")
    with ready_door(team) as door:  # what is wrong with it is said before the broker is waited for
        async with _prepared("a2a") as service:
            if service.connections is not None:
                service.problems = list
                await door.serve(*service.connections, service.stop)


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
def archiver() -> None:
    """Archive full segments of the log, record them, and let go of what APC_ARCHIVE_POLICY allows: one look a minute.

    It needs the database alone, whose user is a member of apc_reader and apc_archiver, and the store.
    """
    run_service("archiver", run_archiver())


@app.command()
def tiles(listen: Listen = "127.0.0.1:8081") -> None:
    """Serve checkpoints and tiles of the log for monitors and witnesses: /checkpoint and /tile/ of C2SP tlog-tiles."""

    configure(ConsoleSettings().log_level)
    run_service("server of tiles", serve_tiles(listen))


@app.command()
def artifacts(listen: Listen = "127.0.0.1:8082") -> None:
    """Accept artifacts from agents that may only read the store: each once, under the hash of its bytes."""
    from apc_cli.commands.artifact_uploads import serve_artifacts

    configure(ConsoleSettings().log_level)
    run_service("server of artifacts", serve_artifacts(listen))


@app.command()
def chat(agent: AgentOption = None, listen: Listen = "127.0.0.1:8080") -> None:
    """Serve the frontend contract as JSON: what a web page needs to talk to an agent (docs/how-to/chat.md)."""
    from apc_cli.api import ChatServiceForm, serve_chat

    configure(ConsoleSettings().log_level)
    run_service("server of chats", serve_chat(ChatServiceForm(agent, listen)))


@app.command()
def agents(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The host on which the agents are registered, as batch-1.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MODULE:NAME…", help="Agents, and teams with all their members.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file with one MODULE:NAME a line; # is a comment.")
    ] = None,
) -> None:
    """Run many agents in one process, over one inbox (docs/how-to/hosts.md).

    Another process of the same host is its standby.
    """
    from apc_cli.output.files import names_in
    from apc_cli.system.worker import run_agents

    if not re.fullmatch(HOST_PATTERN, host):
        raise typer.BadParameter("1 to 32 of a-z, 0-9, _ and -, the first a letter or a digit", param_hint="--host")
    run_service("host", run_agents(host, [*(names or ()), *(names_in(file) if file is not None else ())]))


@app.command()
def a2a(
    team: Annotated[str, typer.Argument(metavar="MODULE:TEAM", help="Where the team is, as package.module:name.")],
) -> None:
    """Serve a team over A2A 1.0 at APC_A2A_LISTEN: JSON-RPC, HTTP+JSON, streams and push (docs/how-to/a2a.md).

    Any number of doors may stand beside each other. The team's agents run elsewhere.
    """
    run_service("door of A2A", run_a2a(team))


@app.command()
def web(listen: ListenOption = "127.0.0.1:8083", read_only: ReadOnlyOption = False) -> None:
    """Serve the web console: the HTTP API and its page (docs/how-to/web-console.md)."""
    from apc_cli.commands.ui import WebForm, serve_web

    configure(ConsoleSettings().log_level)
    run_service("web console", serve_web(WebForm(None, listen, read_only, opens_browser=False, is_service=True)))


@app.command()
def mcp(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve HTTP at this address instead of standard input and output."),
    ] = None,
    role: Annotated[
        AccountRole, typer.Option(help="What a client on standard input may do; over HTTP each account has its own.")
    ] = AccountRole.OPERATOR,
    acts: Annotated[
        bool, typer.Option("--acts", help="Offer tools that act; a person confirms each in their client.")
    ] = False,
) -> None:
    """Serve the log to assistants by MCP; it only reads unless --acts is given (docs/how-to/mcp.md)."""
    from apc_cli.commands.mcp_door import McpForm, serve_mcp

    configure(ConsoleSettings().log_level)
    run_service("MCP server", serve_mcp(McpForm(listen, role, acts)))
