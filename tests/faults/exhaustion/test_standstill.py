"""Short runs of the pipeline at random loads: with work queued, something moves.

Once two of forty runs stood still for a minute. A wake-up is lost between work and idleness, so each run changes
between the two many times, beside programs that take the processors away.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest
from benchmarks.support import agents, packets
from benchmarks.support.servers import Servers
from benchmarks.support.system import PROGRESS, System, start_system, until_applied
from tests.faults.matrix import ROOT
from tests.support.servers import PostgresServer, RabbitServer

from apc_bus.port import Publication

RUNS = int(os.environ.get("APC_STANDSTILL_RUNS", "200"))
REPORT = ROOT / "build" / "standstill.json"
TURN_SECONDS = 0.1
STANDSTILL_TURNS = 50
"""Five seconds, counted in turns of this process: it waits for the processor as those do that it watches."""
BUSY_LOOP = "while True: pass"

Moved = tuple[int, ...]


@dataclass
class Watch:
    """Looks at a session again and again; `longest` is the most turns in which nothing moved."""

    pool: asyncpg.Pool
    session_id: str
    longest: int = 0
    _last: Moved = ()
    _still: int = field(default=0)

    async def look(self) -> None:
        """Fail once nothing has moved for too long."""
        while True:
            await asyncio.sleep(TURN_SECONDS)
            row = await self.pool.fetchrow(PROGRESS, [self.session_id])
            assert row is not None
            moved = tuple(row)
            self._still = self._still + 1 if moved == self._last else 0
            self._last, self.longest = moved, max(self.longest, self._still)
            assert self._still < STANDSTILL_TURNS, f"{self.session_id} stands still: {dict(row)}"


@pytest.fixture
async def system(
    rabbit_server: RabbitServer, postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    """The services, with the key of the tests in a file."""
    key = tmp_path / "log-key.pem"
    key.write_text(os.environ["APC_LOG_KEY"])
    key.chmod(0o600)
    monkeypatch.setenv("APC_LOG_KEY_FILE", str(key))
    async with start_system(Servers(rabbit_server, postgres_server)) as started:
        yield started


@pytest.mark.faults
@pytest.mark.timeout(3600)
async def test_two_hundred_runs_never_stand_still(system: System) -> None:
    chance = random.Random(25)
    longest, sent = [], 0
    async with system.local_worker(agents.source), system.worker("sink"):
        for number in range(RUNS):
            count = chance.randint(1, 400)
            async with _busy_loops(chance.randrange(4)):
                longest.append(await _run(system, f"run-{number}", count, chance))
            sent += count
    figures = {"runs": RUNS, "packets": sent, "longest_standstill_seconds": max(longest) * TURN_SECONDS}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(figures))


async def _run(system: System, session_id: str, count: int, chance: random.Random) -> int:
    await system.open_session(session_id, [agents.source, agents.sink])
    load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], system.bus.user, count)
    watch = Watch(system.pool, session_id)
    looking = asyncio.create_task(watch.look())
    running = asyncio.create_task(_send(system, session_id, load, chance))
    await asyncio.wait({looking, running}, return_when=asyncio.FIRST_COMPLETED)
    for task in (looking, running):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    await running
    return watch.longest


async def _send(system: System, session_id: str, load: Sequence[Publication], chance: random.Random) -> None:
    """Send it in pieces, with pauses in which everybody falls idle, and wait until all is applied."""
    sent = 0
    while sent < len(load):
        piece = load[sent : sent + chance.choice((1, 3, 20, 150))]
        assert not any(await system.bus.publish_all(piece))
        sent += len(piece)
        if chance.random() < 0.5:
            await until_applied(system.pool, [session_id], sent)
        await asyncio.sleep(chance.choice((0, 0, 0.002, 0.02)))
    await until_applied(system.pool, [session_id], sent)


@asynccontextmanager
async def _busy_loops(count: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY_LOOP)
            stack.push_async_callback(process.wait)
            stack.callback(process.kill)
        yield
