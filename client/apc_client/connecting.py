"""Connect to a running system over RabbitMQ, or make one in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from apc_agents.agent import Agent
from apc_agents.errors import AgentError
from apc_agents.scheduling import Tick
from apc_agents.team import Team
from apc_bus.database import open_pool
from apc_bus.port import Bus
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_bus.telemetry import get_logger
from apc_client.client import Client
from apc_client.in_process import OPERATOR, EmbeddedSystem, run_embedded
from apc_client.operator import first_operator
from apc_client.registration import RunClient
from apc_client.run_names import TagValue
from apc_client.session import ClientSession
from apc_contracts.contract.contract import load_contract, task_contract
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry import CLIENT
from apc_log.errors import NOT_JOINED, DatabasesUnjoinable
from apc_log.heads import holds_log
from apc_log.placement import read_databases
from apc_log.queries import get_session
from apc_log.registry import read_contracts

log = get_logger(__name__)


class InProcessClient(Client):
    """A client that runs the agents itself.

    Args:
        system: this process's.
        bus: connected as the system's operator.
        own: the client of this process.
        shards: of the system.
    """

    def __init__(self, system: EmbeddedSystem, bus: Bus, own: RunClient, shards: int) -> None:
        super().__init__(bus, system.pool, own.registration, shards, key=own.key, owner=CLIENT)
        self._system = system
        self._running: dict[str, Agent] = {}
        self._started: set[str] = set()

    async def start(
        self,
        team: Team,
        content: BaseModel,
        *,
        key: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, TagValue] | None = None,
        attached: Mapping[str, JsonValue] | None = None,
    ) -> ClientSession:
        """Run the team's agents unless they run, open a session and give its entry the input. Raises as `Client.start`.

        Raises:
            InputUnusable: another agent of this process has the id of a member.
        """
        await self.run_team(team)
        session = await super().start(team, content, key=key, run_id=run_id, metadata=metadata, attached=attached)
        self._started.add(session.session_id)
        return session

    async def run_team(self, team: Team) -> None:
        """Register the team's schemas and contract, and run its agents, unless they run.

        What open sessions wait for goes on.

        Raises:
            ContractInvalid: the team's contract cannot be used; names the place.
            InputUnusable: another agent of this process has the id of a member, or a schema has changed.
        """
        new = []
        for agent in team.agents:
            running = self._running.get(agent.agent_id)
            if running is None:
                new.append(agent)
            elif running is not agent:
                raise InputUnusable(f"another agent {agent.agent_id!r} runs in this process: give each its own id")
        if new:
            await self.register_schemas(team)
            if team.contract_file is not None:
                await self._system.register_contract(team.contract_file)
            await self._system.start_agents(new)
            self._running |= {agent.agent_id: agent for agent in new}

    async def register_schemas(self, team: Team) -> None:
        """Register the schemas of a team's models. Raises InputUnusable: one has changed."""
        await self._system.register_schemas(team.documents)

    async def register_contract(self, file: Path | str) -> None:
        """Register the contract in a file, so that sessions can name it.

        Raises:
            ContractInvalid: it cannot be read or used; names the place.
            InputUnusable: it is too large.
            ShardsUnconfirmed: a shard has not logged it in time.
        """
        await self._system.register_contract(file)

    async def contracts(self) -> list[str]:
        """Return the names of the contracts that a session can name, sorted."""
        registered = await read_contracts(self._pool)
        return sorted({load_contract().name, task_contract().name, *(one.name for one in registered)})

    async def fire(self, team: Team, agent_id: str, tick: Tick) -> ClientSession:
        """Fire a schedule of one of the team's agents; return the session in which the Tick comes.

        Raises:
            AgentError: no such agent, or it has no such schedule.
            EmitRefused: the gate's rules refuse the START.
            BusError: the broker does not take it.
        """
        if agent_id not in {agent.agent_id for agent in team.agents}:
            raise AgentError(
                f"team {team.name} has no agent {agent_id!r}; it has {', '.join(a.agent_id for a in team.agents)}"
            )
        await self.run_team(team)
        return self.session(await self._system.fire(agent_id, tick), team)

    async def tell_what_is_left(self) -> None:
        """Warn of the sessions that were started here and have not ended: nobody works on them any more."""
        rows = [(one, await get_session(self._system.pool, one)) for one in sorted(self._started)]
        left = [session_id for session_id, row in rows if row is not None and not row.is_terminal]
        if left:
            log.warning(
                "sessions_left_open",
                sessions=left,
                reason="their agents ran in this process: they go on when a system over this data folder runs them",
            )


