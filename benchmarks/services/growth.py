"""Whether a packet costs more in a long log, among many sessions, or with many agents: CPU, not wall time."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from apc_agents import Agent
from apc_bus.port import Publication
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.metering import Meter
from benchmarks.support.servers import Servers
from benchmarks.support.system import Load, System, until_applied

SAMPLE = 3_000
"""Packets of one measurement."""
SESSIONS = 100
BAR = 1.15
CPU = "CPU s per 1,000 packets"


async def measure_growth(servers: Servers, system: System, figures: Figures, rows: int) -> None:
    """Orchestrator, persister and database: at the beginning, over many sessions and agents, behind `rows` packets."""
    crowd = agents.crowd()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(system.worker("sink"))
        for agent in (agents.source, *crowd):
            await stack.enter_async_context(system.local_worker(agent))
        bench = Sampler(servers, system)
        await bench.sample("warm-up", ["growth-0"], [agents.sink])
        first = await bench.sample("first", ["growth-1"], [agents.sink])
        sessions = await bench.sample("sessions", [f"growth-s{number}" for number in range(SESSIONS)], [agents.sink])
        many = await bench.sample("agents", ["growth-2"], crowd)
        while bench.sent < rows:
            await bench.sample("fill", [f"growth-fill-{bench.sent}"], [agents.sink])
        last = await bench.sample("last", ["growth-3"], [agents.sink])
    note = "orchestrator, persister and Postgres"
    figures.add(
        Figure("growth_first", first, CPU, note=note),
        Figure("growth_sessions", sessions, CPU, first, note=f"{SESSIONS} sessions beside 1"),
        Figure("growth_agents", many, CPU, first, note=f"{len(crowd)} recipients in turn beside 1"),
        Figure("growth_log", last, CPU, first, BAR, is_time=True, note=f"behind {bench.sent:,} packets"),
    )


class Sampler:
    """Takes samples of what a packet costs the services."""

    def __init__(self, servers: Servers, system: System) -> None:
        self._servers = servers
        self._system = system
        self.sent = 0

    async def sample(self, name: str, session_ids: Sequence[str], recipients: Sequence[Agent]) -> float:
        """CPU seconds that 1,000 packets cost the services, over these sessions and recipients in turn."""
        system = self._system
        for session_id in session_ids:
            await system.open_session(session_id, [agents.source, *recipients])
        load = _load(system.bus.user, session_ids, recipients)
        ids = {service: running.process.pid for service, running in system.services.items()}
        meter = await Meter.start(self._servers, ids)
        await Load(system.bus, system.pool, session_ids).send(load)
        await until_applied(system.pool, session_ids, len(load))
        self.sent += len(load)
        used = await meter.read(len(load))
        return sum(used[service] for service in (*ids, "postgres"))


def _load(user: str, session_ids: Sequence[str], recipients: Sequence[Agent]) -> list[Publication]:
    """SAMPLE packets, over sessions and recipients in turn."""
    load: list[Publication] = []
    while len(load) < SAMPLE:
        for session_id in session_ids:
            recipient = recipients[len(load) % len(recipients)]
            load += packets.publications(session_id, agents.source.actor, [recipient.agent_id], user, 1)
    return load
