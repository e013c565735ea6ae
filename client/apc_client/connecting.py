"""Connect to a running system over RabbitMQ, or make one in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from apc_agents.typed.team import Team
from apc_bus.database import open_pool
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.client import Client
from apc_client.operator import first_operator
from apc_web.errors import InputUnusable

CONNECT_PATIENCE = timedelta(seconds=8)


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
        from apc_client.in_process.client import connect_in_process

        async with connect_in_process(bus, database, people or {}) as local:
            yield local
        return
    if database.url is None:
        raise InputUnusable("APC_AMQP_URL is set: set APC_DATABASE_URL as well, or neither")
    if people:
        raise InputUnusable("people: with a broker, `apc agent add NAME --person` registers them")
    async with _over_rabbit(bus, database.url, operator) as remote:
        yield remote


@asynccontextmanager
async def _over_rabbit(bus: BusSettings, url: str, operator: str | None) -> AsyncIterator[Client]:
    from apc_bus.rabbit import connect_rabbit

    quick = bus.model_copy(update={"connect_patience": CONNECT_PATIENCE})
    pool = await open_pool(url, max_size=2, wait=CONNECT_PATIENCE)
    try:
        connected = await connect_rabbit(quick, purpose="client", shards=bus.shards)
        try:
            yield Client(connected, pool, await first_operator(pool, connected.user, operator), bus.shards)
        finally:
            await connected.close()
    finally:
        await pool.close()


def run(team: Team, content: BaseModel, *, key: str | None = None, timeout: float | None = None) -> Any:
    """Run a team on one input and return its typed result: `connect`, `start` and `result` for synchronous code.

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
