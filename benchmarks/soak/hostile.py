"""Hostile and honest senders together, for MINUTES=30: `make soak-hostile`.

The gate's memory must level off, no honest packet may be lost, and the gate must not restart.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from tests.support.traffic import ScriptedWorker, publish_until_confirmed, until

from apc_bus.errors import BusUnavailable
from apc_bus.port import Publication
from apc_bus.telemetry import configure_logs
from apc_bus.topology import gate_queue
from apc_cli.system.running import run
from apc_contracts import Packet
from benchmarks.soak.hostile_acts import (
    COLLECTOR,
    MALLORY,
    OPERATOR,
    SENDERS,
    Acts,
    ending,
    opening,
    session_names,
    work,
)
from benchmarks.soak.hostile_system import PATIENCE_SECONDS, HostileSystem, hostile_system
from benchmarks.support.amounts import at_least

SAMPLE_SECONDS = 2.0
HONEST_PAUSE_SECONDS = 0.2
MOST_OUTSTANDING = 50
"""Of an honest sender's packets, those that the recipient has not handled: far below its fair share of the bound."""
SESSION_PACKETS = 100
"""Of an honest sender; then its session ends, and it opens another one."""
SHARED_SECONDS = 60.0
"""Then the session ends in which hostile and honest agents work together, and another one begins."""
CHURN_SECONDS = 0.3
"""Between the STARTs of sessions that end at once."""
MOST_WAITING = 500
"""Inputs ahead of the orchestrator, above which hostile senders wait: what the broker keeps is not in its memory."""
GROWTH = 1.1
WARM_UP = 6
"""This part of the run goes by before the memory is compared: 5 of 30 minutes."""
LOGGED = "SELECT packet_id, verdict, refusal_code FROM apc_log.agent_packets WHERE packet_id = ANY($1)"
VERDICTS = "SELECT coalesce(refusal_code, verdict) AS what, count(*) FROM apc_log.agent_packets GROUP BY 1 ORDER BY 1"
CONFLICTS = "SELECT kind AS what, count(*) FROM apc_log.packet_conflicts GROUP BY 1 ORDER BY 1"


@dataclass(slots=True)
class Minute:
    """Medians in MB."""

    gate: float
    writer: float


