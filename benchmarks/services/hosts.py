"""What a host costs: many agents in one process, over a real broker, a gate, a log writer and a database.

`python -m benchmarks.services.hosts [--agents N] [--packets M]` prints: seconds until all are ready, and again after
kill -9; memory; CPU and rows of the log while nothing happens; CPU seconds of 1,000 packets, by process.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from apc_agents import Agent
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import build_topology
from apc_client.registration import addition, publish_changes, queues_of, wait_until_recorded
from apc_contracts import seal
from apc_contracts.payloads.session_signals import SwarmSpec
from benchmarks.support import agents, packets
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.hosted import crew
from benchmarks.support.machine import tell_machine
from benchmarks.support.metering import Meter
from benchmarks.support.processes import Service, running
from benchmarks.support.servers import Servers, start_servers
from benchmarks.support.system import PATIENCE, Load, System, start_system, until_applied, until_followed

HOST = "bench"
MEMBERS = 50
"""Agents in one session."""
IDLE_SECONDS = 10.0
ROWS = "SELECT count(*) FROM apc_log.agent_packets"
MEMORY_BAR, READY_BAR, CPU_BAR, IDLE_BAR = 250.0, 5.0, 0.17, 3.0
"""For 5,000 agents: MB, seconds, CPU seconds of 1,000 packets, percent of a core."""


def main() -> None:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=at_least(1), default=200)
    parser.add_argument("--packets", type=at_least(100), default=3_000)
    options = parser.parse_args()
    tell_machine("before")
    figures = Figures()
    asyncio.run(_measure(options.agents, options.packets, figures))
    figures.print()
    tell_machine("after")


async def _measure(count: int, load: int, figures: Figures) -> None:
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(start_servers())
        system = await stack.enter_async_context(start_system(servers))
        everyone = crew(count)
        began = time.monotonic()
        await _register(system, everyone)
        figures.add(Figure("registered", time.monotonic() - began, "s", note=f"{count:,} agents"))
        names = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "agents"
        names.write_text("".join(f"benchmarks.support.hosted:{agent.agent_id}\n" for agent in everyone))
        await _start_and_kill(stack, system, names, figures)
        host = await _start(stack, system, names)
        await stack.enter_async_context(system.local_worker(agents.source))
        sessions = await _open(system, everyone)
        await _idle(system, host, figures)
        await _send(servers, system, host, sessions, load, figures)
        figures.add(Figure("memory", host.consumption().memory_mb, "MB", MEMORY_BAR, 1.0, is_time=True))


async def _register(system: System, everyone: Sequence[Agent]) -> None:
    user = system.bus.user
    registrations = [replace(agent.registration(user), host=HOST) for agent in everyone]
    await apply_rabbit(system.environment["APC_AMQP_URL"], build_topology(1, [queues_of(one) for one in registrations]))
    changes = [addition(one) for one in registrations]
    await publish_changes(system.bus, changes, 1)
    await wait_until_recorded(system.pool, changes, 1, 5 * PATIENCE)


async def _start(stack: AsyncExitStack, system: System, names: Path) -> Service:
    arguments = ("-m", "apc_cli", "serve", "agents", "--host", HOST, "--from", str(names))
    service = await stack.enter_async_context(running("host", *arguments, environment=system.environment))
    await service.said("host_started")
    return service


async def _start_and_kill(stack: AsyncExitStack, system: System, names: Path, figures: Figures) -> None:
    first = await _start(stack, system, names)
    figures.add(
        Figure("ready", time.monotonic() - first.began, "s", READY_BAR, 1.0, is_time=True, note="from the start")
    )
    first.process.kill()
    killed = time.monotonic()
    await first.ended()
    second = await _start(stack, system, names)
    ready = time.monotonic() - killed
    figures.add(Figure("ready_again", ready, "s", READY_BAR, 1.0, is_time=True, note="from kill -9, started at once"))
    second.process.terminate()
    await second.ended()


async def _open(system: System, everyone: Sequence[Agent]) -> dict[str, Sequence[Agent]]:
    sessions = {f"s-{at}": everyone[at : at + MEMBERS] for at in range(0, len(everyone), MEMBERS)}
    for session_id, members in sessions.items():
        swarm = SwarmSpec(swarm_id=agents.SWARM, agents=tuple(member.agent_id for member in members))
        start = packets.start_packet(session_id, agents.source.actor, [swarm])
        await system.bus.publish(packets.publication(seal(start), system.bus.user))
        await until_applied(system.pool, [session_id], 0)
    return sessions


async def _idle(system: System, host: Service, figures: Figures) -> None:
    await until_followed(system.pool)
    before, rows = host.consumption().cpu_seconds, await system.pool.fetchval(ROWS)
    began = time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    used = (host.consumption().cpu_seconds - before) / (time.monotonic() - began) * 100
    logged = await system.pool.fetchval(ROWS) - rows
    figures.add(
        Figure(
            "idle_cpu", used, "% of a core", IDLE_BAR, 1.0, is_time=True, note=f"of the host, in {IDLE_SECONDS:g} s"
        ),
        Figure("idle_rows", logged, "rows", note="logged meanwhile; the sender's own heartbeat may be one"),
    )


async def _send(
    servers: Servers, system: System, host: Service, sessions: dict[str, Sequence[Agent]], count: int, figures: Figures
) -> None:
    user, names = system.bus.user, list(sessions)
    ready = []
    for number in range(count):
        session_id = names[number % len(names)]
        member = sessions[session_id][number // len(names) % len(sessions[session_id])]
        ready += packets.publications(session_id, agents.source.actor, [member.agent_id], user, 1)
    processes = {"host": host.process.pid} | {name: one.process.pid for name, one in system.services.items()}
    meter, began = await Meter.start(servers, processes), time.monotonic()
    await Load(system.bus, system.pool, names).send(ready)
    await until_applied(system.pool, names, count)
    seconds = time.monotonic() - began
    await until_followed(system.pool)
    used = await meter.read(count)
    figures.add(
        Figure("rate", count / seconds, "packets/s", note="all parts on this machine"),
        Figure("host_cpu", used.pop("host"), "s/1,000", CPU_BAR, 1.0, is_time=True),
        *(Figure(f"{name}_cpu", cpu, "s/1,000") for name, cpu in used.items()),
    )


if __name__ == "__main__":
    main()
