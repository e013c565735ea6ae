"""Agents in a FastStream application: started and drained with it.

docs/how-to/faststream.md shows one; docs/decisions/0012 says what was rejected.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from apc_contracts.errors import ExtraMissing

try:
    from faststream import ContextRepo
except ModuleNotFoundError as error:
    raise ExtraMissing(error) from error

from apc_agents.agent import Agent
from apc_agents.errors import AgentError, AgentInvalid
from apc_agents.running.service import keep_worker
from apc_agents.team import Team
from apc_bus.last_resort import LastResort
from apc_bus.rabbit.faststream import application
from apc_bus.settings import BusSettings, WorkerSettings

Lifespan = Callable[..., AbstractAsyncContextManager[None]]


def run_agents(
    *runs: Agent | Team, settings: WorkerSettings | None = None, bus_settings: BusSettings | None = None
) -> Lifespan:
    """Return a lifespan that runs agents in a FastStream application: `FastStream(broker, lifespan=run_agents(team))`.

    The agents start when the application has started, and it does not wait for them: each agent waits for a broker, a
    database or queues that are not there. At its end the agents drain. An agent that fails ends it. Handlers see the
    context of the application: `Context("logger")`, `Context("broker")`, and what `app.context.set_global` has set.

    All agents connect as the broker user of APC_AMQP_URL: register them with the same setting (`apc agent add`).

    ```python
    from apc_bus import BusSettings
    from faststream import FastStream
    from faststream.rabbit import RabbitBroker

    app = FastStream(RabbitBroker(), lifespan=run_agents(desk, bus_settings=BusSettings(amqp_url=None)))
    try:
        await app.run()
    except AgentError as error:
        assert "set APC_AMQP_URL" in str(error)
    ```

    Args:
        runs: agents and teams.
        settings: default those of the environment (docs/reference/settings.md), read when the application starts.
        bus_settings: default those of the environment.

    Raises:
        AgentInvalid: no agent, or the same one twice.
        AgentError: no broker is configured; when the application starts, before anything connects.
    """
    agents = [agent for one in runs for agent in (one.agents if isinstance(one, Team) else (one,))]
    if not agents:
        raise AgentInvalid("run_agents needs an agent or a team")
    twice = {agent.agent_id for agent in agents if agents.count(agent) > 1}
    if twice:
        raise AgentInvalid(f"run_agents was given agent {min(twice)} twice")

    @asynccontextmanager
    async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
        worker, bus = settings or WorkerSettings(), bus_settings or BusSettings()
        if not bus.amqp_nodes:
            raise AgentError("the agents of this application need a broker: set APC_AMQP_URL")
        async with _running(agents, worker, bus, context):
            yield

    return lifespan


@asynccontextmanager
async def _running(
    agents: Iterable[Agent], settings: WorkerSettings, bus_settings: BusSettings, context: ContextRepo
) -> AsyncIterator[None]:
    """Run agents beside the block and drain them; what one of them raises ends the block and is raised."""
    stop, last_resort, before = asyncio.Event(), LastResort(settings.data_dir), application.set(context)
    started = _start_of(context)

    async def run(agent: Agent) -> None:
        await started.wait()
        await keep_worker(agent, settings, bus_settings, stop, last_resort=last_resort)

    try:
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(run(agent), name=f"worker {agent.agent_id}")
            application.reset(before)
            yield
            stop.set()
            started.set()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _start_of(context: ContextRepo) -> asyncio.Event:
    """Return what is set when the application of a context has started, at once where there is none.

    An agent that failed before would cancel the connecting of the application's broker. aio-pika's robust connection
    takes no cancelling (measured with 10.2.1): the process would connect again and again, whatever the signal.
    """
    started, app = asyncio.Event(), context.get("app")
    if app is None:
        started.set()
        return started

    async def note() -> None:
        started.set()

    app.after_startup(note)
    return started
