"""The whole system on servers that die: orchestrators, persisters, workers and senders, each a process."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import orjson
from pydantic import SecretStr
from tests.support.log import ScriptedGate
from tests.support.traffic import (
    Journal,
    ScriptedAgents,
    ScriptedWorker,
    Sent,
    open_deliveries,
    publish_until_confirmed,
    until,
)

from apc_bus.database import DATABASE_AWAY, open_pool
from apc_bus.errors import BusError
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, LogKeySettings
from apc_bus.topology import QueueKind, Topology, build_topology, log_queue
from apc_contracts import Packet, seal
from apc_persister.evidence.checkpoint import ensure_key
from benchmarks.soak.cast import CAST, COLLECTOR, OPERATOR, SENDERS, WORKERS, openings
from benchmarks.soak.processes import KeptProcess
from benchmarks.soak.sender import SESSIONS
from benchmarks.soak.servers import MortalServers

PATIENCE_SECONDS = 900.0
"""A machine that has other work too drains slowly; what never comes is told all the same."""
HOLDER = "SELECT holder FROM apc_log.shards WHERE shard = 0"
LOGGED = "SELECT packet_id FROM apc_log.agent_packets"
OPEN_SESSIONS = "SELECT count(*) FROM apc_log.sessions WHERE state = 'SESSION_OPEN'"
AWAY = (BusError, *DATABASE_AWAY)
"""What a server that dies or has just come back gives its clients."""


@dataclass(frozen=True, slots=True)
class SoakedSystem:
    """A running system. `bus`, `pool` and `listeners` are the soak's own and live as long as it does."""

    folder: Path
    bus: RabbitBus
    pool: asyncpg.Pool
    topology: Topology
    processes: list[KeptProcess]
    listeners: list[ScriptedWorker]
    """Read what the orchestrator tells the operator and the senders."""
    sessions: list[Packet]
    _opened: Sent = field(default_factory=Sent)

    def of(self, *kinds: str) -> list[KeptProcess]:
        """Return the processes whose name begins with one of these."""
        return [one for one in self.processes if one.name.startswith(kinds)]

    def sent(self) -> Sent:
        """Return what the senders were told, by their journals; those have to have ended, or it is a lower bound."""
        found = Sent(set(self._opened.confirmed), set(self._opened.unknown))
        for sender in SENDERS:
            journal = Journal(self.folder / f"{sender}.journal")
            found.confirmed.update(journal.confirmed)
            found.unknown.update(journal.unconfirmed)
            journal.close()
        return found

    async def open_sessions(self, agents: ScriptedAgents) -> None:
        """Register the cast and START every session."""
        await agents.register()
        for opening in self.sessions:
            await publish_until_confirmed(self.bus, agents.publication(opening))
            self._opened.confirmed.add(opening.packet_id)

        async def are_open() -> bool:
            return bool(await self.pool.fetchval(OPEN_SESSIONS) == len(self.sessions))

        await until(are_open, PATIENCE_SECONDS)

    async def drain(self) -> None:
        """Stop the senders, wait until everything has come to its end, stop the rest from the front to the back.

        Raises:
            AssertionError: a process left with an error, or something never came to its end.
        """
        await self._stop("sender")
        sent = self.sent()
        assert not sent.unknown, f"a sender left {len(sent.unknown)} packets unconfirmed"
        await self._until("everything has its end", lambda: self._is_over(sent))
        await self._stop("worker", COLLECTOR)
        await self._stop("orchestrator")
        marker = ScriptedGate(self.bus)
        await marker.open()

        async def is_committed() -> bool:
            return bool(await self.pool.fetchval(HOLDER) == marker.holder)

        await self._until("the log is written", is_committed)
        await self._stop("persister")

    async def depths(self) -> dict[str, int]:
        """Messages in each queue that has any."""
        names = [queue.name for queue in self.topology.queues if queue.kind is QueueKind.QUORUM]
        found = {name: (await self.bus.depth(name)).messages for name in names}
        return {name: messages for name, messages in found.items() if messages}

    async def _stop(self, *kinds: str) -> None:
        leaving = self.of(*kinds)
        codes = await asyncio.gather(*(process.stop() for process in leaving))
        ended = {process.name: code for process, code in zip(leaving, codes, strict=True)}
        assert not any(ended.values()), f"exit codes after SIGTERM: {ended}"

    async def _is_over(self, sent: Sent) -> bool:
        logged = {row["packet_id"] for row in await self.pool.fetch(LOGGED)}
        if not sent.confirmed <= logged or await open_deliveries(self.pool):
            return False
        return not set(await self.depths()) - {log_queue(0)}

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        async def holds() -> bool:
            with suppress(*AWAY):
                return await condition()
            return False

        try:
            await until(holds, PATIENCE_SECONDS)
        except TimeoutError:
            left = await open_deliveries(self.pool)
            raise AssertionError(f"never came: {what}; {left} deliveries open, queues: {await self.depths()}") from None


@asynccontextmanager
async def soaked_system(servers: MortalServers, folder: Path, seed: int, sessions: int) -> AsyncIterator[SoakedSystem]:
    """Start everything but the senders; leaving the context ends what still runs."""
    environment = {
        "APC_AMQP_URL": servers.cluster.url(),
        "APC_DATABASE_URL": servers.database_url,
        "APC_DATABASE_POOL": "3",
        "APC_DATA_DIR": str(folder),
        "APC_LOG_KEY_FILE": str(folder / "log-key.pem"),
    }
    os.environ["APC_LOG_KEY_FILE"] = environment["APC_LOG_KEY_FILE"]
    ensure_key(LogKeySettings())
    async with AsyncExitStack() as stack:
        settings = BusSettings(amqp_url=SecretStr(servers.cluster.url()))
        pool = await open_pool(servers.database_url, max_size=3)
        stack.push_async_callback(pool.close)
        bus = await connect_rabbit(settings, purpose="soak")
        stack.push_async_callback(bus.close)
        agents = ScriptedAgents(bus, CAST)
        topology = build_topology(1, agents.queues)
        await apply_rabbit(settings.amqp_nodes[0], topology)
        await asyncio.to_thread(servers.cluster.persist_declarations)
        listeners = [ScriptedWorker(bus, agent) for agent in (OPERATOR, *SENDERS)]
        for listener in listeners:
            await stack.enter_async_context(listener.working())
        system = SoakedSystem(folder, bus, pool, topology, [], listeners, openings(sessions))
        bodies = [seal(opening).body.decode() for opening in system.sessions]
        (folder / SESSIONS).write_bytes(orjson.dumps(bodies))
        for name, arguments in _SERVICES:
            _start(stack, system, name, arguments, environment)
        await system.open_sessions(agents)
        # Agents come once they are registered: a heartbeat of an unknown agent would be a security event.
        for name in (*WORKERS, COLLECTOR):
            module = f"benchmarks.soak.agents:{name.replace('-', '_')}"
            _start(stack, system, name, ("apc_cli", "worker", module), environment)
        for name in SENDERS:
            _start(stack, system, name, ("benchmarks.soak.sender", name, str(folder), str(seed)), environment)
        yield system


def _start(
    stack: AsyncExitStack, system: SoakedSystem, name: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    process = KeptProcess(name, arguments, system.folder, environment)
    system.processes.append(process)
    stack.push_async_callback(process.end)


_SERVICES = [
    (f"{name}-{number}", ("apc_cli", "serve", name)) for name in ("persister", "orchestrator") for number in (1, 2)
]
