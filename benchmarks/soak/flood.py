"""The orchestrator's memory before, during, after a flood of 160 messages of 4 MB: `python -m benchmarks.soak.flood`.

The broker takes messages of that size only without the settings of `deploy/rabbitmq.conf`.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tests.support.traffic import until

from apc_bus.errors import BusUnavailable
from apc_bus.port import Message, Publication
from apc_bus.telemetry import configure_logs
from apc_bus.topology import INGRESS, gate_queue
from apc_cli.system.running import run
from benchmarks.soak.hostile_acts import MALLORY
from benchmarks.soak.hostile_system import PATIENCE_SECONDS, HostileSystem, hostile_system

MESSAGES = 160
MESSAGE_BYTES = 4_000_000
SAMPLE_SECONDS = 0.05
SETTLE_SECONDS = 15.0
"""The orchestrator gives memory back every five seconds."""
RETURNED = 1.25
"""Times the memory before the flood."""
LOGGED = "SELECT count(*), sum(octet_length(raw)) FROM apc_log.packet_conflicts"


async def flood(system: HostileSystem) -> tuple[float, float, float]:
    """Send it; the memory in MB before, at its highest, and after."""
    before, highest = _resident(system), 0.0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, _resident(system))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def is_read() -> bool:
        return (await system.agents.bus.depth(gate_queue(0))).messages == 0

    watching = asyncio.create_task(watch())
    body = os.urandom(MESSAGE_BYTES)
    for _ in range(MESSAGES):
        await system.mallory.publish(Publication(INGRESS, "0", Message(body, str(uuid4()), user_id=MALLORY)))
    await until(is_read, PATIENCE_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return before, highest, _resident(system)


def _resident(system: HostileSystem) -> float:
    return (system.gate.resident_bytes or 0) / 1e6


async def measure(folder: Path) -> int:
    """One flood; 1 when the memory did not come back, or the orchestrator did."""
    async with hostile_system(folder) as system:
        before, highest, after = await flood(system)
        (row,) = await system.pool.fetch(LOGGED)
        starts = await system.gate_starts()
    print(f"gate: {before:.1f} MB before, {highest:.1f} MB at most, {after:.1f} MB after {SETTLE_SECONDS:g} s")
    print(f"in the log: {row[0]} entries with {(row[1] or 0) / 1e6:.2f} MB of bodies; the gate started {starts} times")
    return int(after > RETURNED * before or starts > 1)


def main() -> int:
    """Exit code 1 when the memory did not come back."""
    configure_logs("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="apc-flood-"))
    try:
        return run(measure(folder))
    except BusUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
