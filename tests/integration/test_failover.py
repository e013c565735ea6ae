"""A real fail-over: the primary stops, its standby is promoted, and the old primary comes back and only reads."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from pydantic import BaseModel, SecretStr
from tests.support.failover.demotion import Switch, by_way_of
from tests.support.failover.postgres_pair import PostgresPair, socket_of
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, Team, message
from apc_bus.database import connect, problems_of
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client import Client
from apc_client.in_process import OPERATOR, EmbeddedSystem, run_embedded
from apc_contracts.contract.contract import load_contract
from apc_persister.database.migrate import migrate
from apc_web.live import Feed
from apc_web.pool import open_reader

PATIENCE = timedelta(seconds=5)
_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@message("job/1")
class Job(BaseModel):
    name: str


@message("done/1")
class Done(BaseModel):
    name: str
    made: int


class Desk:
    """A team of one, which uses every store; its handler waits for `may_go_on`."""

    def __init__(self) -> None:
        self.may_go_on, self.begun, self.effects = asyncio.Event(), asyncio.Event(), list[str]()
        self.agent = Agent("desk", role="desk", swarm="desk")
        self.agent.on(Job)(self._work)
        self.team = Team("desk", agents=[self.agent], entry="desk", input=Job)

    async def _work(self, job: Job, ctx: HandlerContext) -> None:
        self.begun.set()
        await self.may_go_on.wait()
        made = await ctx.once("effect", lambda: self._make(job.name))
        ctx.state["name"] = job.name
        await ctx.memory.store_agent_state("desk", ctx.packet.trace.session_id, "name", job.name)
        await ctx.complete(Done(name=job.name, made=made))

    def _make(self, name: str) -> int:
        self.effects.append(name)
        return len(self.effects)


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    """A primary with the schema, and its standby."""
    with PostgresPair() as pair:
        asyncio.run(migrate(pair.url("a")))
        pair.make_standby()
        yield pair


@asynccontextmanager
async def running(url: str, folder: Path, desk: Desk) -> AsyncIterator[tuple[EmbeddedSystem, Client]]:
    """Run gate, log writer and the team over a database."""
    settings = BusSettings(amqp_url=None, data_dir=folder)
    async with run_embedded(settings, DatabaseSettings(database_url=SecretStr(url))) as system:
        await system.register_schemas(desk.team.documents)
        await system.start_agents(desk.team.agents)
        async with system.registered_client() as own:
            yield system, Client(system.connect(OPERATOR), system.pool, own.registration, 1, key=own.key)


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_everything_follows_the_primary(pair: PostgresPair, tmp_path: Path) -> None:
    """The address leads to the old primary for a while, and connections to it stay: nobody stays there, none halts."""
    desk = Desk()
    async with Switch.open(socket_of(pair.folders["a"])) as address:
        url = by_way_of(pair.url("a"), address.port)
        async with running(url, tmp_path, desk) as (system, client), watching(url) as feed:
            desk.may_go_on.set()
            first = await client.start(desk.team, Job(name="one"))
            assert await first.result(timeout=60) == Done(name="one", made=1)

            desk.may_go_on.clear()
            desk.begun.clear()
            second = await client.start(desk.team, Job(name="two"))
            await desk.begun.wait()
            await pair.until_standby_has_all()
            await asyncio.to_thread(pair.switch_over)
            desk.may_go_on.set()
            await until(lambda: "the server is a standby" in "".join(problems_of(system.pool)))
            await until(lambda: feed.is_away)
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="is a standby"):
                await connect(url)

            address.target = socket_of(pair.folders["b"])
            assert await second.result(timeout=60) == Done(name="two", made=2)
            third = await client.start(desk.team, Job(name="three"))
            assert await third.result(timeout=60) == Done(name="three", made=3)
            await until(lambda: problems_of(system.pool) == [])
            await until(lambda: not feed.is_away)
            assert desk.effects == ["one", "two", "three"]
            old = await asyncpg.connect(pair.url("a"))
            assert await old.fetchval(_OTHERS) == 0, "somebody is still connected to the old primary"
            await old.close()
    await check_the_list(pair)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Feed]:
    """Read the log as the web server does while a page is open."""
    pool = await open_reader(url, PATIENCE)
    feed = Feed(pool, load_contract())
    async with feed.opened():
        yield feed
    pool.terminate()


async def check_the_list(pair: PostgresPair) -> None:
    """The list of both finds `b`, past `a` as a standby, and past `a` while it takes nobody (57P03)."""
    async with Switch.open(socket_of(pair.folders["a"])) as a, Switch.open(socket_of(pair.folders["b"])) as b:
        url = by_way_of(pair.url("a"), a.port, b.port)
        connection = await connect(url)
        assert not await connection.fetchval("SELECT pg_is_in_recovery()")
        await connection.close()
        await asyncio.to_thread(pair.stop, "a")
        await asyncio.to_thread(pair.start, "a", "-c hot_standby=off")
        with pytest.raises(asyncpg.CannotConnectNowError):
            await connect(by_way_of(pair.url("a"), a.port))
        await (await connect(url)).close()
