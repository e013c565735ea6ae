"""The door of A2A as a service, and beside `apc up`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg

from apc_a2a.access import read_callers, with_token, write_callers
from apc_a2a.server import Served, listening
from apc_agents.team import Team, load_team
from apc_bus.artifacts import open_artifacts
from apc_bus.concurrency import cancelled
from apc_bus.folders import locked
from apc_bus.port import Bus
from apc_bus.settings import A2ASettings, BusSettings, DatabaseSettings
from apc_cli.output.terminal import echo
from apc_cli.system.system import System, has_broker
from apc_client import Callers
from apc_client.callers import add_caller
from apc_client.in_process import EmbeddedSystem
from apc_contracts.errors import ApcError
from apc_web.access import write_private

LOCAL = "local"
"""The caller of `apc up --a2a`."""
TOKEN_FILE = "a2a-token"
"""In the data folder: its token."""


def served_over(bus: Bus, pool: asyncpg.Pool, team: Team) -> Served:
    """Return what the door of a team is made of."""
    settings = BusSettings()
    callers = Callers(bus, pool, settings.shards)
    return Served(team, callers, pool, open_artifacts(settings), A2ASettings(), settings.data_dir)


async def serve_door(served: Served, stop: asyncio.Event) -> None:
    """Answer until `stop` is set. Raises InputUnusable: an address, a file or a setting cannot be used."""
    async with listening(served, served.settings.a2a_listen) as door:
        echo(f"A2A: {door.url}/.well-known/agent-card.json", file=sys.stderr, flush=True)
        await door.serve(stop)


@asynccontextmanager
async def door_beside(system: System, team: str) -> AsyncIterator[None]:
    """Serve a team of a running system while the context lasts, with the caller `local`, whose token is in a file.

    Raises InputUnusable as `serve_door`, and what the door raised when it ended before.
    """
    settings = BusSettings()
    async with AsyncExitStack() as stack:
        bus = await _bus_of(stack, system, settings)
        await add_caller(bus, system.pool, settings.shards, LOCAL)
        served = served_over(bus, system.pool, load_team(team))
        token = _write_token(served)
        door = await stack.enter_async_context(listening(served, served.settings.a2a_listen))
        echo(f"apc up: A2A: {door.url}, caller {LOCAL}, token in {token}", file=sys.stderr, flush=True)
        serving = asyncio.create_task(door.serve(asyncio.Event()))
        stack.push_async_callback(cancelled, serving)
        yield


async def _bus_of(stack: AsyncExitStack, system: System, settings: BusSettings) -> Bus:
    if has_broker(settings, DatabaseSettings()):
        from apc_bus.rabbit import connect_rabbit

        bus: Bus = await connect_rabbit(settings, purpose="a2a", shards=settings.shards)
    else:
        assert isinstance(system, EmbeddedSystem), "without a broker everything is in this process"
        bus = system.connect_operator()
    stack.push_async_callback(bus.close)
    return bus


def _write_token(served: Served) -> Path:
    """Return the file with the token of the local caller, which is made unless it is good."""
    file, callers = served.folder / TOKEN_FILE, served.callers_file
    with locked(callers):
        document, token = with_token(read_callers(callers), LOCAL, "local")
        write_callers(callers, document)
        try:
            write_private(file, f"{token}\n")
        except OSError as error:
            raise ApcError(f"cannot write {file}: {error.strerror}") from error
    return file
