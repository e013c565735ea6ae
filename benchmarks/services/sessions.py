"""What open sessions cost: memory of the orchestrator, CPU of a packet beside them, and a takeover of all of them."""

import signal
from contextlib import AsyncExitStack

from apc_contracts import seal
from apc_contracts.payloads.session_signals import SwarmSpec
from benchmarks.services.growth import CPU, Sampler
from benchmarks.services.takeover import gap_of, standby_of
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers
from benchmarks.support.system import System, until_applied

AT_ONCE = 200
"""Sessions opened at once: each sends its first SYNC to the only member."""
MEMORY_BAR, CPU_BAR = 500.0, 1.10
SAMPLES = 3


async def measure_sessions(servers: Servers, system: System, figures: Figures, count: int) -> None:
    """Measure a packet of one session, alone in memory and beside `count` open ones; and the memory of these."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(system.worker("sink"))
        await stack.enter_async_context(system.local_worker(agents.source))
        sampler = Sampler(servers, system)
        await sampler.sample("warm-up", ["alone-warm"], [agents.sink])
        alone = min([await sampler.sample("alone", [f"alone-{n}"], [agents.sink]) for n in range(SAMPLES)])
        gate = system.services["orchestrator"]
        before = gate.consumption().memory_mb
        await _open(system, count)
        after = gate.consumption().memory_mb
        beside = min([await sampler.sample("beside", [f"beside-{n}"], [agents.sink]) for n in range(SAMPLES)])
        heir = await standby_of(system, stack, "heir")
        gap = await gap_of(system, gate, signal.SIGKILL)
        await _open(system, AT_ONCE, "behind")
        inherited = heir.consumption().memory_mb
    figures.add(
        Figure("sessions_takeover", gap, "s", note=f"kill -9 of the gate of {count:,} open sessions"),
        Figure("sessions_inherited", inherited, "MB", note=f"the new gate, after {AT_ONCE} further sessions"),
        Figure("sessions_memory", after, "MB", MEMORY_BAR, 1.0, is_time=True, note=f"gate, {count:,} open sessions"),
        Figure("sessions_memory_each", (after - before) * 1000 / count, "kB", note="grown by, a session"),
        Figure("sessions_beside", beside, CPU, alone, CPU_BAR, is_time=True, note=f"beside {count:,} open sessions"),
    )


async def _open(system: System, count: int, prefix: str = "open") -> None:
    names = [f"{prefix}-{number}" for number in range(count)]
    swarm = SwarmSpec(swarm_id=agents.SWARM, agents=(agents.sink.agent_id,))
    for start in range(0, count, AT_ONCE):
        some = names[start : start + AT_ONCE]
        opening = [seal(packets.start_packet(name, agents.source.actor, [swarm])) for name in some]
        for error in await system.bus.publish_all([packets.publication(one, system.bus.user) for one in opening]):
            if error is not None:
                raise error
        await until_applied(system.pool, some, 0)