@dataclass(slots=True)
class Report:
    """What came of a run."""

    minutes: list[Minute] = field(default_factory=list)
    hostile: Counter[str] = field(default_factory=Counter)
    """Messages that the broker took, by act."""
    honest: set[UUID] = field(default_factory=set)
    """Confirmed to honest senders."""
    sessions: int = 0
    lost: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Honest packets that the gate refused, by refusal code."""
    gate_starts: int = 0
    log: dict[str, int] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """What must not be; empty when all holds."""
        found = []
        if self.lost:
            found.append(f"{self.lost} honest packets were confirmed and are not in the log")
        found.extend(f"{count} honest packets were refused: {code}" for code, count in sorted(self.refused.items()))
        if self.gate_starts > 1:
            found.append(f"the gate took its shard {self.gate_starts} times")
        first, last = self.minutes[len(self.minutes) // WARM_UP - 1], self.minutes[-1]
        if last.gate > GROWTH * first.gate:
            found.append(f"the gate's memory grew: {first.gate:.1f} to {last.gate:.1f} MB")
        return found


class Run:
    """One run over a system."""

    def __init__(self, system: HostileSystem, seed: int) -> None:
        self._system = system
        self._agents = system.agents
        self._acts = Acts(MALLORY, opening("shared-0"), seed)
        self._sharing = asyncio.Lock()
        """Nobody honest speaks in the session of everybody while it ends."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._workers = {agent: ScriptedWorker(system.agents.bus, agent) for agent in (COLLECTOR, OPERATOR, *SENDERS)}
        self._outstanding: dict[str, list[UUID]] = {sender: [] for sender in SENDERS}
        self.report = Report()

    async def go(self, minutes: int) -> Report:
        """Send for so long, then look whether all honest packets have arrived."""
        await self._publish(self._acts.start)
        loops: list[Awaitable[None]] = [
            self._watch_backlog(),
            self._churn(),
            self._share(),
            *(self._attack(name, burst, pause) for name, (burst, pause) in self._acts.bursts.items()),
            *(self._honest(sender) for sender in SENDERS),
        ]
        async with AsyncExitStack() as stack:
            for worker in self._workers.values():
                await stack.enter_async_context(worker.working())
            tasks = [asyncio.ensure_future(loop) for loop in loops]
            try:
                await self._sample(minutes, tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self._account()
        return self.report

    async def _sample(self, minutes: int, tasks: Sequence["asyncio.Future[None]"]) -> None:
        for minute in range(1, minutes + 1):
            samples = []
            for _ in range(round(60 / SAMPLE_SECONDS)):
                done, _ = await asyncio.wait(tasks, timeout=SAMPLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                gate, writer = self._system.gate.resident_bytes, self._system.writer.resident_bytes
                if gate is not None and writer is not None:
                    samples.append((gate / 1e6, writer / 1e6))
            found = Minute(*(statistics.median(column) for column in zip(*samples, strict=True)))
            self.report.minutes.append(found)
            sent = self.report.hostile.total()
            print(
                f"minute {minute:2}: gate {found.gate:6.1f} MB, log writer {found.writer:6.1f} MB; "
                f"{sent} hostile messages, {len(self.report.honest)} honest packets",
                flush=True,
            )

    async def _watch_backlog(self) -> None:
        while True:
            depth = await self._agents.bus.depth(gate_queue(0))
            if depth.messages > MOST_WAITING:
                self._has_room.clear()
            else:
                self._has_room.set()
            await asyncio.sleep(0.2)

    async def _attack(self, name: str, burst: Callable[[], list[Publication]], pause: float) -> None:
        while True:
            await self._has_room.wait()
            for window in _windows(burst()):
                for error in await self._system.mallory.publish_all(window):
                    self.report.hostile[name if error is None else f"{name}, refused by the broker"] += 1
            await asyncio.sleep(pause)

    async def _churn(self) -> None:
        """Sessions that begin and end at once."""
        for name in session_names("churn"):
            await self._has_room.wait()
            start = opening(name)
            await self._publish(start)
            await self._publish(ending(start))
            self.report.sessions += 1
            await asyncio.sleep(CHURN_SECONDS)

    async def _share(self) -> None:
        """End the session of everybody now and then, and begin another one."""
        names = session_names("shared")
        next(names)
        for name in names:
            await asyncio.sleep(SHARED_SECONDS)
            async with self._sharing:
                await self._publish(ending(self._acts.start))
                self._acts.start = opening(name)
                await self._publish(self._acts.start)

    async def _work(self, sender: str, start: Packet) -> None:
        """Publish an IDEA when the recipient has handled most of those before it."""
        await until(partial(self._may_send, sender), PATIENCE_SECONDS)
        packet = work(sender, start)
        self._outstanding[sender].append(packet.packet_id)
        await self._publish(packet)

    async def _may_send(self, sender: str) -> bool:
        handled, refused = self._workers[COLLECTOR].effects, self._workers[sender].nacks
        waiting = [one for one in self._outstanding[sender] if one not in handled and one not in refused]
        self._outstanding[sender] = waiting
        return len(waiting) < MOST_OUTSTANDING

    async def _honest(self, sender: str) -> None:
        """Work in its own sessions, one after the other, and in the one of everybody."""
        for name in session_names(sender):
            start = opening(name)
            await self._publish(start)
            for _ in range(SESSION_PACKETS):
                await self._work(sender, start)
                async with self._sharing:
                    await self._work(sender, self._acts.start)
                await asyncio.sleep(HONEST_PAUSE_SECONDS)
            await self._publish(ending(start))
            self.report.sessions += 1

    async def _publish(self, packet: Packet) -> None:
        await publish_until_confirmed(self._agents.bus, self._agents.publication(packet))
        self.report.honest.add(packet.packet_id)

    async def _account(self) -> None:
        pool, found = self._system.pool, self.report

        async def is_read() -> bool:
            return (await self._agents.bus.depth(gate_queue(0))).messages == 0

        async def is_logged() -> bool:
            await until(is_read, PATIENCE_SECONDS)
            return len(await pool.fetch(LOGGED, list(found.honest))) == len(found.honest)

        try:
            await until(is_logged, PATIENCE_SECONDS)
        except TimeoutError:
            pass  # the count says it
        rows = await pool.fetch(LOGGED, list(found.honest))
        found.lost = len(found.honest) - len(rows)
        found.refused = Counter(row["refusal_code"] for row in rows if row["verdict"] == "refused")
        found.gate_starts = await self._system.gate_starts()
        found.log = {row["what"]: row["count"] for row in (*await pool.fetch(VERDICTS), *await pool.fetch(CONFLICTS))}


def _windows(burst: list[Publication]) -> list[list[Publication]]:
    """Return the burst at once; repeats of one message one after the other: its id has one confirm at a time."""
    is_repeat = len({one.message.message_id for one in burst}) < len(burst)
    return [[one] for one in burst] if is_repeat else [burst]


async def soak(minutes: int, seed: int, folder: Path) -> Report:
    """One run with the broker's settings of the deployment; the report."""
    async with hostile_system(folder, "max_message_size = 2097152") as system:
        return await Run(system, seed).go(minutes)


def main() -> int:
    """Exit code 1 when something was lost, grew or restarted."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak.hostile", description=__doc__)
    parser.add_argument("--minutes", type=at_least(1), default=30, help="how long to send (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of what the hostile senders choose (default 1)")
    arguments = parser.parse_args()
    configure_logs("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="apc-hostile-run-"))
    try:
        report = run(soak(max(WARM_UP, arguments.minutes), arguments.seed, folder))
    except BusUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    print("hostile: " + ", ".join(f"{count} x {name}" for name, count in sorted(report.hostile.items())))
    print(f"honest packets {len(report.honest)}, sessions {report.sessions}, lost {report.lost}")
    print("in the log: " + ", ".join(f"{count} x {what}" for what, count in report.log.items()))
    for problem in report.problems:
        print(f"PROBLEM: {problem}; what the processes said: {folder}")
    if report.problems:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
