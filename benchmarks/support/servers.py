"""The servers of a run: a RabbitMQ and a Postgres with a migrated template, the same for raw limits and for the bus."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg
import psutil
from tests.support.servers import PostgresServer, RabbitServer, start_given_postgres, start_rabbit

from apc_bus.settings import LogKeySettings
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate
from apc_persister.evidence.checkpoint import ensure_key

PASSWORD = "benchmarks"


@dataclass(frozen=True, slots=True)
class Servers:
    """A broker and a database server."""

    rabbit: RabbitServer
    postgres: PostgresServer
    _users: set[str] = field(default_factory=set)

    def fresh_vhost(self) -> str:
        """AMQP URL of a virtual host that nobody has used."""
        return self.rabbit.fresh_vhost_url()

    def login(self, amqp_url: str, user: str) -> str:
        """Return the AMQP URL of another broker user with every right on the same virtual host."""
        place = urlsplit(amqp_url)
        vhost = unquote(place.path.removeprefix("/"))
        if user not in self._users:
            self.rabbit.ctl("add_user", user, PASSWORD)
            self._users.add(user)
        self.rabbit.ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
        return urlunsplit(place._replace(netloc=f"{user}:{PASSWORD}@{place.netloc.rpartition('@')[2]}"))

    async def fresh_database(self) -> str:
        """URL of a migrated, empty database."""
        return self.postgres.url_of(await self.postgres.clone())

    async def cpu_seconds(self) -> dict[str, float]:
        """Return what the servers have used so far, as far as they run on this machine as processes of ours."""
        nodes = [one for one in psutil.Process().children(recursive=True) if one.name().startswith("beam")]
        return {"rabbitmq": _cpu_seconds(nodes), "postgres": _cpu_seconds(await self._postgres_processes())}

    async def _postgres_processes(self) -> list[psutil.Process]:
        connection = await asyncpg.connect(self.postgres.url_of("postgres"))
        try:
            pid: int = await connection.fetchval("SELECT pg_backend_pid()")
            postmaster = psutil.Process(pid).parent()
        except psutil.NoSuchProcess:  # in a container, or on another machine
            return []
        finally:
            await connection.close()
        return [] if postmaster is None else [postmaster, *postmaster.children(recursive=True)]


@asynccontextmanager
async def start_servers() -> AsyncIterator[Servers]:
    """Start what the tests use: a private node and the embedded Postgres, or what the environment asks for.

    Raises:
        BusUnavailable: there is no RabbitMQ.
    """
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="apc-bench-key-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.environ["APC_LOG_KEY_FILE"] = str(folder / "log-key.pem")  # for the services that are started too
        os.environ["APC_CHECKPOINTS_URL"] = str(folder / "checkpoints")
        ensure_key(LogKeySettings())
        rabbit = await asyncio.to_thread(start_rabbit)
        stack.push_async_callback(asyncio.to_thread, rabbit.close)
        postgres = await start_given_postgres() or await _embedded()
        stack.push_async_callback(postgres.close)
        await postgres.prepare(migrate)
        yield Servers(rabbit, postgres)


def _cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return those of children that ended are in their parents' figures."""
    total = 0.0
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(one.cpu_times()[:4])
    return total


async def _embedded() -> PostgresServer:
    resources = AsyncExitStack()
    folder = Path(tempfile.mkdtemp(prefix="apc-bench-"))
    resources.callback(shutil.rmtree, folder, ignore_errors=True)
    embedded = await start_embedded(folder)
    resources.push_async_callback(embedded.stop)
    return PostgresServer("embedded", embedded.url, resources)