@asynccontextmanager
async def connect_in_process(
    settings: BusSettings, database: DatabaseSettings, people: Mapping[str, str]
) -> AsyncIterator[InProcessClient]:
    """Run a system in this process and yield its client.

    Args:
        people: the role of each person for whom this process answers, by id.

    Raises:
        InputUnusable: another system uses the data folder, or an id or a role of a person cannot be used.
        EmbeddedUnavailable, DatabaseUnavailable, ServiceAway: as `run_embedded`.
    """
    async with run_embedded(settings, database) as system:
        await system.register_people(people)
        async with system.registered_client() as own:
            client = InProcessClient(system, system.connect(OPERATOR), own, settings.shards)
            try:
                async with system.watched():
                    yield client
            finally:
                await client.tell_what_is_left()


CONNECT_PATIENCE = timedelta(seconds=8)
"""How long broker and database may take to answer."""


@asynccontextmanager
async def connect(
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    *,
    operator: str | None = None,
    people: Mapping[str, str] | None = None,
) -> AsyncIterator[Client]:
    """Connect to the running system of APC_AMQP_URL; without one, run everything in this process.

    In this process, `start` starts the team's agents as well, and leaving the context ends them: what a session has
    not done by then is done when the next system over the same data folder runs its agents.

    ```python
    from apc_client import connect

    async with connect(people={"ida": "lead"}) as bus:
        assert await bus.questions() == []
    ```

    Args:
        bus: default the settings of the environment (APC_AMQP_URL, APC_DATA_DIR).
        database: default the settings of the environment (APC_DATABASE_URL).
        operator: the agent_id that starts sessions over RabbitMQ; default the first with the right `operate` of this
            broker user.
        people: the role of each person for whom this process answers, by id; only in this process.

    Raises:
        InputUnusable: a URL is missing, no operator is registered for the broker user, people are named with a broker,
            or another system uses the data folder.
        BusUnavailable, DatabaseUnavailable, EmbeddedUnavailable: a server is away.
        ShardsDiffer: APC_SHARDS is another number than the system's.
    """
    bus, database = bus or BusSettings(), database or DatabaseSettings()
    if not bus.amqp_nodes:
        async with connect_in_process(bus, database, people or {}) as local:
            yield local
        return
    if database.url is None:
        raise InputUnusable("APC_AMQP_URL is set: set APC_DATABASE_URL as well, or neither")
    if people:
        raise InputUnusable("people: with a broker, `apc agent add NAME --person` registers them")
    async with _over_rabbit(bus, database.url, database.other_urls, operator) as remote:
        yield remote


@asynccontextmanager
async def _over_rabbit(
    bus: BusSettings, url: str, others: Mapping[str, str], operator: str | None
) -> AsyncIterator[Client]:
    from apc_bus.rabbit import connect_rabbit

    quick = bus.model_copy(update={"connect_patience": CONNECT_PATIENCE})
    parts = (await read_databases(url, others)).parts
    pool = await open_pool(url, max_size=2, wait=CONNECT_PATIENCE, parts=parts)
    try:
        if parts is not None and not await holds_log(pool):
            raise DatabasesUnjoinable(NOT_JOINED)
        connected = await connect_rabbit(quick, purpose="client", shards=bus.shards)
        try:
            yield Client(connected, pool, await first_operator(pool, connected.user, operator), bus.shards)
        finally:
            await connected.close()
    finally:
        await pool.close()


def run(team: Team, content: BaseModel, *, key: str | None = None, timeout: float | None = None) -> Any:
    """Run a team on one input and return its typed result: `connect`, `start` and `result` for synchronous code.

    ```python
    from apc_client import run


    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> None:
        await ctx.complete(Answer(text="because"))


    team = Team("support", agents=[desk], entry="desk", input=Question)
    assert run(team, Question(text="why"), timeout=60) == Answer(text="because")
    ```

    Args:
        team: whose members take part.
        content: a model that the team's entry takes.
        key: makes the start idempotent, as in `Client.start`.
        timeout: seconds; default as long as it takes.

    Raises:
        RuntimeError: an event loop runs in this thread: use `connect`.
        TimeoutError: no result after `timeout` seconds.
        ClientError: as `connect`, `Client.start` and `ClientSession.result`, and their other errors.
    """

    async def one_session() -> Any:
        async with connect() as client:
            session = await client.start(team, content, key=key)
            return await session.result(timeout=timeout)

    return asyncio.run(one_session())
