"""The whole system as processes, each with its own broker user and database user."""

import asyncio
import json
import os
import re
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from pydantic import SecretStr
from tests.integration.privilege.conftest import GuardedBroker
from tests.support.apc_command import ApcCommand
from tests.support.traffic import ScriptedAgents, until
from tests.support.traffic.packets import ROLE

from apc_bus.rabbit import RabbitBus, connect_rabbit
from apc_bus.rabbit.management import Management
from apc_bus.settings import BusSettings

SWARM = f"""
from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

librarian = Agent("librarian", role="{ROLE}", swarm="desk", rights=["operate"])
gamma = Agent("gamma", role="{ROLE}", swarm="red")
delta = Agent("delta", role="{ROLE}", swarm="blue")


@librarian.on(PacketType.IDEA)
@delta.on(PacketType.IDEA)
async def wait(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    pass


@gamma.on(PacketType.IDEA)
async def answer(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
    ctx.state["answered"] = ctx.state.get("answered", 0) + 1
    return idea.payload.model_copy(update={{"method_id": "answer", "intent": "another"}})
"""
GROUPS = ("apc_writer", "apc_reader", "apc_agent")
CAST = {"librarian": ("desk", ("operate",)), "gamma": ("red", ()), "delta": ("blue", ())}


@dataclass
class System:
    """A deployment: who is who, and the processes that run."""

    broker: GuardedBroker
    vhost: str
    database_url: str
    roles: dict[str, str]
    """Group role of the database -> a log-in user of it."""
    folder: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def apc(self) -> ApcCommand:
        """The `apc` command in the operator's folder."""
        return ApcCommand(self.folder)

    @property
    def passwords(self) -> dict[str, str]:
        """Of the agents: what `apc agent add` made."""
        made: dict[str, str] = json.loads((self.folder / ".apc" / "broker-passwords.json").read_text())
        return made

    @property
    def as_operator(self) -> dict[str, str]:
        """The operator's settings."""
        return {
            "APC_AMQP_URL": self.broker.url("operator", self.vhost),
            "APC_TOPOLOGY_URL": self.broker.url("topology", self.vhost),
            "APC_MANAGEMENT_URL": self.broker.management_url(),
            "APC_DATABASE_URL": self.database_as("apc_reader"),
        }

    def database_as(self, role: str) -> str:
        """Return the URL of a user with exactly the rights of a role."""
        return re.sub("//[^/]*@", f"//{self.roles[role]}:p@", self.database_url)

    def agent_url(self, agent: str) -> str:
        """Return the AMQP URL of an agent."""
        user = f"agent.{agent}"
        return self.broker.node.url(self.vhost, user, quote(self.passwords[user], safe=""))

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return a command of the operator, to its end."""
        return await asyncio.to_thread(self.apc, *arguments, given=self.as_operator)

    def serve(self, *arguments: str, amqp_url: str, role: str, **settings: str) -> None:
        """Start a process as one user of the broker and one of the database."""
        given = {"APC_AMQP_URL": amqp_url, "APC_DATABASE_URL": self.database_as(role)} | settings
        self.processes[" ".join(arguments)] = self.apc.start(*arguments, given=given)

    @asynccontextmanager
    async def connected(self, agent: str) -> AsyncIterator[RabbitBus]:
        """A bus as an agent."""
        bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(self.agent_url(agent))))
        try:
            yield bus
        finally:
            await bus.close()

    @asynccontextmanager
    async def playing(self, agent: str) -> AsyncIterator[ScriptedAgents]:
        """One agent of the cast, played by hand under its own user."""
        async with self.connected(agent) as bus:
            yield ScriptedAgents(bus, CAST)

    def stop(self) -> dict[str, str]:
        """End every process (SIGTERM); returns what each has said."""
        for process in self.processes.values():
            process.terminate()
        return {name: "".join(process.communicate(timeout=60)) for name, process in self.processes.items()}


@asynccontextmanager
async def running(system: System) -> AsyncIterator[System]:
    """Gate, log writer and the worker gamma, started as an operator does."""
    (system.folder / "system_swarm.py").write_text(SWARM)
    async with AsyncExitStack() as stack:
        stack.callback(system.stop)
        pool = await asyncpg.create_pool(system.database_url, min_size=1, max_size=1)
        stack.push_async_callback(pool.close)
        persister = system.broker.url("persister", system.vhost)
        system.serve("serve", "persister", amqp_url=persister, role="apc_writer", APC_LOG_KEY=os.environ["APC_LOG_KEY"])
        orchestrator = system.broker.url("orchestrator", system.vhost)
        system.serve("serve", "orchestrator", amqp_url=orchestrator, role="apc_reader", APC_OPERATOR_USER="operator")
        await until(_is_held(pool), 60)
        registered = await system.run("agent", "add", *(f"system_swarm:{agent}" for agent in CAST))
        assert registered.returncode == 0, registered.stderr
        assert registered.stderr.count("made broker user") == len(CAST)
        system.serve("worker", "system_swarm:gamma", amqp_url=system.agent_url("gamma"), role="apc_agent")
        yield system


def _is_held(pool: asyncpg.Pool) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return bool(await pool.fetchval("SELECT count(*) FROM apc_log.shards WHERE epoch > 0") == 1)

    return holds


@pytest.fixture
async def system(
    guarded_broker: GuardedBroker, guarded_vhost: str, postgres_url: str, tmp_path: Path
) -> AsyncIterator[System]:
    """Gate, log writer and the worker gamma as processes; librarian and delta are registered."""
    roles = {group: f"apc_test_{secrets.token_hex(6)}" for group in GROUPS}
    admin = await asyncpg.connect(postgres_url)
    for group, user in roles.items():
        await admin.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'p' IN ROLE {group}")
    async with running(System(guarded_broker, guarded_vhost, postgres_url, roles, tmp_path)) as system:
        yield system
    management = Management(guarded_broker.management_url())
    for agent in CAST:
        await management.delete_user(f"agent.{agent}")
    for user in roles.values():
        await admin.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
    await admin.close()
