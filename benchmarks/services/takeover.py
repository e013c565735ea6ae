"""How long a shard is without its orchestrator: killed, and frozen, with a standby beside it."""

import signal
import time
from contextlib import AsyncExitStack

from tests.support.waiting import until

from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import Service, running
from benchmarks.support.system import PATIENCE, System

KILLED_BAR = 1.0
"""Seconds."""
HEARTBEAT = 5.0
"""Seconds; the default of the services."""
HEARTBEATS_BAR = 3.0
KILLS = 5
LOOK_SECONDS = 0.01
"""Between two looks for the new lease: what a gap is measured by."""
EPOCH = "SELECT epoch FROM apc_log.shards WHERE shard = 0"


async def measure_takeover(system: System, figures: Figures) -> None:
    """From the fault until the standby's epoch stands in the database: then it consumes and delivers."""
    async with AsyncExitStack() as stack:
        killed: list[float] = []
        active = system.services["orchestrator"]
        for number in range(KILLS):
            standby = await standby_of(system, stack, f"standby-{number}")
            killed.append(await gap_of(system, active, signal.SIGKILL))
            active = standby
        standby = await standby_of(system, stack, "last")
        frozen = await gap_of(system, active, signal.SIGSTOP)
        active.process.send_signal(signal.SIGCONT)
        await active.said("shard_left")
    bar = HEARTBEATS_BAR * HEARTBEAT
    figures.add(
        Figure("takeover_killed", max(killed), "s", KILLED_BAR, 1.0, is_time=True, note=f"kill -9, longest of {KILLS}"),
        Figure("takeover_frozen", frozen, "s", bar, 1.0, is_time=True, note="SIGSTOP, 3 heartbeats of 5 s"),
    )


async def standby_of(system: System, stack: AsyncExitStack, name: str) -> Service:
    """Return an orchestrator that waits for the shard."""
    service = running(name, "-m", "apc_cli", "serve", "orchestrator", environment=system.environment)
    standby = await stack.enter_async_context(service)
    await standby.said("gate_stands_by")
    return standby


async def gap_of(system: System, active: Service, fault: signal.Signals) -> float:
    """Return the seconds from a fault of the active orchestrator until its standby has the shard."""
    epoch = await system.pool.fetchval(EPOCH)
    began = time.monotonic()
    active.process.send_signal(fault)

    async def is_taken() -> bool:
        return bool(await system.pool.fetchval(EPOCH) > epoch)

    await until(is_taken, PATIENCE.total_seconds(), pause_seconds=LOOK_SECONDS)
    return time.monotonic() - began
