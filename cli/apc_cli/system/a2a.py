"""The door of A2A as a service, and beside `apc up`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from apc_a2a.access import read_callers, with_token, write_callers
from apc_a2a.server import Place, Served, listening, placed
from apc_agents.team import Team, load_team
from apc_bus.artifacts import open_artifacts
from apc_bus.concurrency import cancelled
from apc_bus.folders import locked, make_private_folder
from apc_bus.port import Bus
from apc_bus.settings import A2ASettings, BusSettings, DatabaseSettings
from apc_cli.output.terminal import echo
from apc_cli.system.system import System, has_broker
from apc_client import Callers
from apc_client.callers import add_caller
from apc_client.in_process import EmbeddedSystem
from apc_contracts.errors import InputUnusable
from apc_web.access import write_private

LOCAL = "local"
"""The caller of `apc up --a2a`."""
TOKEN_FILE = "a2a-token"
"""In the data folder: its token."""


@dataclass(frozen=True, slots=True)
class ReadyDoor:
    """A door that needs nothing but the system behind it: the team, and where it listens with which keys."""

    team: Team
    place: Place

    async def serve(self, bus: Bus, pool: asyncpg.Pool, stop: asyncio.Event) -> None:
        """Answer until `stop` is set."""
        async with listening(self._over(bus, pool), self.place) as door:
            echo(f"A2A: {door.url}/.well-known/agent-card.json", file=sys.stderr, flush=True)
            await door.serve(stop)

    @asynccontextmanager
    async def beside(self, system: System) -> AsyncIterator[None]:
        """Serve a running system while the context lasts, with the caller `local`, whose token is in a file."""
        settings = BusSettings()
        async with AsyncExitStack() as stack:
            bus = await _bus_of(stack, system, settings)
            await add_caller(bus, system.pool, settings.shards, LOCAL)
            door = await stack.enter_async_context(listening(self._over(bus, system.pool), self.place))
            token = settings.data_dir / TOKEN_FILE
            echo(f"apc up: A2A: {door.url}, caller {LOCAL}, token in {token}", file=sys.stderr, flush=True)
            serving = asyncio.create_task(door.serve(asyncio.Event()))
            stack.push_async_callback(cancelled, serving)
            yield

    def _over(self, bus: Bus, pool: asyncpg.Pool) -> Served:
        settings = BusSettings()
        return Served(self.team, Callers(bus, pool, settings.shards), pool, open_artifacts(settings))


@contextmanager
def ready_door(team: str, *, is_local: bool = False) -> Iterator[ReadyDoor]:
    """Yield the door of a team, which listens while the context is open: before a system is started or waited for.

    Args:
        team: where the team is, as `package.module:name`.
        is_local: make the token of the caller `local`.

    Raises:
        AgentNotFound: there is no such team.
        InputUnusable: the address is taken, or a file or a setting cannot be used.
    """
    loaded, folder = load_team(team), BusSettings().data_dir
    with placed(A2ASettings(), folder) as place:
        if is_local:
            _write_token(place.callers_file, folder / TOKEN_FILE)
        elif place.knows_nobody:
            echo(
                f"A2A: {place.callers_file} has no token as yet: `apc caller add NAME` makes one",
                file=sys.stderr,
                flush=True,
            )
        yield ReadyDoor(loaded, place)


async def _bus_of(stack: AsyncExitStack, system: System, settings: BusSettings) -> Bus:
    if has_broker(settings, DatabaseSettings()):
        from apc_bus.rabbit import connect_rabbit

        bus: Bus = await connect_rabbit(settings, purpose="a2a", shards=settings.shards)
    else:
        assert isinstance(system, EmbeddedSystem), "without a broker everything is in this process"
        bus = system.connect_operator()
    stack.push_async_callback(bus.close)
    return bus


def _write_token(callers: Path, file: Path) -> None:
    """Write a new token of the local caller. Raises InputUnusable."""
    try:
        make_private_folder(file.parent)
        with locked(callers):
            document, token = with_token(read_callers(callers), LOCAL, "local")
            write_callers(callers, document)
            write_private(file, f"{token}\n")
    except OSError as error:
        raise InputUnusable(f"{file}: the token of the caller {LOCAL} cannot be written: {error.strerror}") from error
